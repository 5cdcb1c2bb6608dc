"""Two networks with the same container and interface name: verbs of one network keep the other unchanged."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import bandwidth_network, netstate
from tests.support.attaching import BOOKKEEPING
from tests.support.machine import eventually
from tests.support.namespaces import Namespace, delete_and_wait
from tests.support.netlist import NetworkList, Run, runner
from tests.support.publishing import disable_dad

BACKENDS = [
    pytest.param("iptables", marks=pytest.mark.needs("iptables_nft_nat", "ifb", "tbf")),
    pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet", "ifb", "tbf")),
]
CONTAINER = "same"


class Net:
    """A network with all plugins, number 1 or 2 on its host, with one container."""

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
        # The name of one network is a prefix of the other's.
        self.list = NetworkList("net" + "2" * (number - 1), "1.1.0", (bridge, portmap, bandwidth, firewall, tuning))
        self.list = self.list.with_capabilities(portMappings=mappings, bandwidth=bandwidth_network.BOTH)

    def run(self, pod: Namespace | None) -> Run:
        """Returns a function that runs a verb of a plugin for the container in `pod`."""
        return runner(self.host, pod, ifname="eth0", container_id=CONTAINER)

    def add(self, pod: Namespace) -> dict[str, Any]:
        """Runs ADD of the network for the container."""
        return self.list.add(self.run(pod))

    def gc(self, *ifnames: str) -> None:
        """Runs GC of every plugin; the container's interfaces `ifnames` are valid."""
        self.list.collect(self.run(None), [{"containerID": CONTAINER, "ifname": ifname} for ifname in ifnames])


@pytest.fixture(params=BACKENDS)
def nets(request, host, store):
    disable_dad(host)
    return [Net(number, host, store, request.param) for number in (1, 2)]


def read_state(nets: list[Net]) -> dict[str, Any]:
    """Returns all state that the plugins create on the host."""
    host = nets[0].host
    whole = netstate.state(host, netfilter=True)
    whole["links"] = {name: link for name, link in whole["links"].items() if link.get("ifalias") or "veth" in name}
    files = [str(path) for path in nets[0].store.rglob("*") if path.is_file() and path.name not in BOOKKEEPING]
    return {"net": whole, "limits": bandwidth_network.state(host), "leases and backups": sorted(files)}


@pytest.fixture
def used_nets(nets, new_sandbox):
    """Both networks after ADD and DEL of a pod each, so that the shared objects exist."""
    for net in nets:
        pod = new_sandbox()
        net.list.delete(net.run(pod), net.add(pod))
    return nets


@pytest.mark.parametrize("way", ["DEL", "DEL without namespace", "GC"])
def test_del_and_gc_of_one_network_keep_the_other(used_nets, new_sandbox, way):
    """DEL and GC of one network change nothing of the other network's attachment with the same names."""
    first, second = used_nets
    running, deleted = new_sandbox(), new_sandbox()
    kept = second.add(running)
    before = read_state(used_nets)
    result = first.add(deleted)
    assert read_state(used_nets) != before
    if way == "GC":
        first.list.check(first.run(deleted), result)
        first.gc("eth0")
        first.list.check(first.run(deleted), result)
        delete_and_wait(deleted, first.host)
        first.gc()
    else:
        first.list.delete(first.run(deleted if way == "DEL" else None), result)
        deleted.delete()
    assert eventually(lambda: read_state(used_nets) == before)
    second.list.check(second.run(running), kept)


def test_gc_continues_after_an_error(used_nets, new_sandbox):
    """If addresses cannot be released, GC removes everything else, and the error names the file."""
    net, _ = used_nets
    before = read_state(used_nets)
    net.add(pod := new_sandbox())
    delete_and_wait(pod, net.host)
    lock = net.store / net.list.name / "lock"
    lock.unlink()
    lock.mkdir()
    bridge, *chained = net.list.plugins
    error = net.run(None)("bridge", "GC", net.list.collection(bridge, ())).error()
    assert (error["code"], str(lock) in error["details"]) == (5, True)
    for plugin in chained:
        net.run(None)(plugin["type"], "GC", net.list.collection(plugin, ())).assert_silent()
    after = read_state(used_nets)
    assert (after["net"], after["limits"]) == (before["net"], before["limits"])
    lock.rmdir()
    net.gc()
    assert read_state(used_nets) == before


def test_restarted_container(used_nets, new_sandbox):
    """After a lost DEL, a container with the same ID gets each object once, and its DEL removes all of them."""
    net, _ = used_nets
    before = read_state(used_nets)
    net.add(first := new_sandbox())
    first_state = read_state(used_nets)
    delete_and_wait(first, net.host)
    for file in (net.store / net.list.name).iterdir():  # as host-local does if the cache lists a missing namespace
        if file.name not in BOOKKEEPING:
            file.unlink()
    result = net.add(second := new_sandbox())
    second_state = read_state(used_nets)
    for part in ("net", "limits"):
        assert len(second_state[part]["links"]) == len(first_state[part]["links"])
    net.list.check(net.run(second), result)
    net.list.delete(net.run(second), result)
    assert read_state(used_nets) == before
