"""Fixtures of the tests on the real kernel: networks of each plugin, and one with a scripted IPAM plugin."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.policy.filter import PolicyFilter
from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Socket
from tests.support import binaries, scripted_ipam, single_link, uplink, xtables
from tests.support.attaching import Network
from tests.support.bandwidth_network import BOTH, BandwidthNetwork, connect_veth
from tests.support.bare_plugin import DUAL
from tests.support.cluster import Cluster, cluster
from tests.support.doctor_node import DoctorNode
from tests.support.firewall_tables import Firewall
from tests.support.host_device_network import create_device, dual_stack
from tests.support.hostports import PortmapNetwork
from tests.support.namespaces import Namespace
from tests.support.policy_packets import PacketNode, packet_node
from tests.support.publishing import PublishingNetwork, connect, disable_dad
from tests.support.sbr_network import Sbr
from tests.support.tool import PORTMAP, Tool
from tests.support.tuning_network import Tuning
from tests.support.vrf_network import VrfNetwork

IPV4 = [{"subnet": "10.22.0.0/16"}]
IPV6 = [{"subnet": "fd00:22::/64"}]

# Both variants of iptables, as parameters of `tools`.
NFT = pytest.param("nft", marks=pytest.mark.needs("iptables_nft_nat"))
LEGACY = pytest.param("legacy", marks=pytest.mark.needs("iptables_legacy_nat"))
MACVLAN = pytest.param("macvlan", marks=pytest.mark.needs("macvlan"))
IPVLAN, *IPVLAN_L3 = (pytest.param(f"ipvlan {mode}", marks=pytest.mark.needs("ipvlan")) for mode in ("l2", "l3", "l3s"))
NFTABLES = pytest.param("nftables", marks=pytest.mark.needs("nft_nat", "nft_inet"))  # as a backend of all plugins


@pytest.fixture
def network(bin_dir: Path, host: Namespace, store: Path) -> Network:
    """An IPv4 network with default gateway and host-local, as in README's first example."""
    ipam = {"type": "host-local", "ranges": [IPV4], "dataDir": str(store)}
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "ipam": ipam}
    return Network(host, {"cniVersion": "1.0.0", "name": "net", **bridge})


@pytest.fixture
def dual_network(network: Network) -> Network:
    """The same network with an IPv6 range besides the IPv4 one."""
    return network.having(ipam={**network.config["ipam"], "ranges": [IPV4, IPV6]})


@pytest.fixture
def layer2(network: Network) -> Network:
    """A network without addresses."""
    return network.having(ipam=None, isDefaultGateway=None)


@pytest.fixture
def routed(bin_dir: Path, host: Namespace, store: Path) -> Network:
    """A dual-stack network of ptp with host-local and an IPv4 default route."""
    ranges = [[{"subnet": "10.23.0.0/24"}], [{"subnet": "fd00:23::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(store)}
    return Network(host, {"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": ipam})


@pytest.fixture
def neighbour(host: Namespace, new_sandbox: Callable[[], Namespace]) -> Namespace:
    """A machine at the other end of the host's uplink, with addresses in the subnets of the networks on it."""
    machine = new_sandbox()
    uplink.connect(host, machine)
    return machine


@pytest.fixture
def macvlan(bin_dir: Path, host: Namespace, neighbour: Namespace, store: Path) -> Network:
    """A dual-stack network of macvlan with host-local on the host's uplink."""
    ipam = {"type": "host-local", "ranges": uplink.ranges(), "dataDir": str(store)}
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "master": uplink.UPLINK, "ipam": ipam}
    return Network(host, conf)


@pytest.fixture
def ipvlan(macvlan: Network) -> Network:
    """A dual-stack network of ipvlan with host-local on the host's uplink."""
    return macvlan.having(type="ipvlan")


@pytest.fixture
def net(macvlan: Network, request: pytest.FixtureRequest) -> Iterator[Network]:
    """A dual-stack network of the plugin that the test's parameter `net` names (tests.support.single_link)."""
    yield single_link.network(macvlan, request.param)
    # Debian's Linux 5.10 waits for ever if a VLAN interface and its master are in two namespaces that end together.
    macvlan.host.run("ip", "link", "delete", uplink.UPLINK, check=False)


@pytest.fixture(params=[MACVLAN, IPVLAN])
def accessible(macvlan: Network, neighbour: Namespace, request: pytest.FixtureRequest) -> Network:
    """A network with `hostAccess`, on a node with an IPv4 and an IPv6 address on the master."""
    uplink.give_addresses(macvlan.host)
    uplink.route_pods(neighbour)
    plugin = uplink.plugin(request.param, macvlan.config["ipam"])
    return macvlan.having(**plugin, hostAccess=True, cniVersion="1.1.0")


@pytest.fixture
def published(dual_network: Network) -> PublishingNetwork:
    """A dual-stack, masqueraded network as in conf/10, with portmap after bridge."""
    disable_dad(dual_network.host)
    return PublishingNetwork(dual_network.having(ipMasq=True, hairpinMode=True))


@pytest.fixture
def shaped(network: Network) -> BandwidthNetwork:
    """The IPv4 network with bandwidth after bridge, which limits both directions."""
    return BandwidthNetwork(network).with_runtime_limits(**BOTH)


@pytest.fixture
def veth_result(host: Namespace, sandbox: Namespace) -> dict[str, Any]:
    """The result of an interface plugin; veth0 is the pod's host veth."""
    return connect_veth(host, sandbox)


@pytest.fixture
def tap(bin_dir: Path, host: Namespace, store: Path) -> Network:
    """A network of tap with host-local and an IPv4 range."""
    ipam = {"type": "host-local", "subnet": "10.27.0.0/24", "dataDir": str(store)}
    return Network(host, {"cniVersion": "1.0.0", "name": "net", "type": "tap", "ipam": ipam})


@pytest.fixture
def dummy(bin_dir: Path, host: Namespace, store: Path) -> Network:
    """A dual-stack network of dummy with host-local and an IPv4 route."""
    ranges = [[{"subnet": "10.33.0.0/24"}], [{"subnet": "fd00:33::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "192.0.2.0/24"}], "dataDir": str(store)}
    return Network(host, {"cniVersion": "1.0.0", "name": "net", "type": "dummy", "ipam": ipam})


@pytest.fixture
def tuning(bin_dir: Path, host: Namespace, tmp_path: Path) -> Tuning:
    """A tuning plugin without settings, and with a data directory that does not exist."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "tuning", "dataDir": str(tmp_path / "tuning")}
    return Tuning(host, config)


@pytest.fixture
def prev_result(host: Namespace, sandbox: Namespace) -> dict[str, Any]:
    """The result of an interface plugin; veth0 is the host veth. Modules may have their own."""
    return connect_veth(host, sandbox)


@pytest.fixture
def moved(bin_dir: Path, host: Namespace, tmp_path: Path, store: Path) -> Network:
    """A dual-stack network of host-device, and its device on the host."""
    create_device(host)
    return dual_stack(host, tmp_path, store)


@pytest.fixture
def sbr(bin_dir: Path, host: Namespace) -> Sbr:
    """The plugin sbr without options."""
    return Sbr(host, {"cniVersion": "1.0.0", "name": "net", "type": "sbr"})


@pytest.fixture
def blue(bin_dir: Path, host: Namespace) -> VrfNetwork:
    """A network with the VRF `blue`, without a configured table."""
    return VrfNetwork(host, {"cniVersion": "1.0.0", "name": "net", "type": "vrf", "vrfname": "blue"})


@pytest.fixture
def client(host: Namespace, new_sandbox: Callable[[], Namespace]) -> Namespace:
    """A machine connected to the host, without a route to the pods' networks."""
    namespace = new_sandbox()
    disable_dad(namespace)
    connect(host, namespace)
    return namespace


@pytest.fixture
def bridged(host: Namespace) -> Namespace:
    """The host with an administrator's bridge `cni0` that has the kernel's defaults: no VLAN filtering."""
    host.ip("link", "add", "cni0", "type", "bridge")
    return host


@pytest.fixture
def socket(host: Namespace) -> Iterator[Socket]:
    """A netlink socket on the host."""
    with host.entered():
        host_socket = Socket()
    with host_socket:
        yield host_socket


@pytest.fixture
def netfilter(host: Namespace) -> Iterator[NftSocket]:
    with host.entered():
        inner = nft.open_socket()
    with inner:
        yield inner


@pytest.fixture
def host_filter(host: Namespace) -> Iterator[PolicyFilter]:
    """The packet filter of network policies, in the host's namespace."""
    with host.entered():
        new = PolicyFilter()
    yield new
    new.close()


@pytest.fixture(scope="module")
def module_node(root: None) -> Iterator[PacketNode]:
    """A node with pods that send packets, for all tests of a file."""
    with packet_node() as node:
        yield node


@pytest.fixture
def policed_node(module_node: PacketNode) -> PacketNode:
    """A node with pods that send packets, without rules and tracked connections."""
    module_node.host.run("nft", "flush", "ruleset")
    module_node.host.run("conntrack", "-F")
    return module_node


@pytest.fixture
def node_filter(policed_node: PacketNode, request: pytest.FixtureRequest) -> Iterator[PolicyFilter]:
    """The packet filter of network policies, on the node with pods; its parameter: `check_established`."""
    with policed_node.host.entered():
        new = PolicyFilter(check_established=getattr(request, "param", False))
    yield new
    new.close()


@pytest.fixture
def scripted_network(network: Network, tmp_path: Path) -> Callable[..., Network]:
    """A function that returns the network with an IPAM plugin that prints `ips`, or runs the script `body`.

    `scripted_ipam.ScriptedIpam(tmp_path / "ipam").calls()` returns the plugin's calls.
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
    return scripted_ipam.ScriptedIpam(tmp_path / "ipam").calls


@pytest.fixture
def host_ports(bin_dir: Path, host: Namespace) -> PortmapNetwork:
    """A network with portmap for dual-stack pods; the test chooses ports and backend."""
    return PortmapNetwork(host, {"cniVersion": "1.0.0", "name": "net", "type": "portmap"}).having(addresses=DUAL)


@pytest.fixture(params=[NFT, LEGACY])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with iptables, iptables-save and the others of one variant."""
    return xtables.variant(tmp_path / request.param, request.param)


@pytest.fixture
def iptables_ports(host_ports: PortmapNetwork, tools: Path) -> PortmapNetwork:
    """The same network with iptables of each variant."""
    return replace(host_ports.having(backend="iptables"), tools=tools)


@pytest.fixture(params=[NFT, LEGACY, NFTABLES])
def any_ports(request: pytest.FixtureRequest, host_ports: PortmapNetwork, tmp_path: Path) -> PortmapNetwork:
    """The same network with nftables, and with iptables of each variant."""
    if request.param == "nftables":
        return host_ports.having(backend="nftables")
    return replace(host_ports.having(backend="iptables"), tools=xtables.variant(tmp_path / "tools", request.param))


@pytest.fixture
def firewall(bin_dir: Path, bridged: Namespace, tools: Path) -> Firewall:
    """A network with firewall and iptables, of each variant, for dual-stack pods on bridge `cni0`."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables"}
    return Firewall(bridged, config, tools=tools).pod(*DUAL)


@pytest.fixture
def tool(bin_dir: Path, host: Namespace, tmp_path: Path) -> Tool:
    """The tool on a host with a network of bridge and portmap."""
    operator_tool = Tool(host, tmp_path)
    operator_tool.configure(operator_tool.bridge(ipMasq=True), PORTMAP)
    return operator_tool


@pytest.fixture
def node(bin_dir: Path, host: Namespace, tmp_path: Path) -> DoctorNode:
    """A node without networks, for `podwire doctor`; modules with other nodes have this fixture themselves."""
    return DoctorNode(host, tmp_path)


@pytest.fixture
def joined(root: None) -> Iterator[Cluster]:
    """Three dual-stack nodes in one segment."""
    with cluster(3, is_joined=True) as nodes:
        yield nodes


@pytest.fixture
def distant(root: None) -> Iterator[Cluster]:
    """Three dual-stack nodes that a router connects."""
    with cluster(3, is_joined=False) as nodes:
        yield nodes


@pytest.fixture(name="uplink")
def new_uplink(host: Namespace, new_sandbox: Callable[[], Namespace]) -> Callable[[str, int], None]:
    """A function that adds an interface with a name and MTU to the host, a veth to another namespace."""

    def make(name: str, mtu: int) -> None:
        far = new_sandbox()
        host.ip("link", "add", "name", name, "mtu", str(mtu), "type", "veth", "peer", "name", name, "netns", far.name)
        host.ip("link", "set", name, "up")

    return make
