"""static's configuration: sources of addresses, the reference's errors, and the fix for a missing prefix length."""

from functools import partial

import pytest

from cni.errors import CniError
from ipam.static.conf import StaticConf
from tests.support import netconf
from tests.support.errors import error_of

A = {"address": "10.1.2.5/24", "gateway": "10.1.2.1"}
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
        ([A, {"address": "10.1.2.5/33"}], {}, 7, NO_ADDRESS + "'10.1.2.5/33'"),
        ([None], {}, 7, NO_ADDRESS + "''"),
        ([A], {"env": "IP=zz"}, 4, NO_IP + "'zz'"),
        ([A], {"env": "IP=zz", "runtimeConfig": {"ips": ["10.1.2.3/24"]}}, 4, NO_IP + "'zz'"),
        ([A], {"env": "GATEWAY=10.1.2.1/24"}, 4, "invalid gateway address: 10.1.2.1/24"),
        ([A], requesting("runtimeConfig", "10.1.2.3/24", ""), 7, NO_ENTRY + "''"),
        ([A], {**requesting("args", "zz"), **requesting("runtimeConfig", "10.1.2.3/24")}, 7, NO_ENTRY + "'zz'"),
        ([{**A, "gateway": "x"}], {}, 7, 'failed to load netconf: "ipam.addresses[0].gateway" is not an IP address: x'),
        ([A], {"ipam": {"routes": [{"dst": "x"}]}}, 7, 'failed to load netconf: "ipam.routes[0].dst" is not an'),
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
