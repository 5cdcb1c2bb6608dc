"""static without a process: sources of addresses, the reference's errors, and CHECK, DEL and STATUS."""

from functools import partial
from typing import Any

import pytest

from cni.errors import CniError
from ipam.static.conf import StaticConf
from ipam.static.main import PLUGIN
from tests.support import netconf as support
from tests.support.errors import error_of
from tests.support.netconf import arguments, netconf

ADDRESS = {"address": "10.1.2.5/24", "gateway": "10.1.2.1"}
V6 = {"address": "fd00::5/64"}
TEXT = "static: Failed to match addr 10.1.2.5 on interface eth0"
NO_ADDRESS = "the 'address' field is expected to be in CIDR notation, got: "
NO_IP = "the 'ip' field is expected to be in CIDR notation, got: "
NO_ENTRY = "an entry in the 'ips' field is NOT in CIDR notation, got: "


def refusal(call, *args, **options) -> CniError:
    return error_of(partial(call, *args, **options), CniError)


def parse(*addresses, env="", version="1.1.0", ipam=None, **keys) -> StaticConf:
    whole = {"cniVersion": version, "ipam": {"addresses": list(addresses), **(ipam or {})}, **keys}
    parsed: StaticConf = support.parse("static", whole, CNI_ARGS=env)
    return parsed


def shown(parsed):
    return [" via ".join(filter(None, (str(ip.address), str(ip.gateway or "")))) for ip in parsed.ips]


def requesting(place, *texts):
    """Returns the keys of a configuration in which a runtime requests addresses."""
    return {"runtimeConfig": {"ips": list(texts)}} if place == "runtimeConfig" else {"args": {"cni": {"ips": [*texts]}}}


def test_later_sources_override_earlier_ones():
    """Addresses of args replace the network's and those of CNI_ARGS; addresses of the capability replace all."""
    env, by_args = "IP=10.1.2.6/24", requesting("args", "10.1.2.7/24")
    by_runtime = requesting("runtimeConfig", "10.1.2.8/24")
    assert shown(parse(ADDRESS, env=env, **by_args)) == ["10.1.2.7/24"]
    assert shown(parse(ADDRESS, env=env, **by_args, **by_runtime)) == ["10.1.2.8/24"]
    nothing = requesting("args") | requesting("runtimeConfig")
    assert shown(parse(ADDRESS, env=env, **nothing)) == ["10.1.2.5/24 via 10.1.2.1", "10.1.2.6/24"]
    assert shown(parse(ADDRESS, RuntimeConfig={"IPs": ["10.1.2.9/24"]})) == ["10.1.2.9/24"]


def test_replaced_addresses_are_not_checked():
    """ADDRESS network's address that the runtime replaces may be invalid."""
    for place in ("args", "runtimeConfig"):
        assert shown(parse({"address": "x"}, {}, **requesting(place, "10.1.2.7/24"))) == ["10.1.2.7/24"]


@pytest.mark.parametrize(
    ("addresses", "options", "code", "msg"),
    [
        ([{"address": "x"}], {}, 7, NO_ADDRESS + "'x'"),
        ([ADDRESS, {"address": "10.1.2.5/33"}], {}, 7, NO_ADDRESS + "'10.1.2.5/33'"),
        ([None], {}, 7, NO_ADDRESS + "''"),
        ([ADDRESS], {"env": "IP=zz"}, 4, NO_IP + "'zz'"),
        ([ADDRESS], {"env": "IP=zz", "runtimeConfig": {"ips": ["10.1.2.3/24"]}}, 4, NO_IP + "'zz'"),
        ([ADDRESS], {"env": "GATEWAY=10.1.2.1/24"}, 4, "invalid gateway address: 10.1.2.1/24"),
        ([ADDRESS], requesting("runtimeConfig", "10.1.2.3/24", ""), 7, NO_ENTRY + "''"),
        ([ADDRESS], {**requesting("args", "zz"), **requesting("runtimeConfig", "10.1.2.3/24")}, 7, NO_ENTRY + "'zz'"),
        (
            [{**ADDRESS, "gateway": "x"}],
            {},
            7,
            'failed to load netconf: "ipam.addresses[0].gateway" is not an IP address: x',
        ),
        ([ADDRESS], {"ipam": {"routes": [{"dst": "x"}]}}, 7, 'failed to load netconf: "ipam.routes[0].dst" is not an'),
    ],
)
def test_invalid_configuration_has_the_references_text(addresses, options, code, msg):
    """An invalid configuration has code 7, in CNI_ARGS 4, and the reference's text."""
    error = refusal(parse, *addresses, **options)
    assert (error.code, error.msg[: len(msg)]) == (code, msg)


def test_missing_prefix_length_has_a_fix():
    """The details name the key, and contain the address with the usual prefix length."""
    places = {
        '"ipam.addresses[1].address"': {"addresses": [ADDRESS, {"address": "10.1.2.5"}]},
        '"runtimeConfig.ips[0]"': requesting("runtimeConfig", "10.1.2.5"),
        '"args.cni.ips[0]"': requesting("args", "10.1.2.5"),
        "IP= in CNI_ARGS": {"env": "IP=10.1.2.5"},
    }
    for place, options in places.items():
        details = refusal(parse, *options.pop("addresses", [ADDRESS]), **options).details
        assert details.startswith(
            f"{place} lacks the prefix length of its subnet: write 10.1.2.5/24 if the subnet is a /24"
        )
    assert "write fd00::5/64 if the subnet is a /64" in refusal(parse, {"address": "FD00::5"}).details
    assert 'like "10.1.2.5/24"' in refusal(parse, {"address": "10.1.2.5/x"}).details


def check(existing, addresses=(ADDRESS, V6), env="", **keys):
    """Runs CHECK with a prevResult that has the `existing` addresses."""
    previous = {} if existing is None else {"prevResult": {"cniVersion": "1.1.0", "ips": list(existing)}}
    conf = netconf("static", {"ipam": {"addresses": list(addresses)}, **previous, **keys})
    PLUGIN.cmd_check(arguments(CNI_ARGS=env), conf)


def test_check_accepts_the_addresses_of_add():
    """CHECK accepts the addresses of ADD, with gateways that bridge added, and besides other addresses."""
    check([ADDRESS, V6])
    check([{"address": "10.9.9.9/8", "gateway": "10.0.0.1"}, {**V6, "gateway": "fd00::1"}, {**ADDRESS, "interface": 2}])
    check([], addresses=[])
    check([{**ADDRESS, "gateway": None}, ADDRESS, V6])  # one of two is right


@pytest.mark.parametrize(
    ("existing", "details"),
    [
        ([V6], "prevResult does not have 10.1.2.5/24"),
        ([{**ADDRESS, "address": "10.1.2.5/16"}, V6], "prevResult has 10.1.2.5/16, the configuration 10.1.2.5/24"),
        ([{**ADDRESS, "gateway": "10.1.2.2"}, V6], "prevResult has gateway 10.1.2.2, the configuration 10.1.2.1"),
        ([{"address": "10.1.2.5/24"}, V6], "prevResult has gateway none, the configuration 10.1.2.1"),
    ],
)
def test_check_reports_differences(existing, details):
    """CHECK reports an address that is missing or has another prefix length or gateway, with the reference's text."""
    error = refusal(check, existing)
    assert (error.code, error.msg, error.details) == (999, TEXT, details)


def test_check_requires_the_requested_addresses():
    """CHECK compares the runtime's addresses instead of the network's, and those of CNI_ARGS in addition."""
    check([{"address": "10.1.2.9/24"}], runtimeConfig={"ips": ["10.1.2.9/24"]})
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], runtimeConfig={"ips": ["10.1.2.9/24"]}).msg
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], args={"cni": {"ips": ["10.1.2.9/24"]}}).msg
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], env="IP=10.1.2.9/24").msg


def test_replaceable_addresses_may_be_absent():
    """With the capability `ips` ADD may have had other addresses, so CHECK compares only existing ones."""
    capability: dict[str, Any] = {"capabilities": {"ips": True}}
    check([{"address": "10.1.2.9/24"}], **capability)
    assert refusal(check, [{**ADDRESS, "gateway": "10.1.2.2"}], **capability).msg == TEXT
    requested: dict[str, Any] = {"runtimeConfig": {"ips": ["10.1.2.9/24"]}}
    assert "addr 10.1.2.9 " in refusal(check, [ADDRESS, V6], **capability, **requested).msg
    assert refusal(check, [{"address": "10.1.2.9/24"}], capabilities={"ips": False}).msg == TEXT


@pytest.mark.parametrize("ipam", [None, "x", {"addresses": [{"address": "10.1.2.5"}]}, {"routes": [{}]}])
def test_status_of_an_invalid_configuration(ipam):
    """STATUS of a configuration that ADD refuses has code 50, with the message and details of ADD."""
    status = PLUGIN.cmd_status
    assert status
    conf = netconf("static", {"ipam": ipam})
    add_error, status_error = (refusal(verb, arguments(), conf) for verb in (PLUGIN.cmd_add, status))
    assert (status_error.code, status_error.msg, status_error.details) == (50, add_error.msg, add_error.details)


def test_status_accepts_a_configuration_for_the_runtime():
    """STATUS succeeds if only the runtime has addresses, and does not read CNI_ARGS."""
    assert PLUGIN.cmd_status
    sections: list[dict[str, Any]] = [{}, {"addresses": []}, {"addresses": [ADDRESS, V6]}]
    for ipam in sections:
        PLUGIN.cmd_status(arguments(CNI_ARGS="FOO"), netconf("static", {"ipam": ipam}))
