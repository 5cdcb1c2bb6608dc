"""The configuration of tuning as a value (plugins.tuning.conf), and what is saved of an interface."""

import json

import pytest
from hypothesis import given

from cni import conf as cni_conf
from cni.args import from_env
from cni.errors import CniError
from kernel.link import Link
from plugins.tuning import attributes
from plugins.tuning.attributes import Attributes
from plugins.tuning.conf import DATA_DIR, Sysctl, TuningConf, lenient_data_dir, parse
from tests.support.errors import failure_of
from tests.unit.test_bridge_conf import JSON

NOTHING = TuningConf((), Attributes(), "", mtu_both_ends=False, data_dir=DATA_DIR)
MACS = {number: f"02:00:00:00:00:0{number}" for number in range(5)}


def parsed(keys, *, args="", ifname="eth0", text=None):
    stdin = text or json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "tuning", **keys}).encode()
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_PATH": "/p"}
    invocation = from_env({**env, "CNI_IFNAME": ifname, "CNI_ARGS": args})
    object.__setattr__(invocation, "stdin", stdin)
    return parse(invocation, cni_conf.parse(stdin))


def test_nothing():
    """An empty configuration asks for nothing, as do false, 0, "" and null where these mean nothing."""
    for keys in ({}, {"promisc": False, "mtu": 0, "mac": "", "sysctl": {}, "dataDir": "", "args": {"cni": {}}}):
        assert parsed(keys) == NOTHING
        assert parsed(keys).is_idle
    assert parsed({"allmulti": None, "txQLen": None, "sysctl": None}) == NOTHING


def test_false_and_zero_that_act():
    """`allmulti` false and `txQLen` 0 are asked for."""
    assert parsed({"allmulti": False, "txQLen": 0}).attributes == Attributes(allmulti=False, tx_queue=0)
    assert not parsed({"txQLen": 0}).is_idle


def test_args_are_the_strongest():
    """What args.cni has outweighs the plain key; what it has as false or 0 does so only where that acts."""
    plain = {"mtu": 1400, "promisc": True, "allmulti": True, "txQLen": 5}
    strong = {"mtu": 0, "promisc": False, "allmulti": False, "txQLen": 0}
    found = parsed({**plain, "args": {"cni": strong}}).attributes
    assert found == Attributes(promisc=True, mtu=1400, allmulti=False, tx_queue=0)
    assert parsed({**strong, "args": {"cni": plain}}).attributes == Attributes(None, True, 1400, True, 5)


@pytest.mark.parametrize("strongest", [1, 2, 3, 4])
def test_which_mac_counts(strongest):
    """The order is args.cni, the runtime's, CNI_ARGS, the plain key; the text stays as it is written."""
    keys = {
        "mac": MACS[4],
        "runtimeConfig": {"mac": MACS[2] if strongest <= 2 else ""},
        "args": {"cni": {"mac": MACS[1] if strongest == 1 else ""}},
    }
    found = parsed(keys, args=f"MAC={MACS[3]}" if strongest <= 3 else "")
    assert (found.mac, found.attributes.mac) == (MACS[strongest], bytes([2, 0, 0, 0, 0, strongest]))
    assert parsed({"mac": "02-00-00-00-00-AA"}).mac == "02-00-00-00-00-AA"


def test_a_directory_that_is_no_path():
    """A NUL in `dataDir` is refused, and DEL looks where backups are by default."""
    text = json.dumps({"name": "net", "type": "tuning", "dataDir": "/x\0y"}).encode()
    assert failure_of(lambda: parsed({}, text=text), CniError).code == 7
    assert lenient_data_dir(cni_conf.parse(text)) == DATA_DIR


def test_keys_of_sysctls():
    """Dots are slashes, the first IFNAME is the interface with its dots, and the order is the text's."""
    keys = {"net.b": "1", "net/a": "2", "net.ipv4.conf.IFNAME.IFNAME": "3", "/net//./c/": "4"}
    found = parsed({"sysctl": keys, "args": {"cni": {"sysctl": {"net/a": "5", "net.z": "6"}}}}, ifname="eth0.5")
    assert found.sysctls == (
        Sysctl("net.b", "b", "1"),
        Sysctl("net/a", "a", "5"),
        Sysctl("net.ipv4.conf.IFNAME.IFNAME", "ipv4/conf/eth0.5/IFNAME", "3"),
        Sysctl("/net//./c/", "c", "4"),
        Sysctl("net.z", "z", "6"),
    )


@pytest.mark.parametrize("key", ["kernel.hostname", "net", "net/", "", "netx.core", "net.a\0b", "/proc/sys/net/a"])
def test_keys_outside_net(key):
    """A key that does not lead below net is refused in the reference's words."""
    error = failure_of(lambda: parsed({"sysctl": {key: "1"}}), CniError)
    assert (error.code, error.msg) == (7, f'invalid net sysctl key: "{key.replace(".", "/")}"')


def test_a_key_that_stands_twice():
    """Only the text itself, and only the plain map, can have a key twice."""
    head = '{"cniVersion": "1.1.0", "name": "net", "type": "tuning", '
    twice = '{"net.a": "1", "net.b": "2", "net.a": "1"}'
    for text in (f'"sysctl": {twice}', f'"SysCtl": {twice}'):
        error = failure_of(lambda text=text: parsed({}, text=f"{head}{text}}}".encode()), CniError)
        assert (error.code, error.msg) == (7, "duplicated sysctl keys are not allowed")
        assert "net.a" in error.details
    assert len(parsed({}, text=f'{head}"args": {{"cni": {{"sysctl": {twice}}}}}}}'.encode()).sysctls) == 2
    assert len(parsed({}, text=f'{head}"sysctl": {{"net.a": "1", "net/a": "2"}}}}'.encode()).sysctls) == 2


@given(JSON)
def test_anything(value):
    """Whatever a key holds, there is a value or an error with a code, and where backups are is always known."""
    for key in ("sysctl", "mac", "mtu", "promisc", "allmulti", "txQLen", "dataDir", "mtuBothEnds", "args"):
        failure = failure_of(lambda key=key: parsed({key: value}), CniError)
        assert failure is None or failure.code == 7
        text = json.dumps({"name": "net", "type": "tuning", key: value}).encode()
        assert lenient_data_dir(cni_conf.parse(text))


def a_link(**values):
    """Returns a link as the kernel describes it."""
    found = {"index": 2, "name": "eth0", "mac": MACS[1], "mtu": 1500, "flags": 0, "kind": "veth", "master": 0}
    return Link(**{**found, "iflink": 0, "iflink_nsid": None, "operstate": 6, "tx_queue": 1000, **values})


def test_attributes_of_a_link():
    """What a link has, and what of it is saved for what is asked for."""
    whole = attributes.of_link(a_link(flags=0x300))
    assert whole == Attributes(bytes([2, 0, 0, 0, 0, 1]), True, 1500, True, 1000)
    assert attributes.of_link(a_link(mac="")).mac is None
    assert whole.only(Attributes(mtu=1, tx_queue=0)) == Attributes(mtu=1500, tx_queue=1000)
    assert Attributes(mtu=1).with_defaults(whole) == Attributes(whole.mac, True, 1, True, 1000)
    assert not Attributes()
    assert Attributes(allmulti=False)


def test_one_message_or_one_for_each():
    """All is set in one message; restored is each in one of its own, in the reference's order."""
    whole = Attributes(bytes([2, 0, 0, 0, 0, 1]), True, 1400, False, 0)
    request = whole.request(a_link())
    assert (request.values["flags"], request.values["change"]) == (0x100, 0x300)
    assert [name for name, _ in request.attributes] == ["IFLA_ADDRESS", "IFLA_MTU", "IFLA_TXQLEN"]
    doing = [item.description for item in whole.requests(a_link())]
    words = ("to MTU 1400", "to address 02:00:00:00:00:01", "promiscuous", "not all-multicast", "to a queue of 0")
    assert doing == [f'set "eth0" {word}' for word in words]


@pytest.mark.parametrize(("mtu", "limits", "refused"), [(67, (68, 0), True), (68, (68, 0), False), (9, (0, 8), True)])
def test_mtus_that_a_link_takes(mtu, limits, refused):
    """An MTU outside the link's limits is refused; no upper limit is none."""
    own = a_link(min_mtu=limits[0], max_mtu=limits[1])
    failure = failure_of(lambda: attributes.validate(own, Attributes(mtu=mtu)), CniError)
    assert bool(failure) == refused
    assert not failure or failure.msg == f'failed to set "eth0" to MTU {mtu}: invalid argument'


def test_a_mac_of_another_length():
    """A MAC longer than the link's is refused, as the kernel would take the beginning of it."""
    for mac in (bytes(8), bytes(20)):
        assert failure_of(lambda mac=mac: attributes.validate(a_link(), Attributes(mac=mac)), CniError)
    assert not failure_of(lambda: attributes.validate(a_link(), Attributes(mac=bytes(6))), CniError)
