"""Two networks with the same container and interface: what is done to one leaves the other as it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import bandwidth_network, netstate
from tests.support.invocation import run_plugin
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.publishing import disable_dad

BACKENDS = [
    pytest.param("iptables", marks=pytest.mark.needs("iptables_nft_nat", "ifb", "tbf")),
    pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet", "ifb", "tbf")),
]
CONTAINER = "same"


class Net:
    """A network with everything, number 1 or 2 on its host, and its one container."""

    def __init__(self, number: int, host: Namespace, store: Path, backend: str, path: str = "") -> None:
        ranges = [[{"subnet": f"10.{number}.0.0/16"}], [{"subnet": f"fd00:{number}::/64"}]]
        bridge = {
            "type": "bridge",
            "bridge": f"cni{number}",
            "isGateway": True,
            "ipMasq": True,
            "ipMasqBackend": backend,
            "macspoofchk": True,
            "ipam": {"type": "host-local", "dataDir": str(store), "ranges": ranges},
        }
        portmap = {"type": "portmap", "backend": backend, "capabilities": {"portMappings": True}}
        bandwidth = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
        firewall = {"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"}
        tuning = {"type": "tuning", "mtu": 1400, "dataDir": str(store / f"tuning{number}")}
        mappings = [{"hostPort": 8000 + number, "containerPort": 80, "protocol": "tcp"}]
        self.host, self.store = host, store
        # The one's name begins like the other's.
        self.name = "net" + "2" * (number - 1)
        self.list = NetworkList(self.name, "1.1.0", (bridge, portmap, bandwidth, firewall, tuning)).asking(
            portMappings=mappings, bandwidth=bandwidth_network.BOTH
        )

    def run(self, pod: Namespace | None, ifname: str = "eth0") -> Any:
        """Returns what runs a plugin for the container in `pod`."""
        return lambda plugin, command, config: run_plugin(
            plugin, command, config, host=self.host, netns=pod, ifname=ifname, container_id=CONTAINER
        )

    def add(self, pod: Namespace) -> dict[str, Any]:
        """Attaches the container."""
        return self.list.add(self.run(pod))

    def gc(self, *valid: tuple[str, str], key: bool = True) -> str:
        """Has every plugin collect garbage and returns what they said on stderr."""
        said = []
        listed = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        for plugin in self.list.plugins:
            config = {**plugin, "name": self.name, "cniVersion": "1.1.0"}
            outcome = run_plugin(
                plugin["type"], "GC", config | ({"cni.dev/valid-attachments": listed} if key else {}), host=self.host
            )
            outcome.assert_silent()
            said.append(outcome.stderr)
        return "".join(said)

    def leases(self) -> list[str]:
        """Returns the reserved addresses."""
        names = (path.name for path in (self.store / self.name).iterdir())
        return sorted(name for name in names if name[0].isdigit() or ":" in name)

    def backups(self) -> list[str]:
        """Returns tuning's files and notes."""
        return sorted(str(path) for path in self.store.rglob("*.json"))


@pytest.fixture(params=BACKENDS)
def nets(request, host, store):
    disable_dad(host)
    return [Net(number, host, store, request.param) for number in (1, 2)]


def everything(nets: list[Net]) -> dict[str, Any]:
    """Returns all that the plugins make on the host."""
    host = nets[0].host
    whole = netstate.state(host, netfilter=True)
    whole["links"] = {name: link for name, link in whole["links"].items() if link.get("ifalias") or "veth" in name}
    return {
        "net": whole,
        "limits": bandwidth_network.state(host),
        "leases": [net.leases() for net in nets],
        "backups": nets[0].backups(),
    }


def vanish(host: Namespace, pod: Namespace) -> None:
    """Ends a pod without DEL, and waits until the kernel has taken its interface's other end away."""
    left = len(netstate.links(host)) - ("eth0" in netstate.links(pod))
    pod.delete()
    until = time.monotonic() + 10
    while len(netstate.links(host)) > left:
        assert time.monotonic() < until, "the other end is still there"
        time.sleep(0.01)


@pytest.fixture
def inhabited(nets, new_sandbox):
    """Both networks, each of which has had a pod: what stays by design is there."""
    for net in nets:
        pod = new_sandbox()
        net.list.delete(net.run(pod), net.add(pod))
    return nets


@pytest.mark.parametrize("how", ["DEL", "DEL without namespace", "GC"])
def test_what_is_taken_from_one_is_left_to_the_other(inhabited, new_sandbox, how):
    """DEL and GC of one network leave the other's attachment of the same container and interface name complete."""
    first, second = inhabited
    living, leaving = new_sandbox(), new_sandbox()
    kept = second.add(living)
    before = everything(inhabited)
    result = first.add(leaving)
    assert everything(inhabited) != before
    if how == "GC":
        first.list.check(first.run(leaving), result)
        first.gc((CONTAINER, "eth0"))
        first.list.check(first.run(leaving), result)
        vanish(first.host, leaving)
        first.gc()
    else:
        first.list.delete(first.run(leaving if how == "DEL" else None), result)
        vanish(first.host, leaving)
    assert everything(inhabited) == before
    second.list.check(second.run(living), kept)


def test_gc_without_the_key_changes_nothing_and_each_plugin_says_so(inhabited, new_sandbox):
    """Without cni.dev/valid-attachments nothing is removed, neither by the plugin nor by the IPAM plugin behind it."""
    net, _ = inhabited
    result = net.add(pod := new_sandbox())
    before = everything(inhabited)
    said = net.gc(key=False)
    assert everything(inhabited) == before
    assert [line.partition(":")[0] for line in said.splitlines()] == [plugin["type"] for plugin in net.list.plugins]
    net.list.check(net.run(pod), result)


def test_gc_collects_errors_and_goes_on(inhabited, new_sandbox):
    """Where the addresses cannot be released the rest goes all the same, and the error names what is in the way."""
    net, _ = inhabited
    before = everything(inhabited)
    net.add(pod := new_sandbox())
    vanish(net.host, pod)
    lock = net.store / net.name / "lock"
    lock.unlink()
    lock.mkdir()
    bridge, *chained = net.list.plugins
    config = {**bridge, "name": net.name, "cniVersion": "1.1.0", "cni.dev/valid-attachments": None}
    error = run_plugin("bridge", "GC", config, host=net.host).error()
    assert (error["code"], str(lock) in error["details"]) == (5, True)
    for plugin in chained:
        config = {**plugin, "name": net.name, "cniVersion": "1.1.0", "cni.dev/valid-attachments": None}
        run_plugin(plugin["type"], "GC", config, host=net.host).assert_silent()
    after = everything(inhabited)
    assert (after["net"], after["limits"]) == (before["net"], before["limits"])
    lock.rmdir()
    net.gc()
    assert everything(inhabited) == before


def test_a_container_that_starts_anew_has_what_one_has(inhabited, new_sandbox):
    """After its namespace went without DEL, a container with the same id gets all of it once, and leaves nothing."""
    net, _ = inhabited
    before = everything(inhabited)
    net.add(first := new_sandbox())
    once = everything(inhabited)
    vanish(net.host, first)
    for name in net.leases():  # as host-local does when the runtime's cache knows of the namespace that is gone
        (net.store / net.name / name).unlink()
    result = net.add(second := new_sandbox())
    again = everything(inhabited)
    for part in ("net", "limits"):
        assert len(again[part]["links"]) == len(once[part]["links"])
    net.list.check(net.run(second), result)
    net.list.delete(net.run(second), result)
    assert everything(inhabited) == before
