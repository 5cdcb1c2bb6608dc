"""portmap as a chained plugin: prevResult, refused configurations, and DEL with incomplete input."""

from dataclasses import replace

import pytest

from tests.support import netstate
from tests.support.netstate import iptables_rules, nft_rules
from tests.support.results import prev_result

TCP = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
NFTABLES = pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))
BACKENDS = pytest.mark.parametrize("backend", ["iptables", NFTABLES])


def rules(portmap):
    """Returns all rules of the host, of iptables and nftables."""
    tools = [iptables_rules(portmap.host, tool) for tool in ("iptables", "ip6tables")]
    return "\n".join([*tools[0], *tools[1], *nft_rules(portmap.host)])


@pytest.fixture
def portmap(host_ports, host, sandbox):
    """An attachment with one host port; the node has a route to the pod's subnet over a bridge."""
    host.ip("link", "add", "cni0", "type", "bridge")
    host.ip("address", "add", "10.1.2.1/24", "dev", "cni0")
    host.ip("link", "set", "cni0", "up")
    net = replace(host_ports, netns=sandbox)
    return net.having("8080:80", cniVersion="1.1.0", prevResult=prev_result("1.1.0"))


def host_state(portmap):
    """Returns the state of the host that portmap can change."""
    return netstate.state(portmap.host, netfilter=True), portmap.host.sysctl("net/ipv4/conf/cni0/route_localnet")


@pytest.mark.parametrize(("command", "msg"), [("ADD", "must be called as chained plugin"), ("CHECK", "Required prev")])
def test_missing_prev_result_is_refused(portmap, command, msg):
    """Without prevResult ADD and CHECK fail with code 7 and the reference plugin's text, with or without mappings."""
    before = host_state(portmap)
    for variant in (portmap.having(prevResult=None), portmap.without_result()):
        error = variant.run(command).error()
        assert (error["code"], error["msg"].startswith(msg), bool(error["details"])) == (7, True, True)
    assert host_state(portmap) == before


@pytest.mark.parametrize("runtime_config", [None, {}, {"portMappings": None}, {"portMappings": []}])
def test_without_host_ports_nothing_is_done(portmap, runtime_config, tmp_path):
    """Without mappings ADD returns prevResult, and ADD and CHECK start no process and open no netfilter socket."""
    without_ports = portmap.having(runtimeConfig=runtime_config)
    before, trace = host_state(portmap), tmp_path / "trace"
    strace = ("strace", "-f", "-o", str(trace), "-e", "trace=execve,fork,vfork,clone,clone3,socket")
    for command in ("ADD", "CHECK"):
        outcome = without_ports.run(command, before=strace)
        assert outcome.stdout == b"" if command == "CHECK" else outcome.result() == prev_result("1.1.0")
        assert trace.read_text().count("execve(") == 1
        assert not any(call in trace.read_text() for call in ("fork(", "clone(", "clone3(", "NETLINK_NETFILTER"))
    assert host_state(portmap) == before


def test_invalid_mappings_are_refused(portmap):
    """An invalid mapping is refused with code 7 and the path of its key, and nothing is changed."""
    mappings = [TCP, TCP | {"hostPort": 0}]
    invalid, before = portmap.having(runtimeConfig={"portMappings": mappings}), host_state(portmap)
    for command, prefix in (("ADD", "failed to parse config: "), ("CHECK", "")):
        error = invalid.run(command).error()
        assert (error["code"], error["msg"]) == (7, f"{prefix}Invalid host port number: 0")
        assert "runtimeConfig.portMappings[1].hostPort" in error["details"]
    assert host_state(portmap) == before


@BACKENDS
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"prevResult": None},
        {"prevResult": 5},
        {"prevResult": {"cniVersion": "0.2.0"}},
        # DEL reads iptables-legacy only if there were mappings, since that takes the host's lock.
        pytest.param({"runtimeConfig": None}, marks=pytest.mark.needs("iptables_nft_nat")),
        {"runtimeConfig": {"portMappings": [{"hostPort": -1}]}},
        {"runtimeConfig": {"portMappings": "x"}},
        {"snat": "no", "backend": "x", "markMasqBit": 99, "conditionsV4": 5},
        {"snat": False, "masqAll": True},
        {"cniVersion": "0.4.0", "prevResult": None},
        {"netns": None},
        {"netns": "/run/netns/absent"},
    ],
)
def test_del_with_any_configuration(portmap, backend, keys):
    """DEL, also repeated or without ADD, removes the host ports, whatever the configuration and the namespace are."""
    options = {"netns": keys["netns"]} if "netns" in keys else {}
    net = portmap.having(backend=backend)
    net.add("other")
    before = rules(net)
    for is_added in (False, True, False):
        if is_added:
            net.add()
            assert rules(net) != before
        net.having(**keys).delete(**options)
        assert rules(net) == before


@pytest.mark.needs("nft_nat")
@BACKENDS
def test_del_removes_rules_of_the_other_backend(portmap, backend):
    """DEL removes the rules if the network's backend was changed after ADD."""
    other = {"iptables": "nftables", "nftables": "iptables"}[backend]
    net = portmap.having(backend=backend)
    net.delete()
    net.add()
    assert "10.1.2.5" in rules(net)
    net.having(backend=other).delete()
    assert "10.1.2.5" not in rules(net)


@pytest.mark.parametrize(
    ("mappings", "warning"),
    [
        (["2001:db8::1|8080:80"], "host port [2001:db8::1]:8080/tcp: eth0 has no address for it"),
        (["8080:80", "8080:81"], "host port 8080/tcp is requested twice"),
        (["8080:80", "192.0.2.1|8080:81"], "host port 192.0.2.1:8080/tcp is requested twice"),
        (["192.0.2.1|8080:81", "8080:80", "8080:80/udp"], ""),
    ],
)
def test_mappings_without_effect_are_reported(portmap, mappings, warning):
    """ADD accepts mappings without effect, as the reference plugin does, and reports them on stderr."""
    outcome = portmap.having(*mappings).run("ADD")
    outcome.result()
    assert warning in outcome.stderr if warning else not outcome.stderr
