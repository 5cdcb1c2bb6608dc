"""Fixtures of the tests on the real kernel: a bridge network, and one whose IPAM does as told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.netns import Netns, entered
from tests.support import binaries, scripted_ipam, xtables
from tests.support.attaching import Network
from tests.support.bandwidth_network import BOTH, BandwidthNetwork
from tests.support.firewall_tables import Firewall
from tests.support.hostports import DUAL, PortmapNetwork
from tests.support.namespaces import Namespace
from tests.support.publishing import PublishingNetwork, connect, disable_dad
from tests.support.tool import PORTMAP, Tool
from tests.support.tuning_network import Tuning

IPV4 = [{"subnet": "10.22.0.0/16"}]
IPV6 = [{"subnet": "fd00:22::/64"}]

# Both variants of iptables, as parameters of `tools`.
NFT = pytest.param("nft", marks=pytest.mark.needs("iptables_nft_nat"))
LEGACY = pytest.param("legacy", marks=pytest.mark.needs("iptables_legacy_nat"))
NFTABLES = pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet"))  # as a backend of all plugins


@pytest.fixture
def network(bin_dir: Path, host: Namespace, store: Path) -> Network:
    """An IPv4 network with default gateway and host-local, as the README's first example has it."""
    return Network(
        host,
        {
            "cniVersion": "1.0.0",
            "name": "net",
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": True,
            "ipam": {"type": "host-local", "ranges": [IPV4], "dataDir": str(store)},
        },
    )


@pytest.fixture
def dual_network(network: Network) -> Network:
    """The same with an IPv6 range beside the IPv4 one."""
    return network.having(ipam={**network.config["ipam"], "ranges": [IPV4, IPV6]})


@pytest.fixture
def routed(bin_dir: Path, host: Namespace, store: Path) -> Network:
    """A dual-stack network of ptp with host-local and an IPv4 default route."""
    ranges = [[{"subnet": "10.23.0.0/24"}], [{"subnet": "fd00:23::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(store)}
    return Network(host, {"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": ipam})


@pytest.fixture
def published(dual_network: Network) -> PublishingNetwork:
    """A dual-stack, masqueraded network as conf/10 has it, with portmap behind bridge."""
    disable_dad(dual_network.host)
    return PublishingNetwork(dual_network.having(ipMasq=True, hairpinMode=True))


@pytest.fixture
def shaped(network: Network) -> BandwidthNetwork:
    """The IPv4 network with bandwidth behind bridge, which limits both directions."""
    return BandwidthNetwork(network).with_runtime_limits(**BOTH)


@pytest.fixture
def tuning(bin_dir: Path, host: Namespace, tmp_path: Path) -> Tuning:
    """A network's tuning that does nothing yet, with a data directory that does not exist yet."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "tuning", "dataDir": str(tmp_path / "tuning")}
    return Tuning(host, config)


@pytest.fixture
def client(host: Namespace, new_sandbox: Callable[[], Namespace]) -> Namespace:
    """A machine beside the host, without a route to the pods' networks."""
    namespace = new_sandbox()
    disable_dad(namespace)
    connect(host, namespace)
    return namespace


@pytest.fixture
def bridged(host: Namespace) -> Namespace:
    """The host with a bridge that an administrator made, `cni0`, as the kernel makes one: without VLAN filtering."""
    host.ip("link", "add", "cni0", "type", "bridge")
    return host


@pytest.fixture
def netfilter(host: Namespace) -> Iterator[NftSocket]:
    """A netfilter socket on the host."""
    with Netns(host.path) as namespace:
        with entered(namespace):
            inner = nft.open_socket()
        with inner:
            yield inner


@pytest.fixture
def scripted_network(network: Network, tmp_path: Path) -> Callable[..., Network]:
    """A function that makes the network with an IPAM plugin that answers what it is told, or runs what it is told.

    Its calls are noted: `scripted_ipam.ScriptedIpam(tmp_path / "ipam").calls()`.
    """

    def make(
        ips: list[Any] | None = None, *, body: str = "", keys: dict[str, Any] | None = None, **rest: Any
    ) -> Network:
        version = (keys or {}).get("cniVersion", "1.0.0")
        answer = {"cniVersion": version, "ips": ips or [], **rest}
        scripted_ipam.install(tmp_path / "ipam", answer, body)
        changed = network.having(ipam={"type": scripted_ipam.NAME}, **(keys or {}))
        return Network(changed.host, changed.config, path=f"{tmp_path / 'ipam'}:{binaries.directory()}")

    return make


@pytest.fixture
def ipam_calls(tmp_path: Path) -> Callable[[], list[str]]:
    """The commands that the scripted IPAM plugin was run with so far."""
    return scripted_ipam.ScriptedIpam(tmp_path / "ipam").calls


@pytest.fixture
def host_ports(bin_dir: Path, host: Namespace) -> PortmapNetwork:
    """A network with portmap for dual-stack pods; whether and with which backend they have ports is for the test."""
    return PortmapNetwork(host, {"cniVersion": "1.0.0", "name": "net", "type": "portmap"}).having(addresses=DUAL)


@pytest.fixture(params=[NFT, LEGACY])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory where iptables and its company are of one variant."""
    return xtables.variant(tmp_path / request.param, request.param)


@pytest.fixture
def iptables_ports(host_ports: PortmapNetwork, tools: Path) -> PortmapNetwork:
    """The same with iptables, whose programs are of each variant."""
    return replace(host_ports.having(backend="iptables"), tools=tools)


@pytest.fixture
def firewall(bin_dir: Path, bridged: Namespace, tools: Path) -> Firewall:
    """A network with firewall and iptables, of each variant, for dual-stack pods on bridge `cni0`."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables"}
    return Firewall(bridged, config, tools=tools).pod(*DUAL)


@pytest.fixture
def tool(bin_dir: Path, host: Namespace, tmp_path: Path) -> Tool:
    """The tool on a host with a network of bridge and portmap."""
    made = Tool(host, tmp_path)
    made.configure(made.bridge(ipMasq=True), PORTMAP)
    return made
