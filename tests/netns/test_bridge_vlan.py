"""VLANs of bridge: the VLANs of a port, the frames that pass, and a bridge that starts to filter."""

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.support.attaching import address, host_end, reaches
from tests.support.namespaces import Namespace
from tests.support.netstate import links, state
from tests.support.vlans import PVID_FLAGS, TAGGED, filters, vlans

_ALL, _EXPERIMENTAL = 0x0003, b"\x88\xb5"  # every EtherType; one for local experiments (IEEE 802)
_SOL_PACKET, _AUXDATA = 263, 8  # linux/socket.h, linux/if_packet.h
_TAG_IS_VALID = 0x10  # TP_STATUS_VLAN_VALID in struct tpacket_auxdata
_QUIET_S = 0.3


class Frame(NamedTuple):
    """One broadcast frame: its VLAN tag, 0 without one, and its text."""

    tag: int
    text: str


class Station:
    """Sends and receives frames as on the wire: the kernel passes a received tag beside the frame (packet(7))."""

    def __init__(self, packets: socket.socket) -> None:
        self._packets = packets

    def send(self, *frames: Frame) -> None:
        source = self._packets.getsockname()[4]
        for tag, text in frames:
            vlan = b"\x81\0" + tag.to_bytes(2, "big") if tag else b""
            self._packets.send(b"\xff" * 6 + source + vlan + _EXPERIMENTAL + text.encode())

    def receive(self) -> set[Frame]:
        """Returns the frames received since the last call, after a moment without one."""
        frames = set()
        while select.select([self._packets], [], [], _QUIET_S)[0]:
            data, ((_, _, auxiliary),), _, sender = self._packets.recvmsg(2048, 64)
            status, tag = struct.unpack_from("I12xH", auxiliary)
            if data[12:14] == _EXPERIMENTAL and sender[2] != socket.PACKET_OUTGOING:
                frames.add(Frame(tag if status & _TAG_IS_VALID else 0, data[14:].rstrip(b"\0").decode()))
        return frames


@contextlib.contextmanager
def station(namespace: Namespace, interface: str = "eth0") -> Iterator[Station]:
    """Yields a station in a namespace, ready to receive."""
    with namespace.entered():
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with packets:
        packets.setsockopt(_SOL_PACKET, _AUXDATA, 1)
        packets.bind((interface, _ALL))
        yield Station(packets)


needs_filtering = pytest.mark.needs("vlan_filtering")
RANGE = [{"id": 101}, {"minID": 200, "maxID": 210}]
IN_RANGE = dict.fromkeys((101, *range(200, 211)), TAGGED)


PORTS: dict[str, tuple[dict[str, Any], dict[int, list[str]]]] = {
    "an access VLAN": ({"vlan": 100}, {100: PVID_FLAGS}),
    "VLAN 1 by name": ({"vlan": 1}, {1: PVID_FLAGS}),
    "VLAN 1 kept": ({"vlan": 100, "preserveDefaultVlan": True}, {1: ["Egress Untagged"], 100: PVID_FLAGS}),
    "a trunk": ({"vlanTrunk": RANGE}, {1: PVID_FLAGS, **IN_RANGE}),
    "a trunk, VLAN 1 kept": ({"vlanTrunk": RANGE, "preserveDefaultVlan": True}, {1: PVID_FLAGS, **IN_RANGE}),
    "a trunk with a native VLAN": ({"vlan": 100, "vlanTrunk": RANGE}, {100: PVID_FLAGS, **IN_RANGE}),
    "a trunk that lists its native VLAN": ({"vlan": 101, "vlanTrunk": RANGE}, {**IN_RANGE, 101: PVID_FLAGS}),
    "every VLAN": (
        {"vlanTrunk": [{"minID": 1, "maxID": 4094}]},
        {1: PVID_FLAGS, **dict.fromkeys(range(2, 4095), TAGGED)},
    ),
}


@needs_filtering
@pytest.mark.parametrize("case", PORTS)
def test_port_is_in_the_configured_vlans(layer2, sandbox, case):
    """The port is in exactly the configured VLANs, the new bridge filters and stays in VLAN 1; CHECK passes."""
    keys, expected = PORTS[case]
    net = layer2.having(**keys)
    outcome = net.run("ADD", sandbox)
    result = outcome.result()
    assert (filters(net.host), outcome.stderr) == (True, "")  # a new bridge filters from the start, without a report
    assert vlans(net.host, host_end(result)) == expected
    assert vlans(net.host, "cni0") == {1: PVID_FLAGS}
    assert set(links(net.host)) == {"lo", "cni0", host_end(result)}
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(net.host)) == {"lo", "cni0"}


@needs_filtering
@pytest.mark.parametrize("keys", [{}, {"vlan": 0}, {"vlanTrunk": None}, {"preserveDefaultVlan": True}])
def test_without_vlans_the_bridge_does_not_filter(layer2, sandbox, keys):
    """A network without VLANs creates a bridge that does not filter."""
    layer2.having(**keys).add(sandbox)
    assert not filters(layer2.host)


SENDERS: dict[str, dict[str, Any]] = {
    "a": {"vlan": 100},
    "b": {"vlan": 100},
    "c": {"vlan": 200},
    "trunk": {"vlanTrunk": [{"minID": 100, "maxID": 150}]},
    "native": {"vlan": 200, "vlanTrunk": [{"id": 100}]},
    "kept": {"vlan": 100, "preserveDefaultVlan": True},
    "plain": {},
}


@needs_filtering
def test_frames_stay_in_their_vlans(layer2, new_sandbox):
    """Frames reach the ports of their VLAN and no other: untagged on access ports, tagged on trunks."""
    pods = {name: new_sandbox() for name in SENDERS}
    for name, keys in SENDERS.items():
        layer2.having(**keys).add(pods[name])
    with ExitStack() as stack:
        stations = {name: stack.enter_context(station(pod)) for name, pod in pods.items()}
        for name, sender in stations.items():
            sender.send(*(Frame(tag, f"{name} {tag}") for tag in (0, 1, 100, 150, 200)))
        received = {name: station.receive() for name, station in stations.items()}
    of_100 = {"a 0", "a 100", "b 0", "b 100", "kept 0", "kept 100", "trunk 100", "native 100"}
    of_200 = {"c 0", "c 200", "native 0", "native 200"}
    # "kept" receives frames of VLAN 1, but its untagged frames are in VLAN 100; the trunk's untagged ones in VLAN 1.
    of_1 = {"plain 0", "plain 1", "trunk 0", "trunk 1", "kept 1"}

    def others(name, *frames):
        return {frame for frame in set().union(*frames) if not frame.text.startswith(name + " ")}

    def tagged(tag, texts):
        return {Frame(tag, text) for text in texts}

    expected = {
        "a": [tagged(0, of_100)],
        "b": [tagged(0, of_100)],
        "c": [tagged(0, of_200)],
        "trunk": [tagged(100, of_100), tagged(0, of_1)],
        "native": [tagged(0, of_200), tagged(100, of_100)],
        "kept": [tagged(0, of_100 | of_1)],
        "plain": [tagged(0, of_1)],
    }
    assert received == {name: others(name, *frames) for name, frames in expected.items()}


@needs_filtering
def test_existing_bridge_starts_to_filter(network, new_sandbox, bridged):
    """ADD enables filtering on an existing bridge and reports it once; pods without VLANs still work."""
    one, two, three = new_sandbox(), new_sandbox(), new_sandbox()
    results = [network.add(pod) for pod in (one, two)]
    assert not filters(bridged)
    ranges = [[{"subnet": "10.33.0.0/16"}]]
    net = network.having(vlan=100, name="other", ipam={**network.config["ipam"], "ranges": ranges})
    outcome = net.run("ADD", three)
    result = outcome.result()
    assert outcome.stderr.startswith('bridge: enabled VLAN filtering on bridge "cni0": ')
    assert outcome.stderr.count("\n") == 1
    assert filters(bridged)
    net.check(three, result)
    assert reaches(one, address(results[1]))
    assert reaches(two, "10.22.0.1")
    two.ip("addr", "add", "10.33.0.99/16", "dev", "eth0")
    assert not reaches(three, "10.33.0.99", within_s=1)
    network.check(one, results[0])
    assert net.run("ADD", new_sandbox()).stderr == ""


@needs_filtering
def test_filtering_is_not_enabled_without_a_default_vlan(layer2, sandbox, bridged):
    """A bridge whose ports have no VLAN gets no filtering: ADD fails with code 7 and changes nothing."""
    bridged.ip("link", "set", "cni0", "up", "type", "bridge", "vlan_default_pvid", "0")
    error = layer2.having(vlan=100).add_error(sandbox)
    assert (error["code"], "default_pvid is 0" in error["msg"]) == (7, True)


@needs_filtering
@pytest.mark.parametrize("default", [0, 7])
def test_another_default_vlan(layer2, sandbox, bridged, default):
    """A port is in the bridge's default VLAN only with preserveDefaultVlan, whatever its number."""
    bridged.ip("link", "set", "cni0", "type", "bridge", "vlan_default_pvid", str(default))
    bridged.ip("link", "set", "cni0", "type", "bridge", "vlan_filtering", "1")
    kept = {default: ["Egress Untagged"]} if default else {}
    for preserve, expected in ((False, {100: PVID_FLAGS}), (True, {**kept, 100: PVID_FLAGS})):
        net = layer2.having(vlan=100, preserveDefaultVlan=preserve)
        result = net.add(sandbox)
        assert vlans(bridged, host_end(result)) == expected
        net.check(sandbox, result)
        net.delete(sandbox, result)


@pytest.mark.parametrize(("bridge", "vlan"), [("br-twelve-xy", 100), ("br-eleven-x", 1000)])
def test_gateway_name_too_long(network, sandbox, bridge, vlan):
    """ADD and STATUS refuse a bridge name that is too long for the gateway interface, and say how to fix it."""
    net = network.having(bridge=bridge, vlan=vlan, cniVersion="1.1.0")
    error = net.add_error(sandbox)
    assert error["code"] == 7
    assert f'"bridge" "{bridge}" with "vlan" {vlan}' in error["msg"]
    assert error["details"] == f'set "bridge" to a name of at most {14 - len(str(vlan))} bytes'
    assert net.run("STATUS", container_id=None, ifname=None).error()["code"] == 50


@pytest.mark.needs("no vlan_filtering")
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("keys", [{"vlan": 100}, {"vlanTrunk": []}])
def test_a_kernel_without_filtering(network, sandbox, exists, keys):
    """Without VLAN filtering in the kernel ADD fails with code 50 and leaves nothing; STATUS fails, too."""
    if exists:
        network.host.ip("link", "add", "cni0", "up", "type", "bridge")
    before = state(network.host), state(sandbox)
    net = network.having(**keys, cniVersion="1.1.0")
    error = net.run("ADD", sandbox).error()
    assert (error["code"], "the kernel's bridge has no VLAN filtering" in error["msg"]) == (50, True)
    assert "CONFIG_BRIDGE_VLAN_FILTERING" in error["details"]
    assert (state(net.host), state(sandbox)) == before
    assert net.run("STATUS", container_id=None, ifname=None).error()["msg"] == error["msg"]


@pytest.mark.needs("vlan_filtering")
@pytest.mark.parametrize("exists", [False, True])
def test_a_kernel_with_filtering(network, exists):
    """With VLAN filtering in the kernel STATUS succeeds and creates nothing."""
    if exists:
        network.host.ip("link", "add", "cni0", "up", "type", "bridge")
    before = state(network.host)
    network.having(vlan=100, cniVersion="1.1.0").run("STATUS", container_id=None, ifname=None).assert_silent()
    assert state(network.host) == before


@needs_filtering
def test_pods_are_in_the_default_vlan_of_a_filtering_bridge(network, new_sandbox):
    """Without VLAN options, pods on a filtering bridge are in its default VLAN, and reach each other."""
    network.host.ip("link", "add", "cni0", "type", "bridge", "vlan_filtering", "1", "vlan_default_pvid", "7")
    first, second = new_sandbox(), new_sandbox()
    results = [network.add(first), network.add(second)]
    for name in ("cni0", *map(host_end, results)):
        assert list(vlans(network.host, name)) == [7]
    assert reaches(second, address(results[0]))
