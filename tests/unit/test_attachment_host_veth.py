"""The host veth that a result lists for a container's interface (attachment.host_veth)."""

from __future__ import annotations

import pytest

from attachment.host_veth import HostVeth, host_veth
from cni.result import Interface

POD = "/run/netns/pod"
BRIDGE, VETH, OTHER_VETH = Interface("cni0", "02:00:00:00:00:01"), Interface("veth1"), Interface("veth2")
CONTAINER, OTHER = Interface("eth0", sandbox=POD), Interface("eth1", sandbox=POD)


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ([], HostVeth()),
        ([CONTAINER], HostVeth()),
        ([VETH, CONTAINER], HostVeth("veth1")),
        ([BRIDGE, VETH, CONTAINER], HostVeth("veth1", "cni0", BRIDGE.mac)),
        ([BRIDGE, VETH, CONTAINER, Interface("ifb0")], HostVeth("veth1", "cni0", BRIDGE.mac)),
        ([BRIDGE, VETH, OTHER, OTHER_VETH, CONTAINER], HostVeth("veth2")),
        ([BRIDGE, VETH, OTHER, CONTAINER], HostVeth()),
        ([BRIDGE, VETH], HostVeth()),
    ],
)
def test_the_interface_listed_before_the_containers_is_its_host_veth(interfaces, expected):
    """The host veth is the interface of the host right before the container's, the bridge the one before that."""
    assert host_veth(interfaces, "eth0") == expected


@pytest.mark.parametrize(("netns", "expected"), [("", "veth1"), (POD, "veth1"), ("/run/netns/other", "")])
def test_result_of_another_container_has_no_host_veth(netns, expected):
    """With a namespace, only the interface in that namespace counts."""
    assert host_veth([BRIDGE, VETH, CONTAINER], "eth0", netns).name == expected
