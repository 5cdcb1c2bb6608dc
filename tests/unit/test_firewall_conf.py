"""Parsing of firewall's configuration (plugins.firewall.conf)."""

from ipaddress import ip_address

import pytest

from plugins.firewall.conf import FirewallConf, parse_leniently
from plugins.firewall.spec import FirewallSpec
from tests.support.netconf import arguments, netconf, parse, refusal
from tests.support.results import prev_result

ARGS = arguments()
BRIDGE = {"name": "cni0"}


def result(*interfaces):
    """Returns a result with these interfaces and an address of each IP version, the IPv4 one twice."""
    body = prev_result("1.1.0", "10.22.0.2/16", "10.22.0.2/24", "fd00:22::2/64")
    ips = [{key: value for key, value in ip.items() if key != "interface"} for ip in body["ips"]]
    return {**body, "interfaces": list(interfaces), "ips": ips}


def parse_keys(**keys):
    return parse("firewall", keys)


def parse_error(**keys):
    failure = refusal("firewall", keys)
    assert (failure.code, bool(failure.details)) == (7, True)
    return failure


def test_defaults():
    """Without any key the policy is open, the names are the reference plugin's, and the backend is automatic."""
    addresses = ip_address("10.22.0.2"), ip_address("fd00:22::2")
    spec = FirewallSpec("net", ARGS.container_id, ARGS.ifname, addresses)
    assert parse_keys(prevResult=result(BRIDGE)) == FirewallConf(spec, "")
    assert (spec.policy, spec.admin_chain, spec.zone, spec.versions) == ("open", "CNI-ADMIN", "trusted", [4, 6])


@pytest.mark.parametrize("empty", ["", None])
def test_empty_values_mean_the_default(empty):
    """An empty string or null means the same as a missing key."""
    keys = dict.fromkeys(("backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy"), empty)
    assert parse_keys(**keys, prevResult=result()) == parse_keys(prevResult=result())


def test_unknown_backend_is_reported(capsys):
    """An unknown backend selects one automatically, as in the reference plugin, with a message on stderr."""
    assert parse_keys(backend="ufw").backend == ""
    assert "'ufw' is not one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["a" * 29, "-x", "!x", "a b", 'a"b', "a'b", "a\\b", "a\nb", "a\x01", "ü", "ACCEPT", "CNI-FORWARD"]
)
def test_invalid_chain_names(name):
    """Chain names that iptables does not read as one word, or that are already in use, are refused."""
    assert '"iptablesAdminChainName"' in parse_error(iptablesAdminChainName=name).msg


def test_unknown_policy():
    """An unknown policy is refused with the reference plugin's text."""
    assert parse_error(ingressPolicy="closed").msg == 'unknown ingress policy: "closed"'


def test_invalid_zone_name():
    """A zone's name with a NUL, at which the bus would disconnect, is refused."""
    assert '"firewalldZone"' in parse_error(firewalldZone="a\0b").msg


def test_a_policy_without_addresses_needs_no_interface():
    """Without addresses there is nothing to do, and no interface is required."""
    assert parse_keys(ingressPolicy="isolated", prevResult={**result(), "ips": []}).spec.bridge == ""


@pytest.mark.parametrize("interfaces", [(), ({"name": "eth0", "sandbox": "/x"},)])
def test_a_policy_needs_an_interface_of_the_host(interfaces):
    """A policy is refused with the reference plugin's text if prevResult's first interface is not the host's."""
    demand = 'interface needs to be set for ingress policy "{}", make sure to chain "firewall" plugin with "bridge"'
    for policy in ("same-bridge", "isolated"):
        failure = parse_error(ingressPolicy=policy, prevResult=result(*interfaces))
        assert failure.msg == demand.format(policy)


@pytest.mark.parametrize("name", ["", "a" * 16, "a b", "a/b", "..", "a\0b", "%d"])
@pytest.mark.parametrize("policy", ["same-bridge", "isolated"])
def test_invalid_interface_names(name, policy):
    """A policy is refused for a bridge name that the kernel truncates or refuses; such a port is ignored."""
    failure = parse_error(ingressPolicy=policy, prevResult=result({"name": name}))
    assert (repr(name) if name else "got empty bridge name") in failure.msg + failure.details
    assert parse_keys(ingressPolicy=policy, prevResult=result(BRIDGE, {"name": name})).spec.ports == ()


def test_del_ignores_invalid_keys():
    """DEL reads addresses, the first interface of the host and the zone, whatever else is invalid."""
    spec = parse_leniently(
        ARGS, netconf("firewall", {"ingressPolicy": 5, "firewalldZone": "work", "prevResult": result(BRIDGE)})
    )
    assert (len(spec.addresses), spec.bridge, spec.zone) == (2, "cni0", "work")
    for zone in (5, "a\0b"):
        broken = parse_leniently(ARGS, netconf("firewall", {"firewalldZone": zone, "prevResult": {"ips": 5}}))
        assert (broken.addresses, broken.bridge, broken.zone) == ((), "", "trusted")
