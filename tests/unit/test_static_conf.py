"""static's configuration: sources of addresses, the reference's errors, and the fix for a missing prefix length."""

from functools import partial

import pytest

from cni.errors import CniError
from ipam.static.conf import StaticConf
from tests.support import netconf
from tests.support.errors import error_of

A = {"address": "10.1.2.5/24", "gateway": "10.1.2.1"}
V6 = {"address": "2001:DB8::5/64"}
NO_ADDRESS = "the 'address' field is expected to be in CIDR notation, got: "
NO_IP = "the 'ip' field is expected to be in CIDR notation, got: "
NO_ENTRY = "an entry in the 'ips' field is NOT in CIDR notation, got: "


def parse(*addresses, env="", version="1.1.0", ipam=None, **keys) -> StaticConf:
    whole = {"cniVersion": version, "ipam": {"addresses": list(addresses), **(ipam or {})}, **keys}
    parsed: StaticConf = netconf.parse("static", whole, CNI_ARGS=env)
    return parsed


def shown(parsed):
    return [" via ".join(filter(None, (str(ip.address), str(ip.gateway or "")))) for ip in parsed.ips]


def requesting(place, *texts):
    """Returns the keys of a configuration in which a runtime requests addresses."""
    return {"runtimeConfig": {"ips": list(texts)}} if place == "runtimeConfig" else {"args": {"cni": {"ips": [*texts]}}}


def refusal(*addresses, **options):
    return error_of(partial(parse, *addresses, **options), CniError)


@pytest.mark.parametrize("key", ["addresses", "Addresses", "ADDRESSES"])
@pytest.mark.parametrize("names", [("address", "gateway"), ("Address", "Gateway"), ("ADDRESS", "GATEWAY")])
def test_configured_addresses_are_unchanged(key, names):
    """Addresses keep order, host bits, prefix and gateway, and keys match in any case, even `Address`."""
    addresses = [dict(zip(names, ("10.1.2.5/24", "10.9.9.9"), strict=True)), {names[0]: "2001:DB8::5/64", names[1]: ""}]
    parsed = parse(ipam={key: [*addresses, {names[0]: "10.1.2.0/24"}, {names[0]: "::ffff:10.0.0.1/120"}]})
    assert shown(parsed) == ["10.1.2.5/24 via 10.9.9.9", "2001:db8::5/64", "10.1.2.0/24", "10.0.0.1/24"]
    assert all(ip.interface is None for ip in parsed.ips)


def test_routes_and_dns_are_unchanged():
    """Routes keep host bits, order, duplicates and every attribute; dns is kept."""
    full = {"dst": "10.9.0.1/16", "gw": "10.1.2.9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 0, "scope": 0}
    dns = {"nameservers": ["10.1.2.1"], "domain": "d", "search": ["s"], "options": ["o"]}
    parsed = parse(A, ipam={"routes": [full, {"dst": "::/0"}, full], "dns": dns})
    assert [str(route.dst) for route in parsed.routes] == ["10.9.0.1/16", "::/0", "10.9.0.1/16"]
    route = parsed.routes[0]
    assert (str(route.gw), route.mtu, route.advmss, route.priority, route.table, route.scope) == (
        *("10.1.2.9", 1400, 1300, 5),
        *(0, 0),
    )
    assert parsed.dns.to_json() == dns


def test_cni_args_add_addresses():
    """CNI_ARGS adds addresses after the network's, and gateways to its addresses of the same subnet."""
    env = "IP=10.1.2.6/24, 10.1.3.6/24 ,fd00::6/64;GATEWAY=10.1.2.3, 10.1.2.2,fd00::1,192.0.2.1"
    parsed = parse(A, V6, {"address": "10.1.2.7/24"}, env=env)
    assert shown(parsed) == [
        *("10.1.2.5/24 via 10.1.2.1", "2001:db8::5/64", "10.1.2.7/24"),
        *("10.1.2.6/24 via 10.1.2.2", "10.1.3.6/24", "fd00::6/64 via fd00::1"),
    ]
    assert shown(parse(A, env="IP=;GATEWAY=")) == shown(parse(A))


def test_later_sources_override_earlier_ones():
    """Addresses of args replace the network's and those of CNI_ARGS; addresses of the capability replace all."""
    env, by_args, by_runtime = (
        "IP=10.1.2.6/24",
        requesting("args", "10.1.2.7/24"),
        requesting("runtimeConfig", "10.1.2.8/24"),
    )
    assert shown(parse(A, env=env, **by_args)) == ["10.1.2.7/24"]
    assert shown(parse(A, env=env, **by_args, **by_runtime)) == ["10.1.2.8/24"]
    nothing = requesting("args") | requesting("runtimeConfig")
    assert shown(parse(A, env=env, **nothing)) == ["10.1.2.5/24 via 10.1.2.1", "10.1.2.6/24"]
    assert shown(parse(A, RuntimeConfig={"IPs": ["10.1.2.9/24"]})) == ["10.1.2.9/24"]


def test_replaced_addresses_are_not_checked():
    """A network's address that the runtime replaces may be invalid."""
    for place in ("args", "runtimeConfig"):
        assert shown(parse({"address": "x"}, {}, **requesting(place, "10.1.2.7/24"))) == ["10.1.2.7/24"]


@pytest.mark.parametrize(
    ("addresses", "options", "code", "msg"),
    [
        ([{"address": "x"}], {}, 7, NO_ADDRESS + "'x'"),
        ([{"address": "10.1.2.5"}], {}, 7, NO_ADDRESS + "'10.1.2.5'"),
        ([A, {"address": "10.1.2.5/33"}], {}, 7, NO_ADDRESS + "'10.1.2.5/33'"),
        ([{}], {}, 7, NO_ADDRESS + "''"),
        ([None], {}, 7, NO_ADDRESS + "''"),
        ([A], {"env": "IP=zz"}, 4, NO_IP + "'zz'"),
        ([A], {"env": "IP=10.1.2.5/24,"}, 4, NO_IP + "''"),
        ([A], {"env": "IP=zz", "runtimeConfig": {"ips": ["10.1.2.3/24"]}}, 4, NO_IP + "'zz'"),
        ([A], {"env": "GATEWAY=zz"}, 4, "invalid gateway address: zz"),
        ([A], {"env": "GATEWAY=10.1.2.1/24"}, 4, "invalid gateway address: 10.1.2.1/24"),
        ([A], {"env": "FOO=1"}, 4, 'ARGS: unknown args ["FOO=1"]'),
        ([A], requesting("args", "10.1.2.5"), 7, NO_ENTRY + "'10.1.2.5'"),
        ([A], requesting("runtimeConfig", "10.1.2.3/24", ""), 7, NO_ENTRY + "''"),
        ([A], {**requesting("args", "zz"), **requesting("runtimeConfig", "10.1.2.3/24")}, 7, NO_ENTRY + "'zz'"),
        ([{**A, "gateway": "x"}], {}, 7, 'failed to load netconf: "ipam.addresses[0].gateway" is not an IP address: x'),
        ([A], {"ipam": {"routes": [{"dst": "x"}]}}, 7, 'failed to load netconf: "ipam.routes[0].dst" is not an'),
        ([A], {"ipam": {"routes": [{"gw": "10.1.2.1"}]}}, 7, 'failed to load netconf: "ipam.routes[0].dst" is missing'),
    ],
)
def test_invalid_configuration_has_the_references_text(addresses, options, code, msg):
    """An invalid configuration has code 7, in CNI_ARGS 4, and the reference's text."""
    error = refusal(*addresses, **options)
    assert (error.code, error.msg[: len(msg)]) == (code, msg)


def test_missing_prefix_length_has_a_fix():
    """The details name the key, and contain the address with the usual prefix length."""
    places = {
        '"ipam.addresses[1].address"': {"addresses": [A, {"address": "10.1.2.5"}]},
        '"runtimeConfig.ips[0]"': requesting("runtimeConfig", "10.1.2.5"),
        '"args.cni.ips[0]"': requesting("args", "10.1.2.5"),
        "IP= in CNI_ARGS": {"env": "IP=10.1.2.5"},
    }
    for place, options in places.items():
        details = refusal(*options.pop("addresses", [A]), **options).details
        assert details.startswith(
            f"{place} lacks the prefix length of its subnet: write 10.1.2.5/24 if the subnet is a /24"
        )
    assert "write fd00::5/64 if the subnet is a /64" in refusal({"address": "FD00::5"}).details
    assert 'like "10.1.2.5/24"' in refusal({"address": "10.1.2.5/x"}).details


@pytest.mark.parametrize("runtime", [{}, requesting("runtimeConfig", "10.1.2.5/24"), requesting("args", "10.1.2.5/24")])
def test_missing_section_is_refused(runtime):
    """Without `ipam` the configuration is refused, even if the runtime requests addresses."""
    error = netconf.refusal("static", runtime, CNI_ARGS="IP=zz")
    assert (error.code, error.msg) == (7, "IPAM config missing 'ipam' key")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", ""])
def test_old_versions_have_one_address_per_family(version):
    """Before 0.3.0 a second address of a family is refused, with the version as written; one of each is permitted."""
    text = f"CNI version {version} does not support more than 1 address per family"
    assert refusal(A, A, version=version).msg == text
    assert refusal(V6, env="IP=fd00::1/64", version=version).msg == text
    assert shown(parse(V6, A, version=version)) == ["2001:db8::5/64", "10.1.2.5/24 via 10.1.2.1"]
    assert len(parse(A, A, version="0.3.0").ips) == 2
