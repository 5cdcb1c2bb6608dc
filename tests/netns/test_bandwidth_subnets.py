"""bandwidth with unshapedSubnets and shapedSubnets: real packets, whole states, CHECK and DEL."""

import re
import socket

import pytest

from kernel.traffic import ADDRESS_FILTERS_MAX
from tests.support.attaching import address, host_end
from tests.support.invocation import run_plugin
from tests.support.modules import withheld
from tests.support.publishing import GATEWAY, GATEWAY6, NODE, NODE6, disable_dad
from tests.support.sockets import open_socket

pytestmark = pytest.mark.needs("ifb", "tbf", "htb")

RATES = {"ingressRate": 80_000, "ingressBurst": 12_112, "egressRate": 80_000, "egressBurst": 12_112}  # a frame
NEAR, FAR = {GATEWAY, GATEWAY6}, {NODE, NODE6}  # the bridge's addresses, and the node's other ones
SUBNETS = ["192.0.2.0/25", "2001:db8::/33"]
UNSHAPED, SHAPED = {"unshapedSubnets": SUBNETS}, {"shapedSubnets": SUBNETS}
MANY = {"unshapedSubnets": [f"10.9.{number >> 8}.{number & 255}/32" for number in range(ADDRESS_FILTERS_MAX)]}
DATAGRAM, COUNT = b"x" * 1000, 40
UDP_SEGMENT = 103  # linux/udp.h
NOISE = re.compile(r"direct_packets_stat \d+ |index \d+ ref|bwp\w+")
EGRESS, INGRESS = "sends", "receives"


class Limits:
    """A pod on the bridge, to which bandwidth adds limits."""

    def __init__(self, network, pod):
        self.host, self.pod, self.network = network.host, pod, network
        disable_dad(self.host)
        for ip in (f"{NODE}/32", f"{NODE6}/128"):
            self.host.ip("addr", "add", ip, "dev", "lo")
        self.bridge_result = network.add(pod)
        self.host_veth = host_end(self.bridge_result)

    def run(self, command, keys):
        names = {key: self.network.config[key] for key in ("cniVersion", "name")}
        config = {**names, "type": "bandwidth", **keys}
        config |= {"prevResult": self.bridge_result} if command in ("ADD", "CHECK") else {}
        return run_plugin("bandwidth", command, config, netns=self.pod, host=self.host, container_id=self.pod.name)

    def add(self, **keys):
        return self.run("ADD", {**RATES, **keys}).result()

    def check(self, **keys):
        return self.run("CHECK", {**RATES, **keys})

    def tc(self, *line):
        return self.host.run("tc", *line)

    def state(self):
        """Returns all qdiscs, filters and classes, and the interfaces, without varying names and counters."""
        links = sorted(re.findall(r"^\d+: ([^:@]+)", self.host.ip("-o", "link"), re.M))
        outputs = [self.tc("-d", "qdisc", "show")]
        for parent in ("parent", "7077:"), ("ingress",):
            outputs.append(self.tc("filter", "show", "dev", self.host_veth, *parent))
        outputs += [self.tc("class", "show", "dev", self.host_veth), *links]
        return NOISE.sub("", "\n".join(outputs))


@pytest.fixture
def limits(dual_network, sandbox):
    """An attached pod without limits."""
    return Limits(dual_network, sandbox)


def count_arrived(sender, receiver):
    """Sends some datagrams at once from one socket to another and returns how many arrive."""
    for _ in range(COUNT):
        sender.sendto(DATAGRAM, receiver.getsockname())
    return count_received(receiver)


def count_received(receiver):
    """Returns how many datagrams arrive until none arrives for 0.1 s."""
    for number in range(COUNT):
        receiver.settimeout(0.1 if number else 20)  # neighbour discovery takes time
        try:
            receiver.recv(2000)
        except TimeoutError:
            return number
    return COUNT


def list_unlimited(limits):
    """Returns the directions and addresses for which no datagram of a burst is lost: {(direction, address)}."""
    unlimited = set()
    for ip in sorted(NEAR | FAR):
        pod_ip = address(limits.bridge_result, 1 if ":" in ip else 0)
        with open_socket(limits.pod, "udp", pod_ip) as pod_socket, open_socket(limits.host, "udp", ip) as host_socket:
            counts = {EGRESS: count_arrived(pod_socket, host_socket), INGRESS: count_arrived(host_socket, pod_socket)}
        assert all(counts.values()), (ip, counts)
        unlimited |= {(direction, ip) for direction, count in counts.items() if count == COUNT}
    return unlimited


@pytest.mark.parametrize(
    ("keys", "free"),
    [
        ({}, set()),
        (UNSHAPED, {(direction, ip) for direction in (EGRESS, INGRESS) for ip in FAR}),
        (SHAPED, {(direction, ip) for direction in (EGRESS, INGRESS) for ip in NEAR}),
        ({"unshapedSubnets": [f"{NODE}/32"]}, {(EGRESS, NODE), (INGRESS, NODE)}),
        ({"shapedSubnets": ["::/0"]}, {(direction, ip) for direction in (EGRESS, INGRESS) for ip in (NODE, GATEWAY)}),
        (
            {**UNSHAPED, "egressRate": 0, "egressBurst": 0},
            {(EGRESS, ip) for ip in NEAR | FAR} | {(INGRESS, ip) for ip in FAR},
        ),
    ],
    ids=["without", "unshaped", "shaped", "one address", "one family", "one direction"],
)
def test_only_the_configured_subnets_are_limited(limits, keys, free):
    """Traffic of exempt subnets is not limited, that of others is, with neighbour discovery."""
    limits.add(**keys)
    limits.check(**keys).assert_silent()
    for namespace in (limits.host, limits.pod):
        namespace.ip("neigh", "flush", "all")
    assert list_unlimited(limits) == free


def test_large_packet_is_split_for_the_bucket(limits):
    """A packet of several segments that is larger than the queue is limited, not lost."""
    limits.add(**UNSHAPED, ingressRate=8_000_000)
    with (
        open_socket(limits.pod, "udp", address(limits.bridge_result)) as pod_socket,
        open_socket(limits.host, "udp", GATEWAY) as host_socket,
    ):
        host_socket.setsockopt(socket.SOL_UDP, UDP_SEGMENT, len(DATAGRAM))
        host_socket.sendto(DATAGRAM * COUNT, pod_socket.getsockname())
        assert 0 < count_received(pod_socket) < COUNT


@pytest.mark.parametrize("keys", [{}, UNSHAPED, SHAPED, MANY], ids=["without", "unshaped", "shaped", "many"])
def test_del_leaves_nothing(limits, keys):
    """DEL, which gets no subnets, restores the state, and so does a second DEL."""
    before = limits.state()
    limits.add(**keys)
    assert limits.state() != before
    for _ in range(2):
        limits.run("DEL", {}).assert_silent()
        assert limits.state() == before


@pytest.mark.parametrize("keys", [UNSHAPED, SHAPED], ids=["unshaped", "shaped"])
def test_del_keeps_filters_of_other_programs(limits, keys):
    """A filter of another program and its qdisc survive DEL."""
    limits.tc("qdisc", "add", "dev", limits.host_veth, "ingress")
    other_filter = f"filter add dev {limits.host_veth} ingress prio 7 protocol ip u32 match ip dst 192.0.2.9 flowid 1:7"
    limits.tc(*other_filter.split())
    before = limits.state()
    limits.add(**keys)
    limits.check(**keys).assert_silent()
    limits.run("DEL", {}).assert_silent()
    assert limits.state() == before


@pytest.mark.parametrize("changed", [{}, SHAPED, {"unshapedSubnets": SUBNETS[:1]}])
def test_repeated_add_replaces_subnets(limits, changed):
    """A repeated ADD creates the same state as a first one."""
    limits.add(**changed)
    expected = limits.state()
    limits.add(**UNSHAPED)
    assert limits.state() != expected
    limits.add(**changed)
    assert limits.state() == expected


def test_root_qdisc_of_an_administrator_is_kept(limits):
    """Neither ADD, nor its rollback, nor DEL changes a classful qdisc of an administrator."""
    limits.tc("qdisc", "add", "dev", limits.host_veth, "root", "handle", "1:", "htb", "default", "1")
    before = limits.state()
    error = limits.run("ADD", {**RATES, **UNSHAPED}).error()
    assert "another program limits" in error["details"]
    assert limits.state() == before
    limits.run("DEL", {}).assert_silent()
    assert limits.state() == before


FIRST = "protocol all prio 1 handle 800::1 u32"
FURTHER = "protocol all prio 1 handle 800::9 u32 match u32 0 0"
DIFFERENT = {
    "a missing exemption of sent packets": (UNSHAPED, f"filter del dev HOST_VETH ingress {FIRST}"),
    "a missing exemption of received packets": (UNSHAPED, f"filter del dev HOST_VETH parent 7077: {FIRST}"),
    "a missing redirect of limited packets": (SHAPED, f"filter del dev HOST_VETH ingress {FIRST}"),
    "another exemption of sent packets": (UNSHAPED, f"filter add dev HOST_VETH ingress {FURTHER} flowid 9:9"),
    "another exemption of received packets": (
        UNSHAPED,
        f"filter add dev HOST_VETH parent 7077: {FURTHER} flowid 7077:0",
    ),
    "a redirect of all packets": (
        SHAPED,
        "filter add dev HOST_VETH ingress protocol all prio 1 u32 match u32 0 0 action mirred egress redirect dev IFB",
    ),
    "another rate": (UNSHAPED, "class change dev HOST_VETH classid 7077:1 htb rate 1mbit burst 1514"),
    "another ceiling": (UNSHAPED, "class change dev HOST_VETH classid 7077:1 htb rate 80kbit ceil 1mbit burst 1514"),
    "another queue": (UNSHAPED, "qdisc replace dev HOST_VETH parent 7077:1 handle 9: bfifo limit 1514"),
    "no limit": (UNSHAPED, "qdisc del dev HOST_VETH root"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_check_reports_a_difference(limits, name):
    """CHECK reports missing, changed and additional objects."""
    keys, line = DIFFERENT[name]
    ifb = limits.add(**keys)["interfaces"][-1]["name"]
    limits.check(**keys).assert_silent()
    limits.tc(*line.replace("HOST_VETH", limits.host_veth).replace("IFB", ifb).split())
    assert limits.check(**keys).error()["code"] == 999


@pytest.mark.parametrize("added", [{}, UNSHAPED, SHAPED, {"unshapedSubnets": SUBNETS[:1]}])
@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_check_accepts_only_the_subnets_of_add(limits, added, direction):
    """In each direction CHECK accepts the subnets of ADD, and no others."""
    other = "egress" if direction == "ingress" else "ingress"
    off = {f"{other}Rate": 0, f"{other}Burst": 0}
    limits.add(**added, **off)
    for checked in ({}, UNSHAPED, SHAPED, {"unshapedSubnets": SUBNETS[:1]}):
        assert limits.check(**checked, **off).status == (checked != added)


def test_runtime_rates_use_static_subnets(limits):
    """Subnets of the configuration apply to the runtime's rates, unless the runtime sends subnets, too."""
    limits.add(**UNSHAPED)
    expected = limits.state()
    limits.run("DEL", {}).assert_silent()
    limits.run("ADD", {"runtimeConfig": {"bandwidth": RATES}, **UNSHAPED}).result()
    assert limits.state() == expected
    limits.run("ADD", {"runtimeConfig": {"bandwidth": {**RATES, **UNSHAPED}}, **SHAPED}).result()
    assert limits.state() == expected


@pytest.mark.needs("private_kernel")
def test_missing_htb_is_reported_only_with_subnets(limits):
    """Without HTB STATUS has code 50 and ADD fails and is rolled back, both only with subnets, and name the module."""
    before = limits.state()
    status = {"cniVersion": "1.1.0"}
    limits.run("STATUS", {**status, **UNSHAPED}).assert_silent()
    with withheld(["sch_htb"]):
        limits.run("STATUS", status).assert_silent()
        unavailable = limits.run("STATUS", {**status, **UNSHAPED}).error()
        failed = limits.run("ADD", {**RATES, **UNSHAPED}).error()
        assert limits.state() == before
        limits.add()
    assert (unavailable["code"], unavailable["msg"]) == (50, "limits do not work on this node: the kernel has no htb")
    assert failed["code"] == 999
    assert all("sch_htb" in error["details"] for error in (unavailable, failed))
