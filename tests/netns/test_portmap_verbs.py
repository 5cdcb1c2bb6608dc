"""portmap as a chained plugin: what it takes from prevResult, hands on, refuses, and leaves alone."""

import json
import subprocess
from dataclasses import replace

import pytest

from tests.spec.configs import VERSIONS
from tests.support import binaries, netstate
from tests.support.invocation import environment
from tests.support.netstate import iptables_rules, nft_rules
from tests.support.results import prev_result

TCP = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
POD, HOST_END = {"name": "eth0", "sandbox": "/run/netns/x"}, {"name": "eth0"}
PREFIX = "failed to parse config: "

BACKENDS = pytest.mark.parametrize(
    "backend", ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
)


def rules(portmap):
    """Returns all rules of the host, of either kind."""
    tools = [iptables_rules(portmap.host, tool) for tool in ("iptables", "ip6tables")]
    return "\n".join([*tools[0], *tools[1], *nft_rules(portmap.host)])


def mapped(portmap, *mappings):
    """Returns the same with other host ports, as they are written."""
    return portmap.having(runtimeConfig={"portMappings": list(mappings)})


@pytest.fixture
def portmap(host_ports, host, sandbox):
    """An attachment with one host port; the pod's subnet is behind a bridge, so that there is a way to it."""
    host.ip("link", "add", "cni0", "type", "bridge")
    host.ip("address", "add", "10.1.2.1/24", "dev", "cni0")
    host.ip("link", "set", "cni0", "up")
    own = replace(host_ports, netns=sandbox)
    return own.having("8080:80", cniVersion="1.1.0", prevResult=prev_result("1.1.0"))


def untouched(portmap):
    """Tells the host's whole state, to be compared."""
    return netstate.state(portmap.host, netfilter=True), portmap.host.sysctl("net/ipv4/conf/cni0/route_localnet")


@pytest.mark.parametrize(("command", "msg"), [("ADD", "must be called as chained plugin"), ("CHECK", "Required prev")])
def test_what_it_works_on_must_be_there(portmap, command, msg):
    """Without prevResult ADD and CHECK are refused with code 7 and the reference's text, with or without host ports."""
    before = untouched(portmap)
    for alone in (portmap.having(prevResult=None), portmap.without_result()):
        error = alone.run(command).error()
        assert (error["code"], error["msg"].startswith(msg), bool(error["details"])) == (7, True, True)
    assert untouched(portmap) == before


@pytest.mark.parametrize("runtime_config", [None, {}, {"portMappings": None}, {"portMappings": []}])
def test_without_host_ports_nothing_is_done(portmap, runtime_config, tmp_path):
    """Without mappings ADD hands on prevResult, and neither it nor CHECK starts a process or touches netfilter."""
    idle = portmap.having(runtimeConfig=runtime_config)
    before, trace = untouched(portmap), tmp_path / "trace"
    names = {"CNI_CONTAINERID": "cid", "CNI_NETNS": portmap.netns.path, "CNI_IFNAME": "eth0"}
    for command in ("ADD", "CHECK"):
        with portmap.host.entered():
            line = ["strace", "-f", "-o", str(trace), "-e", "trace=execve,fork,vfork,clone,clone3,socket"]
            done = subprocess.run(
                [*line, str(binaries.directory() / "portmap")],
                input=json.dumps(idle.config).encode(),
                env=environment(command, CNI_PATH=str(binaries.directory()), **names),
                capture_output=True,
                timeout=60,
                check=True,
            )
        assert done.stdout == b"" if command == "CHECK" else json.loads(done.stdout) == prev_result("1.1.0")
        assert trace.read_text().count("execve(") == 1
        assert not any(call in trace.read_text() for call in ("fork(", "clone(", "clone3(", "NETLINK_NETFILTER"))
    assert untouched(portmap) == before


@pytest.mark.parametrize(
    ("mapping", "msg"),
    [
        ({"hostPort": 0}, "Invalid host port number: 0"),
        ({"hostPort": -1}, "Invalid host port number: -1"),
        ({"hostPort": 65536}, "Invalid host port number: 65536"),
        ({"containerPort": 0}, "Invalid container port number: 0"),
        ({"containerPort": 65536}, "Invalid container port number: 65536"),
        ({"protocol": "icmp"}, '"runtimeConfig.portMappings[1].protocol" is unknown: "icmp"'),
        ({"hostIP": "10.1.2"}, '"runtimeConfig.portMappings[1].hostIP" is not an IP address: 10.1.2'),
    ],
)
def test_wrong_mappings_are_refused(portmap, mapping, msg):
    """What is no port, protocol or address is code 7 with the path of its key, before anything has changed."""
    wrong, before = mapped(portmap, TCP, TCP | mapping), untouched(portmap)
    added, checked = (wrong.run(command).error() for command in ("ADD", "CHECK"))
    assert (added["code"], checked["code"]) == (7, 7)
    assert added["msg"] == PREFIX + checked["msg"]
    assert checked["msg"].removeprefix("failed to parse network configuration: ") == msg
    assert f"runtimeConfig.portMappings[1].{next(iter(mapping))}" in json.dumps(added)
    assert untouched(portmap) == before


@BACKENDS
@pytest.mark.parametrize("version", VERSIONS)
def test_the_result_is_the_earlier_plugins(portmap, backend, version):
    """ADD prints prevResult as it is, in the configuration's version."""
    own = portmap.having(cniVersion=version, backend=backend, prevResult=prev_result(version))
    assert own.run("ADD").result() == prev_result(version)
    assert "to 10.1.2.5:80" in rules(own) or "--to-destination 10.1.2.5:80" in rules(own)


@BACKENDS
def test_keys_as_containerd_writes_them(portmap, backend):
    """Mappings with capitalised keys and an empty HostIP make the same rules as those written as documented."""
    own = portmap.having(backend=backend)
    own.add()
    wanted = rules(own)
    own.delete()
    assert rules(own) != wanted
    mapped(own, {"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}).add()
    assert rules(own) == wanted


@BACKENDS
@pytest.mark.parametrize(
    ("interfaces", "index", "taken"),
    [
        ([HOST_END, POD], 1, True),
        ([HOST_END, POD], 0, False),
        ([POD | {"name": "net1"}, POD], 0, False),
        ([POD], None, True),
        ([], None, True),
        ([POD], 7, True),
        ([POD], -1, True),
    ],
)
def test_the_address_is_that_of_the_attachments_interface(portmap, backend, interfaces, index, taken):
    """The first address counts whose interface is CNI_IFNAME in the sandbox, or may be for all that is said."""
    first = {"address": "10.1.2.7/24", **({} if index is None else {"interface": index})}
    result = {"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [first, {"address": "10.1.2.9/24"}]}
    own = portmap.having(backend=backend, prevResult=result)
    own.add()
    assert f"10.1.2.{7 if taken else 9}:80" in rules(own)
    assert f"10.1.2.{9 if taken else 7}:80" not in rules(own)


@BACKENDS
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"prevResult": None},
        {"prevResult": 5},
        {"prevResult": {"cniVersion": "0.2.0"}},
        # What iptables-legacy made is looked for only where there were mappings: that takes the host's lock.
        pytest.param({"runtimeConfig": None}, marks=pytest.mark.needs("iptables_nft_nat")),
        {"runtimeConfig": {"portMappings": [{"hostPort": -1}]}},
        {"runtimeConfig": {"portMappings": "x"}},
        {"snat": "no", "backend": "x", "markMasqBit": 99, "conditionsV4": 5},
        {"snat": False, "masqAll": True},
        {"cniVersion": "0.4.0", "prevResult": None},
    ],
)
def test_del_whatever_the_configuration_has_become(portmap, backend, keys):
    """DEL removes the host ports, and again does nothing, without prevResult or mappings and with wrong keys."""
    own = portmap.having(backend=backend)
    own.add("other")
    before = rules(own)
    own.add()
    assert rules(own) != before
    for _ in range(2):
        own.having(**keys).delete()
        assert rules(own) == before


@BACKENDS
def test_del_without_a_namespace(portmap, backend):
    """DEL removes the host ports of a pod whose namespace is gone."""
    own = portmap.having(backend=backend)
    own.add("other")
    before = rules(own)
    own.add()
    portmap.netns.delete()
    own.delete(netns=None)
    assert rules(own) == before


@BACKENDS
def test_del_of_what_has_no_host_ports(portmap, backend):
    """DEL without mappings of a container that never had any succeeds and changes nothing, beside those that have."""
    own = portmap.having(backend=backend)
    own.add("other")
    before = rules(own)
    own.having(runtimeConfig=None).delete()
    own.delete()
    assert rules(own) == before
    portmap.without_result().delete("third")
    assert rules(own) == before


@pytest.mark.needs("nft_nat")
@BACKENDS
def test_del_removes_what_the_other_backend_made(portmap, backend):
    """DEL of a network that uses the other backend by now removes the rules all the same."""
    other = {"iptables": "nftables", "nftables": "iptables"}[backend]
    own = portmap.having(backend=backend)
    own.delete()
    own.add()
    assert "10.1.2.5" in rules(own)
    own.having(backend=other).delete()
    assert "10.1.2.5" not in rules(own)


@pytest.mark.parametrize(
    ("mappings", "said"),
    [
        (["2001:db8::1|8080:80"], "host port [2001:db8::1]:8080/tcp: eth0 has no address for it"),
        (["8080:80", "8080:81"], "host port 8080/tcp is requested twice"),
        (["8080:80", "192.0.2.1|8080:81"], "host port 192.0.2.1:8080/tcp is requested twice"),
        (["192.0.2.1|8080:81", "8080:80", "8080:80/udp"], ""),
    ],
)
def test_what_leads_nowhere_is_told(portmap, mappings, said):
    """ADD tells on stderr of mappings that it takes, as the reference does, and that can never answer."""
    outcome = portmap.having(*mappings).run("ADD")
    outcome.result()
    assert said in outcome.stderr if said else not outcome.stderr


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL", "GC", "STATUS"])
@BACKENDS
def test_without_privilege(portmap, backend, verb, tmp_path):
    """Who lacks CAP_NET_ADMIN is told so at once, by every verb."""
    wrapper = tmp_path / "portmap"
    program = binaries.directory() / "portmap"
    wrapper.write_text(f"#!/bin/sh\nexec setpriv --bounding-set=-net_admin --inh-caps=-net_admin {program}\n")
    wrapper.chmod(0o755)
    own = replace(portmap.having(backend=backend, **{"cni.dev/valid-attachments": []}), bin_dir=tmp_path)
    error = own.run(verb).error()
    assert "not permitted" in error["msg"] or "iptables-restore" in error["msg"]  # legacy's program has its own words
