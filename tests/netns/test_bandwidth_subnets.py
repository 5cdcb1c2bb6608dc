"""bandwidth with unshapedSubnets and shapedSubnets: real packets, whole states, what CHECK sees and DEL leaves."""

import re
import socket

import pytest

from kernel.traffic import RULES_MAX
from tests.support.attaching import address, host_end
from tests.support.invocation import run_plugin
from tests.support.modules import withheld
from tests.support.publishing import GATEWAY, GATEWAY6, NODE, NODE6, disable_dad
from tests.support.sockets import open_socket

pytestmark = pytest.mark.needs("ifb", "tbf", "htb")

RATES = {"ingressRate": 80_000, "ingressBurst": 12_112, "egressRate": 80_000, "egressBurst": 12_112}  # a frame
NEAR, FAR = {GATEWAY, GATEWAY6}, {NODE, NODE6}  # the bridge's addresses, and the node's others
SUBNETS = ["192.0.2.0/25", "2001:db8::/33"]
UNSHAPED, SHAPED = {"unshapedSubnets": SUBNETS}, {"shapedSubnets": SUBNETS}
MANY = {"unshapedSubnets": [f"10.9.{number >> 8}.{number & 255}/32" for number in range(RULES_MAX)]}
DATAGRAM, COUNT = b"x" * 1000, 40
UDP_SEGMENT = 103  # linux/udp.h
NOISE = re.compile(r"direct_packets_stat \d+ |index \d+ ref|bwp\w+")
EGRESS, INGRESS = "sends", "receives"
BACK = {(INGRESS, NODE), (INGRESS, NODE6)}


class Limits:
    """A pod on the bridge, and bandwidth behind it."""

    def __init__(self, network, pod):
        self.host, self.pod, self.network = network.host, pod, network
        disable_dad(self.host)
        for ip in (f"{NODE}/32", f"{NODE6}/128"):
            self.host.ip("addr", "add", ip, "dev", "lo")
        self.bridged = network.add(pod)
        self.outside = host_end(self.bridged)

    def run(self, command, keys):
        names = {key: self.network.config[key] for key in ("cniVersion", "name")}
        config = {**names, "type": "bandwidth", **keys}
        config |= {"prevResult": self.bridged} if command in ("ADD", "CHECK") else {}
        return run_plugin("bandwidth", command, config, netns=self.pod, host=self.host, container_id=self.pod.name)

    def add(self, **keys):
        return self.run("ADD", {**RATES, **keys}).result()

    def check(self, **keys):
        return self.run("CHECK", {**RATES, **keys})

    def tc(self, *line):
        return self.host.run("tc", *line)

    def state(self):
        """Returns all of traffic control, and which interfaces there are; names and counters left out."""
        links = sorted(re.findall(r"^\d+: ([^:@]+)", self.host.ip("-o", "link"), re.M))
        shown = [self.tc("-d", "qdisc", "show")]
        for parent in ("parent", "7077:"), ("ingress",):
            shown.append(self.tc("filter", "show", "dev", self.outside, *parent))
        shown += [self.tc("class", "show", "dev", self.outside), *links]
        return NOISE.sub("", "\n".join(shown))


@pytest.fixture
def limits(dual_network, sandbox):
    """An attached pod without limits."""
    return Limits(dual_network, sandbox)


def arrived(sender, receiver):
    """Sends some datagrams at once from one socket to another and returns how many arrive."""
    for _ in range(COUNT):
        sender.sendto(DATAGRAM, receiver.getsockname())
    return received(receiver)


def received(receiver):
    """Returns how many datagrams arrive until it is quiet for a moment."""
    for number in range(COUNT):
        receiver.settimeout(0.1 if number else 3)  # neighbours have to be asked for
        try:
            receiver.recv(2000)
        except TimeoutError:
            return number
    return COUNT


def unlimited(limits):
    """Returns where datagrams go to and come from, all of those sent at once: {(direction, address)}."""
    found = set()
    for ip in sorted(NEAR | FAR):
        own = address(limits.bridged, 1 if ":" in ip else 0)
        with open_socket(limits.pod, "udp", own) as inside, open_socket(limits.host, "udp", ip) as outside:
            counts = {EGRESS: arrived(inside, outside), INGRESS: arrived(outside, inside)}
        assert all(counts.values()), (ip, counts)
        found |= {(direction, ip) for direction, count in counts.items() if count == COUNT}
    return found


@pytest.mark.parametrize(
    ("keys", "free"),
    [
        ({}, set()),
        (UNSHAPED, {(way, ip) for way in (EGRESS, INGRESS) for ip in FAR}),
        (SHAPED, {(way, ip) for way in (EGRESS, INGRESS) for ip in NEAR}),
        ({"unshapedSubnets": [f"{NODE}/32"]}, {(EGRESS, NODE), (INGRESS, NODE)}),
        ({"shapedSubnets": ["::/0"]}, {(way, ip) for way in (EGRESS, INGRESS) for ip in (NODE, GATEWAY)}),
        ({**UNSHAPED, "egressRate": 0, "egressBurst": 0}, {(EGRESS, ip) for ip in NEAR | FAR} | BACK),
    ],
    ids=["without", "unshaped", "shaped", "one address", "one family", "one direction"],
)
def test_what_is_limited(limits, keys, free):
    """What goes to and comes from the subnets runs free, or alone is limited, with neighbours to be asked for first."""
    limits.add(**keys)
    limits.check(**keys).assert_silent()
    for namespace in (limits.host, limits.pod):
        namespace.ip("neigh", "flush", "all")
    assert unlimited(limits) == free


def test_a_large_packet_is_split_for_the_bucket(limits):
    """What the host hands over as one packet of many, larger than the queue, is limited, not lost."""
    limits.add(**UNSHAPED, ingressRate=8_000_000)
    with (
        open_socket(limits.pod, "udp", address(limits.bridged)) as inside,
        open_socket(limits.host, "udp", GATEWAY) as outside,
    ):
        outside.setsockopt(socket.SOL_UDP, UDP_SEGMENT, len(DATAGRAM))
        outside.sendto(DATAGRAM * COUNT, inside.getsockname())
        assert 0 < received(inside) < COUNT


@pytest.mark.parametrize("keys", [{}, UNSHAPED, SHAPED, MANY], ids=["without", "unshaped", "shaped", "many"])
def test_del_leaves_nothing(limits, keys):
    """DEL, which is told nothing of the subnets, leaves all as it was, and so does a second one."""
    before = limits.state()
    limits.add(**keys)
    assert limits.state() != before
    for _ in range(2):
        limits.run("DEL", {}).assert_silent()
        assert limits.state() == before


@pytest.mark.parametrize("keys", [UNSHAPED, SHAPED], ids=["unshaped", "shaped"])
def test_del_leaves_others_filters(limits, keys):
    """A filter that somebody else set beside ours, and the place where it stands, survive DEL."""
    limits.tc("qdisc", "add", "dev", limits.outside, "ingress")
    theirs = ("dev", limits.outside, "ingress", "prio", "7", "protocol", "ip", "u32", "match", "ip", "dst", "192.0.2.9")
    limits.tc("filter", "add", *theirs, "flowid", "1:7")
    before = limits.state()
    limits.add(**keys)
    limits.check(**keys).assert_silent()
    limits.run("DEL", {}).assert_silent()
    assert limits.state() == before


@pytest.mark.parametrize("changed", [{}, SHAPED, {"unshapedSubnets": SUBNETS[:1]}])
def test_add_again_with_other_subnets(limits, changed):
    """ADD again leaves what it would have made in the first place."""
    limits.add(**changed)
    wanted = limits.state()
    limits.add(**UNSHAPED)
    assert limits.state() != wanted
    limits.add(**changed)
    assert limits.state() == wanted


def test_a_foreign_root_stays(limits):
    """A classful qdisc that an administrator set is neither replaced by ADD nor removed by its undo and by DEL."""
    limits.tc("qdisc", "add", "dev", limits.outside, "root", "handle", "1:", "htb", "default", "1")
    before = limits.state()
    error = limits.run("ADD", {**RATES, **UNSHAPED}).error()
    assert "another program limits" in error["details"]
    assert limits.state() == before
    limits.run("DEL", {}).assert_silent()
    assert limits.state() == before


FIRST = "protocol all prio 1 handle 800::1 u32"
FURTHER = "protocol all prio 1 handle 800::9 u32 match u32 0 0"
DIFFERENT = {
    "an exemption of what is sent is gone": (UNSHAPED, f"filter del dev OUTSIDE ingress {FIRST}"),
    "one of what is received is gone": (UNSHAPED, f"filter del dev OUTSIDE parent 7077: {FIRST}"),
    "what alone is limited is not led to the bucket": (SHAPED, f"filter del dev OUTSIDE ingress {FIRST}"),
    "a further exemption of what is sent": (UNSHAPED, f"filter add dev OUTSIDE ingress {FURTHER} flowid 9:9"),
    "one of what is received": (UNSHAPED, f"filter add dev OUTSIDE parent 7077: {FURTHER} flowid 7077:0"),
    "all is led to the bucket": (
        SHAPED,
        "filter add dev OUTSIDE ingress protocol all prio 1 u32 match u32 0 0 action mirred egress redirect dev IFB",
    ),
    "another rate": (UNSHAPED, "class change dev OUTSIDE classid 7077:1 htb rate 1mbit burst 1514"),
    "another ceiling": (UNSHAPED, "class change dev OUTSIDE classid 7077:1 htb rate 80kbit ceil 1mbit burst 1514"),
    "another queue": (UNSHAPED, "qdisc replace dev OUTSIDE parent 7077:1 handle 9: bfifo limit 1514"),
    "no limit": (UNSHAPED, "qdisc del dev OUTSIDE root"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_check_sees_a_difference(limits, name):
    """CHECK sees what was changed, is missing or was added."""
    keys, line = DIFFERENT[name]
    ifb = limits.add(**keys)["interfaces"][-1]["name"]
    limits.check(**keys).assert_silent()
    limits.tc(*line.replace("OUTSIDE", limits.outside).replace("IFB", ifb).split())
    assert limits.check(**keys).error()["code"] == 999


@pytest.mark.parametrize("made", [{}, UNSHAPED, SHAPED, {"unshapedSubnets": SUBNETS[:1]}])
@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_check_tells_subnets_apart(limits, made, direction):
    """In each direction CHECK accepts the subnets that ADD was told, and no others."""
    other = "egress" if direction == "ingress" else "ingress"
    off = {f"{other}Rate": 0, f"{other}Burst": 0}
    limits.add(**made, **off)
    for asked in ({}, UNSHAPED, SHAPED, {"unshapedSubnets": SUBNETS[:1]}):
        assert limits.check(**asked, **off).status == (asked != made)


def test_runtime_rates_with_static_subnets(limits):
    """Subnets of the whole cluster hold for rates that the runtime gives, whose own subnets are before them."""
    limits.add(**UNSHAPED)
    wanted = limits.state()
    limits.run("DEL", {}).assert_silent()
    limits.run("ADD", {"runtimeConfig": {"bandwidth": RATES}, **UNSHAPED}).result()
    assert limits.state() == wanted
    limits.run("ADD", {"runtimeConfig": {"bandwidth": {**RATES, **UNSHAPED}}, **SHAPED}).result()
    assert limits.state() == wanted


def test_status_with_subnets(limits):
    """STATUS is content with a kernel that has all that subnets take."""
    limits.run("STATUS", {**UNSHAPED, "cniVersion": "1.1.0"}).assert_silent()


@pytest.mark.needs("in_user_mode_linux")
def test_a_kernel_without_htb(limits):
    """Only with subnets STATUS is code 50 and ADD fails, and leaves nothing; both name what to load."""
    before = limits.state()
    status = {"cniVersion": "1.1.0"}
    with withheld(["sch_htb"]):
        limits.run("STATUS", status).assert_silent()
        told = limits.run("STATUS", {**status, **UNSHAPED}).error()
        failed = limits.run("ADD", {**RATES, **UNSHAPED}).error()
        assert limits.state() == before
        limits.add()
    assert (told["code"], told["msg"]) == (50, "limits cannot be served: the kernel has no htb")
    assert failed["code"] == 999
    assert all("sch_htb" in error["details"] for error in (told, failed))
