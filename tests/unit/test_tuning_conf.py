"""Parsing of tuning's configuration (plugins.tuning.conf), and the attributes of an interface."""

import pytest

from cni import conf as cni_conf
from cni.errors import CniError
from kernel.link import Link
from plugins.tuning import attributes
from plugins.tuning.attributes import Attributes
from plugins.tuning.conf import DATA_DIR, TuningConf, lenient_data_dir
from tests.support.errors import failure_of
from tests.support.netconf import encode, parse, refusal

NOTHING = TuningConf((), Attributes(), "", mtu_both_ends=False, data_dir=DATA_DIR)
MACS = {number: f"02:00:00:00:00:0{number}" for number in range(5)}


def parse_keys(keys, **env):
    return parse("tuning", keys, **env)


def parse_error(keys):
    return refusal("tuning", keys)


def test_empty_configuration():
    """An empty configuration is idle, and so is one with false, 0, "" or null in keys where these have no effect."""
    for keys in ({}, {"promisc": False, "mtu": 0, "mac": "", "sysctl": {}, "dataDir": "", "args": {"cni": {}}}):
        assert parse_keys(keys) == NOTHING
        assert parse_keys(keys).is_idle
    assert parse_keys({"allmulti": None, "txQLen": None, "sysctl": None}) == NOTHING


def test_args_take_precedence():
    """A key in args.cni takes precedence over the plain key; false and 0 do only where they have an effect."""
    plain = {"mtu": 1400, "promisc": True, "allmulti": True, "txQLen": 5}
    strong = {"mtu": 0, "promisc": False, "allmulti": False, "txQLen": 0}
    assert parse_keys({**plain, "args": {"cni": strong}}).attributes == Attributes(
        promisc=True, mtu=1400, allmulti=False, tx_queue=0
    )
    assert parse_keys({**strong, "args": {"cni": plain}}).attributes == Attributes(None, True, 1400, True, 5)


def test_invalid_data_dir():
    """A NUL in `dataDir` is refused, and DEL uses the reference plugin's directory, whose backups it restores."""
    text = encode("tuning", {"dataDir": "/x\0y"})
    assert parse_error(text).code == 7
    assert lenient_data_dir(cni_conf.parse(text)) == DATA_DIR == "/run/cni/tuning"


@pytest.mark.parametrize("key", ["kernel.hostname", "net", "net/", "", "netx.core", "net.a\0b", "/proc/sys/net/a"])
def test_sysctl_keys_that_are_not_below_net(key):
    """A key outside net is refused with the reference plugin's text."""
    error = parse_error({"sysctl": {key: "1"}})
    assert (error.code, error.msg) == (7, f'invalid net sysctl key: "{key.replace(".", "/")}"')


def test_repeated_sysctl_key():
    """A key that is literally repeated in the plain map is refused; in args.cni, and in another spelling, it is not."""
    head = '{"cniVersion": "1.1.0", "name": "net", "type": "tuning", '
    twice = '{"net.a": "1", "net.b": "2", "net.a": "1"}'
    for text in (f'"sysctl": {twice}', f'"SysCtl": {twice}'):
        error = parse_error(f"{head}{text}}}".encode())
        assert (error.code, error.msg) == (7, "duplicated sysctl keys are not allowed")
        assert "net.a" in error.details
    assert len(parse_keys(f'{head}"args": {{"cni": {{"sysctl": {twice}}}}}}}'.encode()).sysctls) == 2
    assert len(parse_keys(f'{head}"sysctl": {{"net.a": "1", "net/a": "2"}}}}'.encode()).sysctls) == 2


def make_link(**values):
    """Returns a link as the kernel describes it."""
    defaults = {"index": 2, "name": "eth0", "mac": MACS[1], "mtu": 1500, "flags": 0, "kind": "veth", "master": 0}
    return Link(**{**defaults, "iflink": 0, "iflink_nsid": None, "operstate": 6, "tx_queue": 1000, **values})


def test_requests_for_attributes():
    """Attributes are set in one message, and restored in one message each, in the reference plugin's order."""
    whole = Attributes(bytes([2, 0, 0, 0, 0, 1]), True, 1400, False, 0)
    request = whole.request(make_link())
    assert (request.values["flags"], request.values["change"]) == (0x100, 0x300)
    assert [name for name, _ in request.attributes] == ["IFLA_ADDRESS", "IFLA_MTU", "IFLA_TXQLEN"]
    descriptions = [item.description for item in whole.requests(make_link())]
    words = ("to MTU 1400", "to address 02:00:00:00:00:01", "promiscuous", "not all-multicast", "to a queue of 0")
    assert descriptions == [f'set "eth0" {word}' for word in words]


@pytest.mark.parametrize(("mtu", "limits", "refused"), [(67, (68, 0), True), (68, (68, 0), False), (9, (0, 8), True)])
def test_mtu_limits_of_make_link(mtu, limits, refused):
    """An MTU outside the link's limits is refused; a maximum of 0 means no limit."""
    target = make_link(min_mtu=limits[0], max_mtu=limits[1])
    failure = failure_of(lambda: attributes.validate(target, Attributes(mtu=mtu)), CniError)
    assert bool(failure) == refused
    assert not failure or failure.msg == f'failed to set "eth0" to MTU {mtu}: invalid argument'
