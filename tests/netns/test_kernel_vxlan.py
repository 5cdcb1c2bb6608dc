"""VXLAN devices, their entries, and notifications on the real kernel, compared with what iproute2 prints."""

import errno
import json
from ipaddress import ip_address

import pytest

from kernel import bridge_state, checksum_offload, link, notifications, reverse_path, tunnel_entries, vxlan
from kernel.errors import KernelError
from kernel.link import Link
from kernel.notifications import Notifications
from kernel.rtnl import Socket
from kernel.vxlan import Tunnel
from tests.support.errors import error_of

MAC, PEER = bytes.fromhex("0a0000000001"), bytes.fromhex("0a0000000002")
TUNNEL = Tunnel(112, 4789, ip_address("192.0.2.1"))
TUNNEL6 = Tunnel(112, 4789, ip_address("2001:db8::1"))


def create(socket: Socket, tunnel: Tunnel = TUNNEL) -> Link:
    socket.change(*vxlan.create_requests("tunnel0", tunnel, MAC, 1450, "test"))
    (device,) = link.get(socket, link.by_name_request("tunnel0"))
    assert device is not None
    return device


@pytest.mark.parametrize("tunnel", [TUNNEL, TUNNEL6])
def test_a_device_has_the_settings_of_its_request(host, socket, tunnel):
    """A device has VNI, port, address, MAC, MTU and alias; it does not learn, and has no IPv6 link-local address.

    Its reverse path filter is loose, so that packets arrive whose answers take another way.
    """
    device = create(socket, tunnel)
    (shown,) = json.loads(host.ip("-j", "-d", "link", "show", "tunnel0"))
    data = shown["linkinfo"]["info_data"]
    assert (data["id"], data["port"], data["learning"]) == (112, 4789, False)
    assert str(tunnel.local) in (data.get("local"), data.get("local6"))
    assert (shown["address"], shown["mtu"], shown["ifalias"]) == (MAC.hex(":"), 1450, "test")
    assert shown["inet6_addr_gen_mode"] == "none"
    assert device.is_up
    assert vxlan.get(socket, device) == tunnel
    assert host.sysctl("net/ipv4/conf/tunnel0/rp_filter") == "2"
    assert json.loads(host.ip("-j", "address", "show", "tunnel0"))[0]["addr_info"] == []


def test_settings_are_repaired(host, socket):
    """Address, learning and IP settings of an existing device can be set; another IP version is refused."""
    device = create(socket)
    host.ip("link", "set", "tunnel0", "type", "vxlan", "local", "192.0.2.9", "learning")
    host.ip("link", "set", "tunnel0", "addrgenmode", "eui64")
    host.set_sysctl("net/ipv4/conf/tunnel0/rp_filter", "1")
    changed = vxlan.get(socket, device)
    assert changed == TUNNEL._replace(local=ip_address("192.0.2.9"), learning=True, link_local=True, rp_filter=1)
    socket.change(vxlan.set_request(device, TUNNEL))
    assert vxlan.get(socket, device) == TUNNEL
    assert host.sysctl("net/ipv4/conf/tunnel0/rp_filter") == "2"
    other = vxlan.set_request(device, TUNNEL6)
    assert error_of(lambda: socket.change(other), KernelError).errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    ("everywhere", "here", "expected"),
    [("0", "0", False), ("1", "0", True), ("0", "1", True), ("1", "2", False), ("2", "1", False)],
)
def test_strict_reverse_path_filters_are_recognized(host, socket, everywhere, here, expected):
    """The filter of a link is strict if the greater value of the link and of "all" is 1."""
    device = create(socket)
    host.set_sysctl("net/ipv4/conf/all/rp_filter", everywhere)
    host.set_sysctl("net/ipv4/conf/tunnel0/rp_filter", here)
    assert reverse_path.is_strict(socket, device) == expected


def test_checksum_offload_is_switched(host, socket):
    """Transmit checksum offload is on, is switched off and on again, and a missing interface is an error."""
    create(socket)
    with host.entered():
        states = [checksum_offload.get("tunnel0")]
        for on in (False, True):
            checksum_offload.set_offload("tunnel0", on=on)
            states.append(checksum_offload.get("tunnel0"))
        assert states == [True, False, True]
        assert error_of(lambda: checksum_offload.get("absent0"), KernelError).errno == errno.ENODEV


def test_static_forwarding_entries_are_listed(host, socket):
    """An entry that is static, not permanent, also sends a node's frames to an address: the agent must see it."""
    device = create(socket)
    host.run("bridge", "fdb", "add", PEER.hex(":"), "dev", "tunnel0", "dst", "192.0.2.9", "self", "static")
    assert tunnel_entries.list_forwarding(socket, device) == {PEER: ip_address("192.0.2.9").packed}


def test_spanning_tree_of_a_bridge_is_read(host, socket):
    """A bridge with the spanning tree protocol, which blocks new ports, is not taken for one that filters VLANs."""
    host.ip("link", "add", "br0", "type", "bridge", "stp_state", "1")
    (settings,) = bridge_state.read_link_settings(socket).bridges.values()
    assert (settings.stp, settings.vlan_filtering) == (True, False)


def test_notifications_of_other_senders_arrive(host, socket):
    """Changes of other processes are notified, those of the socket of the requests are not; losses are reported."""
    device = create(socket)
    groups = (notifications.LINK, notifications.NEIGHBOUR, notifications.IPV4_ADDRESS, notifications.IPV4_ROUTE)
    with host.entered(), Notifications(groups, socket, buffer_bytes=4096) as news:
        assert news.receive() == []
        socket.change(tunnel_entries.set_neighbour_request(device, ip_address("10.244.2.0").packed, PEER))
        assert news.receive() == []
        assert tunnel_entries.list_neighbours(socket, device) == {ip_address("10.244.2.0").packed: PEER}
        host.ip("neigh", "replace", "10.244.2.0", "lladdr", MAC.hex(":"), "dev", "tunnel0", "nud", "permanent")
        (changed,) = news.receive() or []
        owners = [one for one in (1, device.index) if tunnel_entries.is_neighbour(changed.message, one)]
        assert owners == [device.index]
        host.ip("neigh", "del", "10.244.2.0", "dev", "tunnel0")
        received = news.receive() or []
        assert tunnel_entries.addresses_of(received[-1].message)[1] == ip_address("10.244.2.0").packed
        assert received[-1].type == 29
        host.ip("address", "add", "10.244.1.0/24", "dev", "tunnel0")
        assert {item.type for item in news.receive() or []} >= {20, 24}
        for number in range(20):
            host.ip("link", "set", "tunnel0", "mtu", str(1400 + number))
        assert news.receive() is None
        host.ip("link", "set", "tunnel0", "mtu", "1400")
        assert [link.from_message(item.message).mtu for item in news.receive() or [] if item.type == 16][-1] == 1400
