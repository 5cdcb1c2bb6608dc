"""The configuration of firewall as a value (plugins.firewall.conf)."""

import json
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni import args as cni_args
from cni import conf as cni_conf
from cni.errors import CniError
from plugins.firewall.conf import FirewallConf, parse, parse_leniently
from plugins.firewall.spec import FirewallSpec
from tests.support.errors import failure_of
from tests.support.results import prev_result
from tests.unit.test_bridge_conf import ENV, JSON

KEYS = ["backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy", "prevResult"]
ARGS = cni_args.from_env(ENV)
BRIDGE = {"name": "cni0"}


def netconf(keys):
    return cni_conf.parse(json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "firewall", **keys}).encode())


def result(*interfaces):
    """Returns a result with an address of each version, one of them twice, and these interfaces."""
    body = prev_result("1.1.0", "10.22.0.2/16", "10.22.0.2/24", "fd00:22::2/64")
    ips = [{key: value for key, value in ip.items() if key != "interface"} for ip in body["ips"]]
    return {**body, "interfaces": list(interfaces), "ips": ips}


def parsed(**keys):
    conf = netconf(keys)
    return parse(ARGS, conf, conf.prev_result())


def error(**keys):
    with pytest.raises(CniError) as caught:
        parsed(**keys)
    assert (caught.value.code, bool(caught.value.details)) == (7, True)
    return caught.value


def test_defaults():
    """Nothing but a result means an open policy, the reference's names, and whichever backend works."""
    addresses = ip_address("10.22.0.2"), ip_address("fd00:22::2")
    spec = FirewallSpec("net", ARGS.container_id, ARGS.ifname, addresses)
    assert parsed(prevResult=result(BRIDGE)) == FirewallConf(spec, "")
    assert (spec.policy, spec.admin_chain, spec.zone, spec.versions) == ("open", "CNI-ADMIN", "trusted", [4, 6])


@pytest.mark.parametrize("empty", ["", None])
def test_empty_is_the_default(empty):
    """An empty text is as good as none."""
    keys = dict.fromkeys(("backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy"), empty)
    assert parsed(**keys, prevResult=result()) == parsed(prevResult=result())


@pytest.mark.parametrize("backend", ["iptables", "nftables", "firewalld"])
def test_what_is_asked_for(backend):
    """Backend, policy with its bridge, chain and zone are taken as they are, whatever the case of the keys."""
    own = parsed(
        Backend=backend, ingresspolicy="isolated", iptablesAdminChainName="MINE", firewalldZone="work",
        prevResult=result(BRIDGE, {"name": "eth0", "sandbox": "/x"}),
    )  # fmt: skip
    found = own.spec
    assert (own.backend, found.policy, found.bridge) == (backend, "isolated", "cni0")
    assert (found.admin_chain, found.zone) == ("MINE", "work")


def test_an_unknown_backend_is_told(capsys):
    """A backend that there is none of means any that works, as with the reference, and that is said."""
    assert parsed(backend="ufw").backend == ""
    assert "'ufw' is none of" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy"])
@pytest.mark.parametrize("value", [1, True, [], {}])
def test_types_are_strict(key, value):
    """Another type than text is refused with the key."""
    assert f'"{key}"' in error(**{key: value}).msg


@pytest.mark.parametrize(
    "name", ["a" * 29, "-x", "!x", "a b", 'a"b', "a'b", "a\\b", "a\nb", "a\x01", "ü", "ACCEPT", "CNI-FORWARD"]
)
def test_names_of_chains(name):
    """What iptables would not take for one word, and names that are taken, are refused."""
    assert '"iptablesAdminChainName"' in error(iptablesAdminChainName=name).msg


def test_a_policy_without_addresses_needs_no_interface():
    """Where there is no address nothing is to be done, so that no interface is asked for."""
    assert parsed(ingressPolicy="isolated", prevResult={**result(), "ips": []}).spec.bridge == ""


@pytest.mark.parametrize("interfaces", [(), ({"name": "eth0", "sandbox": "/x"},), ({"name": ""},)])
def test_a_policy_needs_an_interface_of_the_host(interfaces):
    """The first interface must be one of the host, with a name."""
    failure = error(ingressPolicy="same-bridge", prevResult=result(*interfaces))
    assert "make sure to chain" in failure.msg + failure.details


@pytest.mark.parametrize("name", ["a" * 16, "a b", "a/b", "..", "a\0b", "%d"])
@pytest.mark.parametrize("policy", ["same-bridge", "isolated"])
def test_names_that_no_interface_has(name, policy):
    """A policy is not made for a name that the kernel would cut, or not take; such a port is nobody's."""
    failure = error(ingressPolicy=policy, prevResult=result({"name": name}))
    assert repr(name) in failure.msg
    assert parsed(ingressPolicy=policy, prevResult=result(BRIDGE, {"name": name})).spec.ports == ()


def test_del_reads_what_can_be_read():
    """DEL takes addresses, the first interface of the host and the zone, whatever else is wrong."""
    own = parse_leniently(ARGS, netconf({"ingressPolicy": 5, "firewalldZone": "work", "prevResult": result(BRIDGE)}))
    assert (len(own.addresses), own.bridge, own.zone) == (2, "cni0", "work")
    broken = parse_leniently(ARGS, netconf({"firewalldZone": 5, "prevResult": {"ips": 5}}))
    assert (broken.addresses, broken.bridge, broken.zone) == ((), "", "trusted")


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_configuration_gives_a_value_or_an_error(keys):
    """Whatever the configuration holds, there is a value or a CniError with code 7, and DEL always gets a value."""
    conf = netconf(keys)
    parse_leniently(ARGS, conf)
    failure = failure_of(lambda: parse(ARGS, conf, conf.prev_result()), CniError)
    assert failure is None or failure.code == 7
