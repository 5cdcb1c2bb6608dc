"""The sample configurations in conf/: each is run through the verbs as a runtime would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.bandwidth_network import BOTH, qdiscs
from tests.support.binaries import ROOT
from tests.support.invocation import run_plugin
from tests.support.netlist import NetworkList, Run
from tests.support.tcp import PORT, serving, source_address

FILES = sorted((ROOT / "conf").glob("*.conflist"))
HOST_PORT = 8000
OUTSIDE = {4: ("192.0.2.1", "192.0.2.2", 24), 6: ("2001:db8::1", "2001:db8::2", 64)}  # the host's, the caller's


def samples(capability: str = ""):
    """Runs a test for each sample, or each with a capability, but not for those that cannot be used on this kernel."""
    found = [path for path in FILES if capability in path.read_text()]
    needs = {path: [pytest.mark.needs(*needed(path))] for path in found}
    return pytest.mark.parametrize("path", [pytest.param(path, marks=needs[path], id=path.stem) for path in found])


def needed(path: Path) -> list[str]:
    """Returns what a sample needs of the kernel: nothing special but for nftables and limits."""
    return ["nft_nat"] * ("nftables" in path.stem) + ["ifb", "tbf"] * ("bandwidth" in path.read_text())


def load(path: Path, store: Path) -> NetworkList:
    """Reads a sample, its leases redirected to `store`.

    Its pods have limits and one host port, another one in each sample.
    """
    mapping = {"hostPort": HOST_PORT + FILES.index(path), "containerPort": PORT, "protocol": "tcp"}
    network = NetworkList.load(path).asking(portMappings=[mapping], bandwidth=BOTH)
    for plugin in network.plugins:
        if "ipam" in plugin:
            plugin["ipam"]["dataDir"] = str(store)
        if plugin["type"] == "tuning":
            plugin["dataDir"] = str(store.with_name("tuning"))
    return network


def runner(host, sandbox, network: NetworkList) -> Run:
    """Returns what runs a plugin for one attachment of `sandbox`."""
    ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"

    def run(plugin, command, config):
        return run_plugin(plugin, command, config, host=host, netns=sandbox, ifname=ifname, container_id=sandbox.name)

    return run


def leases(store: Path) -> set[str]:
    """Returns the addresses that are reserved in all networks' stores; lock and the like are no addresses."""
    return {path.name for path in store.glob("[!.]*/*") if path.name[0].isdigit() or ":" in path.name}


def state(host):
    """Returns the host's state; the guard of a pod's own interface stays until the next is made, which has its name."""
    return json.loads(re.sub(r"veth[0-9a-f]{8}", "PORT", json.dumps(netstate.state(host, netfilter=True))))


@samples()
def test_sample_serves_every_verb(path, bin_dir, host, sandbox, store):
    """Each file in conf/ takes an attachment through ADD, CHECK and DEL and is then as before."""
    network = load(path, store)
    run = runner(host, sandbox, network)
    bridges = {plugin["bridge"] for plugin in network.plugins if "bridge" in plugin}

    # The first attachment leaves what stays by design: the bridge on the host, a queue on the sandbox's lo.
    network.delete(run, network.add(run))
    assert set(netstate.links(host)) == {"lo", *bridges}
    assert set(netstate.links(sandbox)) == {"lo"}

    before = state(host), netstate.state(sandbox)
    result = network.add(run)
    assert result["cniVersion"] == network.cni_version
    leased = any(plugin.get("ipam", {}).get("type") == "host-local" for plugin in network.plugins)
    assert leases(store) == ({ip["address"].partition("/")[0] for ip in result["ips"]} if leased else set())
    assert netstate.state(sandbox) != before[1]
    network.check(run, result)
    network.delete(run, result)
    assert (state(host), netstate.state(sandbox)) == before
    assert leases(store) == set()


@samples("portMappings")
def test_host_ports_lead_to_the_pod(path, bin_dir, host, sandbox, new_sandbox, store):
    """A pod of a sample that has host ports is called from elsewhere by the host's addresses, of each family."""
    network, outside = load(path, store), new_sandbox()
    run, port = runner(host, sandbox, network), HOST_PORT + FILES.index(path)
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", outside.name)
    result = network.add(run)
    for namespace, end in ((host, 0), (outside, 1)):
        for *ends, prefix in OUTSIDE.values():
            namespace.ip("address", "add", f"{ends[end]}/{prefix}", "dev", "up0", "nodad")
        namespace.ip("link", "set", "up0", "up")
    addresses = [ip["address"].partition("/")[0] for ip in result["ips"]]
    for pod in addresses:
        own, caller, _ = OUTSIDE[6 if ":" in pod else 4]
        assert reaches(outside, own)  # it takes a second until IPv6 can be used on a new link
        assert reaches(host, pod)
        with serving(sandbox, pod):
            assert source_address(outside, own, port) == caller


@samples("portMappings")
def test_host_ports_lead_to_the_pod_from_the_host_itself(path, bin_dir, host, sandbox, store):
    """The host calls the pod at 127.0.0.1 and the host port."""
    network = load(path, store)
    pod = network.add(runner(host, sandbox, network))["ips"][0]["address"].partition("/")[0]
    with serving(sandbox, pod):
        assert source_address(host, "127.0.0.1", HOST_PORT + FILES.index(path))


def test_a_pod_that_asks_for_its_address_has_the_routes_of_the_sample(bin_dir, host, sandbox, new_sandbox, store):
    """The static sample's route leads over the gateway, whether file or runtime chose the address."""
    network, other = load(ROOT / "conf" / "80-static.conflist", store), new_sandbox()
    asking = network.asking(ips=["10.28.0.9/16"])
    for pod, listed in ((sandbox, network), (other, asking)):
        listed.add(runner(host, pod, listed))
        assert pod.ip("route", "show", "10.29.0.0/16").strip() == "10.29.0.0/16 via 10.28.0.1 dev eth0"


@samples("bandwidth")
def test_limits_are_set(path, bin_dir, host, sandbox, store):
    """A pod of a sample that has limits gets those that the runtime passes on, and is free without any."""
    network = load(path, store)
    run = runner(host, sandbox, network)
    free = network.asking()
    result = free.add(run)
    assert qdiscs(host) == []
    free.delete(run, result)
    result = network.add(run)
    names = [item["name"] for item in result["interfaces"]]
    outside, ifb = next(name for name in names if name.startswith("veth")), names[-1]
    for name, rate in ((outside, "8Mbit"), (ifb, "16Mbit")):
        assert any(f"tbf 1: root rate {rate} " in line.replace(f"dev {name} ", "") for line in qdiscs(host, name))


@pytest.mark.needs("nft_nat", "ifb", "tbf")
def test_samples_can_be_used_side_by_side(bin_dir, host, sandbox, new_sandbox, store):
    """All files in conf/ serve one host at a time, since neither their names nor their bridges and subnets collide."""
    networks = [load(path, store) for path in FILES]
    assert len({network.name for network in networks}) == len(networks)
    attachments = [(network, runner(host, new_sandbox(), network)) for network in networks]
    results = [network.add(run) for network, run in attachments]
    for (network, run), result in zip(attachments, results, strict=True):
        network.check(run, result)
    for (network, run), result in zip(attachments, results, strict=True):
        network.delete(run, result)
    assert leases(store) == set()


def test_there_is_nothing_in_conf_that_is_not_run():
    """Every file in conf/ is a list that the tests above run, or the README that names each of them."""
    others = {path for path in (ROOT / "conf").iterdir() if path not in FILES}
    assert others == {ROOT / "conf" / "README.md"}
    readme = (ROOT / "conf" / "README.md").read_text()
    assert [path.name for path in FILES if path.name not in readme] == []


def test_the_first_sample_is_the_pod_network():
    """A runtime that takes the first file of the directory takes the network `podwire`."""
    assert NetworkList.load(FILES[0]).name == "podwire"
