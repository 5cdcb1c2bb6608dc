"""VLANs: their ranges in messages (kernel.vlan), and the VLANs of a port (plugins.bridge.vlan)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import vlan
from kernel.codec import VlanMessage
from kernel.link import RTM_DELLINK, Link
from kernel.rtnl import Socket
from kernel.vlan import PVID, UNTAGGED, Filtering
from kernel.wire import decode
from plugins.bridge.conf import PortVlans
from plugins.bridge.vlan import port_requests

PORT = Link(9, "veth0", "02:00:00:00:00:01", 1500, 1, "veth", 3, 0, None, 6)
BRIDGE = Link(3, "cni0", "02:00:00:00:00:02", 1500, 1, "bridge", 0, 0, None, 6)
PVID_UNTAGGED = PVID | UNTAGGED


class AnsweringSocket(Socket):
    """A socket whose dump returns the VLANs that requests have added to ports."""

    def __init__(self, *requests):
        self._requests = requests

    def dump(self, request, **_options):
        """Returns the requests as the kernel's messages about the ports of the bridge."""
        master = ("IFLA_MASTER", BRIDGE.index)
        messages = [item._replace(attributes=[*item.attributes, master]).encode(1) for item in self._requests]
        assert all(request.body_filter(message) for message in messages)
        return [decode(VlanMessage, message) for message in messages]


@given(
    st.dictionaries(st.integers(1, 4094), st.sampled_from([0, UNTAGGED])),
    st.sets(st.integers(0, 500)).map(
        lambda starts: {vid: 0 for start in starts for vid in range(8 * start + 1, 8 * start + 6)}
    ),
    st.integers(1, 4094),
)
def test_vlans_are_decoded_from_ranges(single, ranges, native):
    """Any VLANs, also ranges, are equal after encoding in the kernel's range form and decoding."""
    desired = {**ranges, **single, native: PVID_UNTAGGED}
    assert vlan.list_by_port(AnsweringSocket(vlan.add_request(PORT, desired)), BRIDGE) == {PORT.index: desired}


def test_adjacent_vlans_are_one_range():
    """A trunk of adjacent VLANs needs two entries, for any number of VLANs; the PVID is never in a range."""
    request = vlan.add_request(PORT, {100: PVID_UNTAGGED, **dict.fromkeys(range(101, 4095), 0)})
    attributes: dict[str, Any] = dict(request.attributes)
    entries = [(info["vid"], info["flags"]) for _, info in attributes["IFLA_AF_SPEC"]["attrs"]]
    assert entries == [(100, PVID_UNTAGGED), (101, 0x8), (4094, 0x10)]


def test_vlans_of_the_bridge_are_ignored():
    """VLANs of the bridge device, and of other bridges' ports, are ignored."""
    answering = AnsweringSocket(
        vlan.add_request(BRIDGE, {1: PVID_UNTAGGED}), vlan.add_request(PORT, {2: PVID_UNTAGGED})
    )
    assert vlan.list_by_port(answering, BRIDGE) == {PORT.index: {2: PVID_UNTAGGED}}
    assert (
        vlan.list_by_port(AnsweringSocket(vlan.add_request(PORT, {2: PVID_UNTAGGED})), BRIDGE._replace(index=9)) == {}
    )


CASES = {
    "nothing": (PortVlans(), 1, [], {}),
    "an empty trunk": (PortVlans(0, ()), 1, [], {}),
    "an access VLAN": (PortVlans(100), 1, [1], {100: PVID_UNTAGGED}),
    "another default": (PortVlans(100), 7, [7], {100: PVID_UNTAGGED}),
    "no default": (PortVlans(100), 0, [], {100: PVID_UNTAGGED}),
    "no default to keep": (PortVlans(100, None, True), 0, [], {100: PVID_UNTAGGED}),
    "the default itself": (PortVlans(1), 1, [], {1: PVID_UNTAGGED}),
    "the default kept": (PortVlans(100, None, True), 1, [], {1: UNTAGGED, 100: PVID_UNTAGGED}),
    "a trunk": (PortVlans(0, (5, 6)), 1, [], {1: PVID_UNTAGGED, 5: 0, 6: 0}),
    "a trunk where another is the default": (PortVlans(0, (5, 6)), 7, [7], {1: PVID_UNTAGGED, 5: 0, 6: 0}),
    "both": (PortVlans(100, (5,)), 1, [1], {5: 0, 100: PVID_UNTAGGED}),
    "both the same": (PortVlans(5, (5,)), 1, [1], {5: PVID_UNTAGGED}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_vlans_of_a_port(case):
    """A port's default VLAN is removed unless it is desired, the others are added, in at most two requests."""
    desired, default, removed, added = CASES[case]
    requests = port_requests(PORT, desired, Filtering(True, default))
    expected = [vlan.remove_request(PORT, removed)] if removed else []
    expected += [vlan.add_request(PORT, added)] if added else []
    assert [item._replace(details=None) for item in requests] == [item._replace(details=None) for item in expected]
    assert [request.type == RTM_DELLINK for request in requests] == [True] * len(removed) + [False] * bool(added)


def test_without_vlans_nothing_is_sent():
    """A network without VLANs sends no request."""
    assert port_requests(PORT, PortVlans(), None) == []
