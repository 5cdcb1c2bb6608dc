"""bridge with ipMasq by nftables: real packets, every verb, parallel pods."""

import json
import socket
from ipaddress import ip_interface

import pytest

from attachment.masquerade import nftables
from attachment.masquerade.spec import Masquerade
from kernel.netns import Netns, entered
from tests.support.attaching import reaches

pytestmark = pytest.mark.needs("nft_nat")

IPV4, IPV6 = ip_interface("10.22.0.2/32"), ip_interface("fd00:22::2/128")
WATCH = """
table inet watch {
    set v4 { type ipv4_addr; size 99; flags dynamic; }
    set v6 { type ipv6_addr; size 99; flags dynamic; }
    chain seen {
        type filter hook prerouting priority -300;
        meta l4proto icmp add @v4 { ip saddr }
        icmpv6 type echo-request add @v6 { ip6 saddr }
        udp dport 4242 meta nfproto ipv4 add @v4 { ip saddr }
        udp dport 4242 meta nfproto ipv6 add @v6 { ip6 saddr }
    }
}
"""


def podwire_rules(host, chain="masq_checks"):
    """Returns the lines of a chain's rules."""
    lines = host.run("nft", "list", "chain", "inet", "cni_plugins_masquerade", chain).splitlines()
    words = ("ip ", "ip6 ", "goto ")
    return [line.strip() for line in lines if line.strip().startswith(words)]


def watch_sources(namespace, tmp_path):
    """Records in a namespace the sources of pings and of datagrams to port 4242."""
    (tmp_path / "watch").write_text(WATCH)
    namespace.run("nft", "-f", str(tmp_path / "watch"))


def seen_sources(namespace, kind="v4"):
    """Returns the source addresses recorded since the last call."""
    listed = json.loads(namespace.run("nft", "-j", "list", "set", "inet", "watch", kind))["nftables"][1]["set"]
    namespace.run("nft", "flush", "set", "inet", "watch", kind)
    return {item if isinstance(item, str) else item["elem"]["val"] for item in listed.get("elem", [])}


@pytest.fixture
def external(client, tmp_path):
    """A machine beside the host, without a route to the pods, that records where packets come from."""
    watch_sources(client, tmp_path)
    return client


@pytest.fixture
def masquerading(dual_network):
    """A dual-stack network that nftables masquerades."""
    return dual_network.having(ipMasq=True, ipMasqBackend="nftables")


def test_packets_within_the_subnet_and_to_exempt_networks_keep_their_source(
    masquerading, external, new_sandbox, tmp_path
):
    """Packets within the subnet, also routed ones, and to exempt networks keep their source."""
    one, two = new_sandbox(), new_sandbox()
    for net in (masquerading, masquerading.having(nonMasqueradeCIDRs=["192.0.2.0/28", "2001:db8::/64"])):
        for pod in (one, two):
            net.add(pod)
        source, other = ("10.22.0.2", "10.22.0.3") if net is masquerading else ("10.22.0.4", "10.22.0.5")
        if net is masquerading:
            watch_sources(two, tmp_path)
        one.ip("route", "add", other, "via", "10.22.0.1")
        assert reaches(one, other)
        assert seen_sources(two) == {source}
        reaches(one, "192.0.2.2", within_s=1)
        assert seen_sources(external) == ({"192.0.2.1"} if net is masquerading else {source})
        for pod in (one, two):
            net.delete(pod)


def test_many_exempt_networks(masquerading, sandbox):
    """A thousand exempt networks still are one transaction, although it exceeds a socket's default buffer."""
    exempt = [f"100.{64 + number // 256}.{number % 256}.0/24" for number in range(1000)]
    net = masquerading.having(nonMasqueradeCIDRs=exempt)
    result = net.add(sandbox)
    assert len(podwire_rules(net.host)) == 1002
    net.check(sandbox, result)
    net.delete(sandbox)
    assert podwire_rules(net.host) == []


def test_multicast_is_not_masqueraded(host, external):
    """Datagrams to multicast groups keep their source in both families, others get the node's address."""
    for cidr in (IPV4, IPV6):
        host.ip("addr", "add", str(cidr), "dev", "lo", *(() if cidr.version == 4 else ("nodad",)))
    with Netns(host.path) as namespace, entered(namespace):
        nftables.add(Masquerade("net", "cid", "eth0", (IPV4, IPV6)))
        index = socket.if_nametoindex("uplink")
        ipv4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ipv6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    struct_ip_mreqn = bytes(8) + index.to_bytes(4, "little")
    ipv4.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct_ip_mreqn)
    ipv6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    kinds = (
        ("v4", ipv4, "10.22.0.2", "224.0.1.1", "192.0.2.2", "192.0.2.1"),
        ("v6", ipv6, "fd00:22::2", "ff0e::4242", "2001:db8::2", "2001:db8::1"),
    )
    for kind, sender, source, group, unicast, node in kinds:
        with sender:
            assert reaches(host, unicast)  # resolves the neighbour, so that the datagrams are sent without delay
            seen_sources(external, kind)
            sender.bind((source, 0))
            sender.sendto(b"group", (group, 4242))
            assert seen_sources(external, kind) == {source}
            sender.sendto(b"one", (unicast, 4242))
            assert seen_sources(external, kind) == {node}
