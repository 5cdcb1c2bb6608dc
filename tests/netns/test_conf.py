"""Each sample of conf/ works with every verb, as a runtime runs them."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import dhcp, dhcp_node, kernels, netstate
from tests.support.attaching import reaches
from tests.support.bandwidth_network import BOTH, qdiscs
from tests.support.binaries import ROOT
from tests.support.invocation import run_plugin
from tests.support.netlist import NetworkList, Run
from tests.support.samples import FILES, list_features
from tests.support.tcp import PORT, serving, source_address

HOST_PORT = 8000
UPLINK = {4: ("192.0.2.1", "192.0.2.2", 24), 6: ("2001:db8::1", "2001:db8::2", 64)}  # the host's, the client's


def samples(capability: str = ""):
    """Parametrizes a test with each sample, or each with a capability, that this kernel supports."""
    paths = [path for path in FILES if capability in path.read_text()]
    needs = {path: [pytest.mark.needs(*list_features(path))] for path in paths}
    return pytest.mark.parametrize("path", [pytest.param(path, marks=needs[path], id=path.stem) for path in paths])


def load(path: Path, store: Path) -> NetworkList:
    """Reads a sample, with its reservations in `store`, and the socket and leases of dhcp beside it.

    Its pods have limits and a host port, which differs between samples.
    """
    mapping = {"hostPort": HOST_PORT + FILES.index(path), "containerPort": PORT, "protocol": "tcp"}
    network = NetworkList.load(path).with_capabilities(portMappings=[mapping], bandwidth=BOTH)
    for plugin in network.plugins:
        if dhcp_node.uses_dhcp(plugin):
            plugin["ipam"] |= dhcp.ipam_keys(store.with_name("dhcp"))
        elif "ipam" in plugin:
            plugin["ipam"]["dataDir"] = str(store)
        if plugin["type"] in ("host-device", "tuning"):
            plugin["dataDir"] = str(store.with_name(plugin["type"]))
    return network


@pytest.fixture
def prepare(host, store) -> Iterator[Any]:
    """A function that prepares the host for lists, until the test ends, and returns the names of their interfaces."""
    with ExitStack() as stack:
        yield lambda *networks: stack.enter_context(dhcp_node.prepared(host, networks, store.with_name("dhcp")))


def runner(host, sandbox, network: NetworkList) -> Run:
    """Returns a function that runs a plugin for one attachment of `sandbox`."""
    ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"

    def run(plugin, command, config):
        return run_plugin(plugin, command, config, host=host, netns=sandbox, ifname=ifname, container_id=sandbox.name)

    return run


def leases(store: Path) -> set[str]:
    """Returns the reserved addresses in all networks' stores, without other files."""
    return {path.name for path in store.glob("[!.]*/*") if path.name[0].isdigit() or ":" in path.name}


def state(host):
    """Returns the host's state; a random veth name is replaced, since the guard of ptp's last host veth stays."""
    return json.loads(re.sub(r"veth[0-9a-f]{8}", "PORT", json.dumps(netstate.state(host, netfilter=True))))


@samples()
def test_sample_serves_every_verb(path, bin_dir, host, sandbox, store, prepare):
    """Each sample works with ADD, CHECK and DEL, which restores the state."""
    network = load(path, store)
    run = runner(host, sandbox, network)
    staying = {plugin["bridge"] for plugin in network.plugins if "bridge" in plugin}
    staying |= prepare(network)

    # The first attachment leaves what stays by design: the bridge on the host, a queue on the sandbox's lo.
    network.delete(run, network.add(run))
    assert set(netstate.links(host)) == {"lo", *staying}
    assert set(netstate.links(sandbox)) == {"lo"}

    before = state(host), netstate.state(sandbox)
    result = network.add(run)
    assert result["cniVersion"] == network.cni_version
    has_leases = any(plugin.get("ipam", {}).get("type") == "host-local" for plugin in network.plugins)
    assert leases(store) == ({ip["address"].partition("/")[0] for ip in result["ips"]} if has_leases else set())
    assert netstate.state(sandbox) != before[1]
    network.check(run, result)
    network.delete(run, result)
    assert (state(host), netstate.state(sandbox)) == before
    assert leases(store) == set()


@samples("portMappings")
def test_host_ports_are_forwarded_to_the_pod(path, bin_dir, host, sandbox, new_sandbox, store):
    """A client reaches the pod of each sample with host ports by the host's address of each family."""
    network, client = load(path, store), new_sandbox()
    run, port = runner(host, sandbox, network), HOST_PORT + FILES.index(path)
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", client.name)
    result = network.add(run)
    for namespace, end in ((host, 0), (client, 1)):
        for *ends, prefix in UPLINK.values():
            namespace.ip("address", "add", f"{ends[end]}/{prefix}", "dev", "up0", "nodad")
        namespace.ip("link", "set", "up0", "up")
    addresses = [ip["address"].partition("/")[0] for ip in result["ips"]]
    for pod in addresses:
        host_ip, client_ip, _ = UPLINK[6 if ":" in pod else 4]
        assert reaches(client, host_ip)  # a new link can use IPv6 only after a second
        assert reaches(host, pod)
        with serving(sandbox, pod):
            assert source_address(client, host_ip, port) == client_ip


@samples("bandwidth")
def test_limits_are_set(path, bin_dir, host, sandbox, store):
    """A pod of a sample with limits has those of the runtime, and without any from the runtime it has none."""
    network = load(path, store)
    run = runner(host, sandbox, network)
    free = network.with_capabilities()
    result = free.add(run)
    assert qdiscs(host) == []
    free.delete(run, result)
    result = network.add(run)
    names = [item["name"] for item in result["interfaces"]]
    host_veth, ifb = next(name for name in names if name.startswith("veth")), names[-1]
    for name, rate in ((host_veth, "8Mbit"), (ifb, "16Mbit")):
        assert any(f"tbf 1: root rate {rate} " in line.replace(f"dev {name} ", "") for line in qdiscs(host, name))


def test_samples_can_be_used_together(bin_dir, host, sandbox, new_sandbox, store, prepare):
    """All samples that this kernel supports work on one host: their names, bridges and subnets do not conflict."""
    networks = [load(path, store) for path in FILES if not kernels.lacking(list_features(path))]
    assert len({network.name for network in networks}) == len(networks)
    prepare(*networks)
    attachments = [(network, runner(host, new_sandbox(), network)) for network in networks]
    results = [network.add(run) for network, run in attachments]
    for (network, run), result in zip(attachments, results, strict=True):
        network.check(run, result)
    for (network, run), result in zip(attachments, results, strict=True):
        network.delete(run, result)
    assert leases(store) == set()


def test_every_file_in_conf_is_tested():
    """Every file in conf/ is a list that the tests above run, or the README, which names each of them."""
    others = {path for path in (ROOT / "conf").iterdir() if path not in FILES}
    assert others == {ROOT / "conf" / "README.md"}
    readme = (ROOT / "conf" / "README.md").read_text()
    assert [path.name for path in FILES if path.name not in readme] == []


def test_first_sample_is_the_pod_network():
    """A runtime that uses the first file of the directory uses the network `podwire`."""
    assert NetworkList.load(FILES[0]).name == "podwire"
