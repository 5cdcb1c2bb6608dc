"""host-local's configuration: defaults, the reference's errors, and the parts that survive an invalid one."""

from functools import partial
from ipaddress import ip_address

import pytest

from cni.errors import CniError
from ipam.host_local import conf
from ipam.host_local.conf import HostLocalConf
from tests.support import netconf
from tests.support.errors import error_of

A = {"subnet": "10.1.2.0/24"}
B = {"subnet": "10.1.3.0/24"}
V6 = {"subnet": "2001:db8::/64"}


def parse(ipam=None, env="", version="1.1.0", **keys) -> HostLocalConf:
    parsed: HostLocalConf = netconf.parse("host-local", {"cniVersion": version, "ipam": ipam, **keys}, CNI_ARGS=env)
    return parsed


def refusal(*ipam, **options):
    return error_of(partial(parse, *ipam, **options), CniError)


def shown(parsed):
    return [str(item) for item in parsed.range_sets]


def of_range(**keys):
    return {"ranges": [[{**A, **keys}]]}


@pytest.mark.parametrize(
    ("subnet", "text", "gateway"),
    [
        ("10.1.2.0/24", "10.1.2.1-10.1.2.254", "10.1.2.1"),
        ("10.1.2.128/25", "10.1.2.129-10.1.2.254", "10.1.2.129"),
        ("10.1.2.0/30", "10.1.2.1-10.1.2.2", "10.1.2.1"),
        ("10.0.0.0/8", "10.0.0.1-10.255.255.254", "10.0.0.1"),
        ("2001:DB8::/64", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff", "2001:db8::1"),
        ("2001:db8::/126", "2001:db8::1-2001:db8::3", "2001:db8::1"),
    ],
)
def test_range_has_the_defaults_of_its_subnet(subnet, text, gateway):
    """A range begins after the network address, ends before an IPv4 broadcast, and its gateway is the first address."""
    parsed = parse({"ranges": [[{"subnet": subnet}]]})
    assert shown(parsed) == [text]
    assert str(parsed.range_sets[0].ranges[0].gateway) == gateway


@pytest.mark.parametrize("key", ["ranges", "Ranges", "RANGES"])
def test_ranges_keep_configured_values(key):
    """Start, end and gateway of a range are the configured ones, and keys match in any case."""
    configured = {"Subnet": "10.1.2.0/24", "rangestart": "10.1.2.0", "RangeEnd": "10.1.2.255", "GATEWAY": "10.9.9.9"}
    only = parse({key: [[configured]]}).range_sets[0].ranges[0]
    assert (str(only), str(only.gateway)) == ("10.1.2.0-10.1.2.255", "10.9.9.9")


def test_sets_are_numbered_in_the_documented_order():
    """The runtime's ranges come first, then the older single range, then `ranges`."""
    parsed = parse({**B, "ranges": [[V6]]}, runtimeConfig={"ipRanges": [[A]]})
    assert shown(parsed) == ["10.1.2.1-10.1.2.254", "10.1.3.1-10.1.3.254", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff"]


HALF, SET_0 = {"subnet": "10.1.2.128/25"}, "invalid range set 0"


@pytest.mark.parametrize(
    ("ipam", "msg"),
    [
        (None, "IPAM config missing 'ipam' key"),
        ({}, "no IP ranges specified"),
        ({"ranges": []}, "no IP ranges specified"),
        ({"ranges": [[]]}, "invalid range set 0: empty range set"),
        ({"ranges": [[A], None]}, "invalid range set 1: empty range set"),
        ({"ranges": [[{}]]}, "invalid range set 0: IP <nil> not v4 nor v6"),
        ({"subnet": "10.0.0.0/31"}, "invalid range set 0: Network 10.0.0.0/31 too small to allocate from"),
        ({"subnet": "10.0.0.1/32"}, "invalid range set 0: Network 10.0.0.1/32 too small to allocate from"),
        ({"subnet": "2001:db8::/127"}, "invalid range set 0: Network 2001:db8::/127 too small to allocate from"),
        ({"subnet": "::ffff:10.1.2.0/120"}, "invalid range set 0: IPNet IP and Mask version mismatch"),
        ({"subnet": "10.1.2.5/24"}, f"{SET_0}: Network has host bits set. For a subnet mask of length 24 the network"),
        (of_range(rangeStart="10.1.3.1"), "invalid range set 0: RangeStart 10.1.3.1 not in network 10.1.2.0/24"),
        (of_range(rangeStart="fd00::1"), "invalid range set 0: RangeStart fd00::1 not in network 10.1.2.0/24"),
        (of_range(rangeEnd="10.1.3.1"), "invalid range set 0: RangeEnd 10.1.3.1 not in network 10.1.2.0/24"),
        (of_range(rangeStart="10.1.2.9", rangeEnd="10.1.2.8"), "invalid range set 0: RangeStart 10.1.2.9 not in"),
        (of_range(rangeStart="10.1.2.255"), "invalid range set 0: RangeStart 10.1.2.255 not in network"),
        ({"pool": "a", "ranges": [[A]]}, 'failed to load netconf: "ipam.pool" excludes ranges'),
        ({"pool": "a", **A}, 'failed to load netconf: "ipam.pool" excludes ranges'),
        ({"ranges": [[A, V6]]}, "invalid range set 0: mixed address families"),
        ({"ranges": [[A, HALF]]}, f"{SET_0}: subnets 10.1.2.1-10.1.2.254 and 10.1.2.129-10.1.2.254 overlap"),
        ({"ranges": [[A], [B], [A]]}, "range set 0 overlaps with 2"),
        ({**A, "ranges": [[A]]}, "range set 0 overlaps with 1"),
        ({"ranges": [[{"subnet": "10.1.2"}]]}, f'{SET_0}: failed to load netconf: "ipam.ranges[0][0].subnet"'),
        (of_range(gateway="x"), f'{SET_0}: failed to load netconf: "ipam.ranges[0][0].gateway" is not an IP'),
        ({"ranges": [A]}, 'failed to load netconf: "ipam.ranges[0]" must be a list, not an object'),
        ({**A, "dataDir": "a\0b"}, 'failed to load netconf: "ipam.dataDir" must not contain a NUL character'),
        ({**A, "routes": [{"dst": "x"}]}, 'failed to load netconf: "ipam.routes[0].dst" is not an address with prefix'),
    ],
)
def test_invalid_configuration_has_the_references_text(ipam, msg):
    """An invalid configuration has code 7 and the reference's text."""
    error = refusal(ipam)
    assert (error.code, error.msg[: len(msg)]) == (7, msg)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_old_versions_have_one_address_per_family(version):
    """Before 0.3.0 a second address of a family is refused; one of each is permitted."""
    error = refusal({"ranges": [[A], [B]]}, version=version)
    assert error.msg == f"CNI version {version} does not support more than 1 address per family"
    assert len(parse({"ranges": [[A], [V6]]}, version=version).range_sets) == 2
    assert len(parse({"ranges": [[A, B]]}, version=version).range_sets) == 1


@pytest.mark.parametrize("suffix", ["", "/24"])
def test_addresses_are_requested_in_three_ways(suffix):
    """CNI_ARGS, args and the capability request addresses, with or without a prefix, each counted once."""
    requested = f"10.1.2.50{suffix}"
    assert parse(A, env=f"IP={requested}").requested == (ip_address("10.1.2.50"),)
    keys = {"args": {"cni": {"ips": [requested]}}, "runtimeConfig": {"ips": ["2001:DB8::5", requested]}}
    assert parse(A, **keys).requested == (ip_address("10.1.2.50"), ip_address("2001:db8::5"))


def test_args_override_cni_args():
    """The address in CNI_ARGS is ignored if args.cni.ips has addresses, and added to those of the capability."""
    assert parse(A, env="IP=10.1.2.3", args={"cni": {"ips": ["10.1.2.4"]}}).requested == (ip_address("10.1.2.4"),)
    both = parse(A, env="IP=10.1.2.3", runtimeConfig={"ips": ["10.1.2.4"]}).requested
    assert both == (ip_address("10.1.2.3"), ip_address("10.1.2.4"))


@pytest.mark.parametrize(
    ("env", "keys", "code", "msg"),
    [
        ("IP=zz", {}, 4, 'ARGS: error parsing value of pair "IP=zz": invalid IP address zz'),
        ("ip=10.1.2.3", {}, 4, "ARGS: unknown args"),
        ("", {"args": {"cni": {"ips": ["zz"]}}}, 7, 'invalid IP address zz in "args.cni.ips[0]"'),
        ("", {"runtimeConfig": {"ips": ["10.1.2.3", ""]}}, 7, 'invalid IP address  in "runtimeConfig.ips[1]"'),
        ("", {"runtimeConfig": {"ips": "10.1.2.3"}}, 7, 'failed to load netconf: "runtimeConfig.ips" must be a list'),
    ],
)
def test_invalid_request_names_its_key(env, keys, code, msg):
    """The message for an invalid requested address names its key."""
    error = refusal(A, env=env, **keys)
    assert (error.code, error.msg[: len(msg)]) == (code, msg)


@pytest.mark.parametrize("ipam", [None, {}, {"ranges": 5}, {"ranges": [[{"subnet": "x"}]], "dataDir": ""}])
def test_data_dir_is_read_from_an_invalid_configuration(ipam):
    """The directory of the stores is known, whatever else is invalid."""
    assert conf.data_dir(netconf.netconf("host-local", {"ipam": ipam})) == "/var/lib/cni/networks"
    assert conf.data_dir(netconf.netconf("host-local", {"ipam": {**(ipam or {}), "dataDir": "/x"}})) == "/x"
