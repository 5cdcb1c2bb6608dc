"""portmap as a chained plugin: what it takes from prevResult, hands on, refuses, and leaves alone."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.spec.configs import VERSIONS, prev_result
from tests.support import binaries, netstate
from tests.support.namespaces import Namespace
from tests.support.netstate import iptables_rules, nft_rules
from tests.support.running import environment, run_plugin

TCP = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
POD, HOST_END = {"name": "eth0", "sandbox": "/run/netns/x"}, {"name": "eth0"}
PREFIX = "failed to parse config: "

BACKENDS = pytest.mark.parametrize(
    "backend", ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
)


@dataclass(frozen=True)
class Portmap:
    """portmap behind an interface plugin whose result is `earlier`, with `keys` in its configuration."""

    host: Namespace
    sandbox: Namespace
    keys: dict[str, Any]

    def having(self, **keys: Any) -> Portmap:
        """Returns the same with other keys; None leaves a key out."""
        return replace(self, keys={**self.keys, **keys})

    def mapping(self, *mappings: dict[str, Any]) -> Portmap:
        """Returns the same with other host ports."""
        return self.having(runtimeConfig={"portMappings": list(mappings)})

    @property
    def config(self) -> dict[str, Any]:
        """The configuration."""
        return {key: value for key, value in self.keys.items() if value is not None}

    def __call__(self, command: str, **how: Any):
        """Runs a verb."""
        return run_plugin("portmap", command, self.config, **{"host": self.host, "netns": self.sandbox, **how})

    def rules(self) -> str:
        """Returns all rules of the host, of either kind."""
        tools = [iptables_rules(self.host, tool) for tool in ("iptables", "ip6tables")]
        return "\n".join([*tools[0], *tools[1], *nft_rules(self.host)])


@pytest.fixture
def portmap(bin_dir, host, sandbox):
    """An attachment with one host port; the pod's subnet is behind a bridge, so that there is a way to it."""
    host.ip("link", "add", "cni0", "type", "bridge")
    host.ip("address", "add", "10.1.2.1/24", "dev", "cni0")
    host.ip("link", "set", "cni0", "up")
    keys = {"cniVersion": "1.1.0", "name": "net", "type": "portmap", "prevResult": prev_result("1.1.0")}
    return Portmap(host, sandbox, keys).mapping(TCP)


def untouched(portmap):
    """Tells the host's whole state, to be compared."""
    return netstate.state(portmap.host, netfilter=True), portmap.host.sysctl("net/ipv4/conf/cni0/route_localnet")


@pytest.mark.parametrize(("command", "msg"), [("ADD", "must be called as chained plugin"), ("CHECK", "Required prev")])
def test_what_it_works_on_must_be_there(portmap, command, msg):
    """Without prevResult ADD and CHECK are refused with code 7 and the reference's text, with or without host ports."""
    before = untouched(portmap)
    for alone in (portmap.having(prevResult=None), portmap.having(prevResult=None, runtimeConfig=None)):
        error = alone(command).error()
        assert (error["code"], error["msg"].startswith(msg), bool(error["details"])) == (7, True, True)
    assert untouched(portmap) == before


@pytest.mark.parametrize("runtime_config", [None, {}, {"portMappings": None}, {"portMappings": []}])
def test_without_host_ports_nothing_is_done(portmap, runtime_config, tmp_path):
    """Without mappings ADD hands on prevResult, and neither it nor CHECK starts a process or touches netfilter."""
    idle = portmap.having(runtimeConfig=runtime_config)
    before, trace = untouched(portmap), tmp_path / "trace"
    names = {"CNI_CONTAINERID": "cid", "CNI_NETNS": portmap.sandbox.path, "CNI_IFNAME": "eth0"}
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
    wrong, before = portmap.mapping(TCP, TCP | mapping), untouched(portmap)
    added, checked = (wrong(command).error() for command in ("ADD", "CHECK"))
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
    assert own("ADD").result() == prev_result(version)
    assert "to 10.1.2.5:80" in own.rules() or "--to-destination 10.1.2.5:80" in own.rules()


@BACKENDS
def test_keys_as_containerd_writes_them(portmap, backend):
    """Mappings with capitalised keys and an empty HostIP make the same rules as those written as documented."""
    own = portmap.having(backend=backend)
    own("ADD").result()
    wanted = own.rules()
    own("DEL").silence()
    assert own.rules() != wanted
    own.mapping({"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""})("ADD").result()
    assert own.rules() == wanted


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
    own("ADD").result()
    assert f"10.1.2.{7 if taken else 9}:80" in own.rules()
    assert f"10.1.2.{9 if taken else 7}:80" not in own.rules()


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
    own("ADD", container_id="other").result()
    before = own.rules()
    own("ADD").result()
    assert own.rules() != before
    for _ in range(2):
        own.having(**keys)("DEL").silence()
        assert own.rules() == before


@BACKENDS
def test_del_without_a_namespace(portmap, backend):
    """DEL removes the host ports of a pod whose namespace is gone."""
    own = portmap.having(backend=backend)
    own("ADD", container_id="other").result()
    before = own.rules()
    own("ADD").result()
    portmap.sandbox.delete()
    own("DEL", netns=None).silence()
    assert own.rules() == before


@BACKENDS
def test_del_of_what_has_no_host_ports(portmap, backend):
    """DEL without mappings of a container that never had any succeeds and changes nothing, beside those that have."""
    own = portmap.having(backend=backend)
    own("ADD", container_id="other").result()
    before = own.rules()
    own.having(runtimeConfig=None)("DEL").silence()
    own("DEL").silence()
    assert own.rules() == before
    portmap.having(prevResult=None, runtimeConfig=None)("DEL", container_id="third").silence()
    assert own.rules() == before


@pytest.mark.needs("nft_nat")
@BACKENDS
def test_del_removes_what_the_other_backend_made(portmap, backend):
    """DEL of a network that uses the other backend by now removes the rules all the same."""
    other = {"iptables": "nftables", "nftables": "iptables"}[backend]
    own = portmap.having(backend=backend)
    own("DEL").silence()
    own("ADD").result()
    assert "10.1.2.5" in own.rules()
    own.having(backend=other)("DEL").silence()
    assert "10.1.2.5" not in own.rules()


@pytest.mark.parametrize(
    ("mappings", "said"),
    [
        ([{**TCP, "hostIP": "2001:db8::1"}], "host port [2001:db8::1]:8080/tcp: eth0 has no address for it"),
        ([TCP, {**TCP, "containerPort": 81}], "host port 8080/tcp is asked for twice"),
        ([TCP, {**TCP, "hostIP": "192.0.2.1", "containerPort": 81}], "host port 192.0.2.1:8080/tcp is asked for twice"),
        ([{**TCP, "hostIP": "192.0.2.1", "containerPort": 81}, TCP, {**TCP, "protocol": "udp"}], ""),
    ],
)
def test_what_leads_nowhere_is_told(portmap, mappings, said):
    """ADD tells on stderr of mappings that it takes, as the reference does, and that can never answer."""
    outcome = portmap.mapping(*mappings)("ADD")
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
    own = portmap.having(backend=backend, **{"cni.dev/valid-attachments": []})
    error = own(verb, bin_dir=tmp_path).error()
    assert "ermission" in error["msg"] + error.get("details", "") or "not permitted" in error["msg"]
