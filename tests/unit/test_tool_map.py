"""The map of a node, and the node as a document: pure parts of `podwire show`."""

import json
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.conf import Attachment
from podwire.node.model import (
    AttachmentState,
    HostInterface,
    HostPort,
    Leak,
    NodeInventory,
    NodeNetwork,
    Pod,
    RangeUsage,
    fold_ports,
    format_rate,
)
from podwire.views import map_svg
from podwire.views.shot import Shot

SVG = "{http://www.w3.org/2000/svg}"
RANGE = RangeUsage("/var/lib/cni/networks", 0, "10.22.0.1-10.22.0.254", 253, 2)
NETWORK = NodeNetwork("net", "/etc/cni/net.d/10-net.conflist", ("bridge",), ("cni0",), (RANGE,), 2)
SHOT = Shot("node-1", "2026-11-25 12:00:00Z", "1.2.3")
BRIDGE = HostInterface("cni0", ("10.22.0.1/24",), ("veth1",))


def pod(number, **keys):
    defaults = {"pod": f"default/pod-{number}", "host_interface": f"veth{number}", "bridge": "cni0"}
    return Pod("net", Attachment(f"cid-{number}", "eth0"), **{"state": AttachmentState.OK, **defaults, **keys})


def node_of(*pods, leaks=()):
    return NodeInventory((NETWORK,), pods, (BRIDGE,), (HostInterface("ens3", ("192.0.2.7/24",)),), leaks)


def render(node):
    """Returns the map of a node called node-1."""
    return map_svg.render(node, SHOT)


def texts(picture):
    return [item.text or "" for item in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def boxes(picture):
    rects = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    return [tuple(int(item.attrib[key]) for key in ("x", "y", "width", "height")) for item in rects]


@pytest.mark.parametrize("count", [0, 1, 5, 24, 60, 200])
def test_boxes_do_not_overlap(count):
    """Every pod has a box, the boxes do not overlap, and all are within the picture."""
    picture = render(node_of(*(pod(number, addresses=(f"10.22.0.{number}/24",)) for number in range(count))))
    drawn = boxes(picture)
    assert len(drawn) == count + 2
    root = ElementTree.fromstring(picture)
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    assert all(0 <= x <= width - w and 0 <= y <= height - h for x, y, w, h in drawn)
    overlapping = [
        (x, y, other_x, other_y)
        for (x, y, w, h), (other_x, other_y, other_w, other_h) in combinations(drawn, 2)
        if x < other_x + other_w and other_x < x + w and y < other_y + other_h and other_y < y + h
    ]
    assert overlapping == []
    assert [f"pod-{number}" for number in range(count) if f"pod-{number}" not in texts(picture)] == []


def test_many_pods_fit_on_a_page():
    """With 200 pods the picture has the shape of a page in landscape format, and no text is wider than its box."""
    pods = (
        pod(number, pod=f"ns/deployment-5d78c9869d-{number:05}", addresses=("10.22.0.7/24",)) for number in range(200)
    )
    picture = render(node_of(*pods))
    root = ElementTree.fromstring(picture)
    assert 1.4 <= int(root.attrib["width"]) / int(root.attrib["height"]) <= 1.7
    shown = [text for text in texts(picture) if text.startswith("deploym")]
    assert len(set(shown)) == 200  # the ends differ, which are kept
    assert max(map(len, shown)) <= 20
    titles = [item.text or "" for item in root.iter(f"{SVG}title")]
    assert any("ns/deployment-5d78c9869d-00199 | cid-199 | network net | eth0 - veth199" in title for title in titles)


def test_following_host_ports_are_one_range():
    """Ports that follow each other, with their container ports, are one text; another protocol or state is another."""
    ports = [HostPort(8080 + number, 80 + number, "tcp", confirmed=True) for number in range(3)]
    ports += [HostPort(8083, 83, "tcp", confirmed=False), HostPort(8085, 85, "udp"), HostPort(8086, 80, "udp")]
    expected = [("8080-8082->80-82/tcp", True), ("8083->83/tcp", False), ("8085->85/udp", None), ("8086->80/udp", None)]
    assert fold_ports(ports) == expected


def test_map_has_all_properties():
    """Node, time, version, networks, ranges, addresses, veths, host ports, limits and the meaning of the colours."""
    port = HostPort(8080, 80, "tcp", confirmed=False)
    keys = {"addresses": ("10.22.0.2/24",), "host_ports": (port,), "receives": 10_000_000, "sends": 2_500_000}
    picture = texts(render(node_of(pod(1, **keys))))
    expected = """
        podwire show: node node-1
        2026-11-25 12:00:00Z, podwire 1.2.3, 1 attachment
        network net (bridge): 2 attached; 10.22.0.1-10.22.0.254: 2 of 253 in use
        in order
        has a fault, or could not be inspected
        no longer running: its objects are leaked
        node node-1
        network net
        ens3  192.0.2.7/24
        bridge cni0
        10.22.0.1/24
        pod-1
        namespace default
        eth0 - veth1
        10.22.0.2/24
        host port 8080->80/tcp (no rule)
        receives 10 Mbit/s
        sends 2.5 Mbit/s"""
    assert [line.strip() for line in expected.splitlines()[1:] if line.strip() not in picture] == []


def test_lines_lead_from_the_node_to_each_pod():
    """A line goes from the node's box to each bridge, and from the bridge to each pod with an interface on the host."""
    root = ElementTree.fromstring(render(node_of(pod(1), pod(2), pod(3, host_interface=""))))
    assert sum(item.attrib.get("class") == "wire" for item in root.iter(f"{SVG}path")) == 1 + 1 + 2


def test_leaked_objects_are_red():
    """The box of a leaked pod and the list of leaks have the red class, and boxes of running pods do not."""
    leak = Leak("veth", "veth9 on cni0", "ip link delete veth9", "net")
    root = ElementTree.fromstring(
        render(node_of(pod(1), pod(2, state=AttachmentState.GONE, leaked=True), leaks=(leak,)))
    )
    kinds = [item.attrib["class"] for item in root.iter(f"{SVG}rect")]
    assert (kinds.count("leaked"), kinds.count("pod")) == (1, 1)
    red = [item.text for item in root.iter(f"{SVG}text") if "leaked" in item.attrib["class"]]
    assert any("veth9 on cni0" in (text or "") for text in red)


@given(st.text(), st.text())
def test_random_texts_give_valid_xml(name, other):
    """For any names the picture is XML without control characters."""
    one = Pod(name, Attachment(other, name), AttachmentState.OK, pod=other, netns=name, addresses=(other,))
    picture = render(NodeInventory((NETWORK,), (one,), (), (), (Leak("x", name, other, name),)))
    ElementTree.fromstring(picture.encode("utf-8"))
    assert all(char.isprintable() or char == "\n" for char in picture)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (8, "8 bit/s"),
        (1_000, "1 kbit/s"),
        (10_000_000, "10 Mbit/s"),
        (2_500_000, "2.5 Mbit/s"),
        (1_234_567_890, "1.235 Gbit/s"),
        (4 * 10**12, "4 Tbit/s"),
    ],
)
def test_rates_are_readable(bits, text):
    """A rate is printed in the largest unit that it reaches."""
    assert format_rate(bits) == text


def test_document_is_json():
    """The document has all parts of the node, and can be written as JSON."""
    port = HostPort(8080, 80, "tcp", "fd00::1", confirmed=True)
    document = node_of(pod(1, host_ports=(port,)), leaks=(Leak("veth", "veth9", "fix"),)).to_json()
    again = json.loads(json.dumps(document))
    assert again["attachments"][0]["hostPorts"][0]["hostIP"] == "fd00::1"
    assert str(port) == "[fd00::1]:8080->80/tcp"
    assert again.keys() == {"networks", "attachments", "bridges", "hostInterfaces", "leaks", "complete", "unseen"}
