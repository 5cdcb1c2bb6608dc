"""Who lives and what is leaked, decided on records, kernel and rules that are made up: no root is needed."""

import time
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from attachment.presence import Presence
from cni.conf import Attachment
from ipam.host_local.listing import ReservationFile
from kernel.link import Link
from kernel.netfilter import nft_owner
from kernel.netfilter.owned import FIREWALL, HOST_PORT, NFTABLES, OwnedRule
from podwire.attachments import CachedAttachment
from podwire.networks import Network
from podwire.node.leaks import find_leaks
from podwire.node.links import Kernel, NetworkNamespace
from podwire.node.records import Pool, Records, Reservation
from podwire.node.release import refusal_reason
from podwire.node.reservations import ReservationState, findings, state_of
from podwire.node.rules import Rules
from podwire.node.snapshot import Snapshot

NET = Network("net", "1.1.0", ({"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": True}}))
MINUTES_AGO_NS = 600 * 10**9


def link(index, name, *, kind="veth", master=0, iflink=0, iflink_nsid=None, alias=""):
    return Link(index, name, "", 1500, 0, kind, master, iflink, iflink_nsid, 6, alias)


HOST = (link(2, "cni0", kind="bridge"), link(7, "veth1", master=2, iflink=3, iflink_nsid=0))
POD = NetworkNamespace("/run/netns/a", 0, {"eth0": link(3, "eth0", iflink=7)}, {3: (ip_interface("10.22.0.2/24"),)})


def known(container_id="a", *, lives=True, netns="/run/netns/a", address="10.22.0.2/24"):
    result = {"cniVersion": "1.0.0", "ips": [{"address": address}]}
    presence = Presence.HERE if lives else Presence.GONE
    return CachedAttachment(
        f"net-{container_id}", "net", Attachment(container_id, "eth0"), netns, presence, NET, result=result
    )


def reserved(name, owner, *, old=True, before_boot=False):
    written_ns = time.time_ns() - (MINUTES_AGO_NS if old else 0)
    return Reservation("/d", "net", ReservationFile(name, owner, written_ns, written_ns), before_boot)


def join(*, cached=None, reservations=(), kernel=None, rules=(), whole=True):
    pool = Pool("/d", "net", tuple(reservations))
    records = Records((), {"net": NET}, (known(),) if cached is None else tuple(cached), (pool,), (), whole)
    seen = kernel or Kernel(HOST, {}, {POD.path: POD})
    return Snapshot(records, seen, Rules(tuple(rules)), "/nonexistent")


def kinds(own):
    return {leak.kind for leak in find_leaks(own)}


def rule(container_id, what=FIREWALL):
    mark = nft_owner.owner_id("net", container_id, "eth0")
    return OwnedRule(what, NFTABLES, "set x", mark, "net", container_id, "eth0")


def test_the_living_have_no_leaks():
    """An attachment whose namespace is there, with its reservation and rules, is marked nowhere."""
    own = join(reservations=[reserved("10.22.0.2", b"a\r\neth0")], rules=[rule("a"), rule("a", HOST_PORT)])
    assert kinds(own) == set()
    (pod,) = own.pods
    assert (pod.host_interface, pod.bridge) == ("veth1", "cni0")


def test_an_index_alone_proves_nothing():
    """An interface of the right index that leads into another namespace is not the attachment's."""
    wrong = Kernel((HOST[0], link(7, "veth1", master=2, iflink=3, iflink_nsid=5)), {}, {POD.path: POD})
    (pod,) = join(kernel=wrong).pods
    assert pod.host_interface == ""


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ReservationState.GONE),
        ({"reservations": [reserved("10.22.0.9", b"not a name")]}, ReservationState.REMARK),
        ({"reservations": [reserved("10.22.0.9", b"")]}, ReservationState.FOREIGN),
        ({"reservations": [reserved("10.22.0.9", b"a\r\neth0")]}, ReservationState.RUNNING),
        ({"reservations": [reserved("10.22.0.9", b"a")]}, ReservationState.RUNNING),  # a legacy one, without interface
        ({"reservations": [reserved("10.22.0.2", b"x\r\neth0")]}, ReservationState.RUNNING),  # on an interface
    ],
)
def test_what_a_reservation_is(keys, expected):
    """A reservation is gone only if neither the cache nor a namespace says otherwise."""
    own = join(**{"reservations": [reserved("10.22.0.9", b"x\r\neth0")], **keys})
    ((item,),) = (pool.reservations for pool in own.records.pools)
    assert state_of(own, item) is expected
    assert bool(refusal_reason(own, item)) is (expected is not ReservationState.GONE)


def test_a_young_reservation_is_new():
    """One that was made within a minute may be of an ADD that is under way."""
    own = join(reservations=[reserved("10.22.0.9", b"x\r\neth0", old=False)])
    ((item,),) = (pool.reservations for pool in own.records.pools)
    assert state_of(own, item) is ReservationState.NEW
    assert refusal_reason(own, item)


def test_whose_address_is_configured_is_not_leaked():
    """An attachment that no cache knows lives as long as its address is configured in a namespace."""
    own = join(reservations=[reserved("10.22.0.2", b"x\r\neth0")], cached=())
    (pod,) = own.pods
    assert (str(pod.state), pod.leaked, pod.host_interface) == ("no cache", False, "veth1")


def test_who_cannot_look_everywhere_does_not_call_it_gone():
    """Where a pod's namespace could not be entered an unknown reservation is not called gone."""
    blind = Kernel(HOST, {}, {POD.path: NetworkNamespace(POD.path, 0)})
    own = join(reservations=[reserved("10.22.0.9", b"x\r\neth0")], kernel=blind)
    ((item,),) = (pool.reservations for pool in own.records.pools)
    assert state_of(own, item) is ReservationState.UNKNOWN
    before = join(reservations=[reserved("10.22.0.9", b"x\r\neth0", before_boot=True)], kernel=blind)
    ((item,),) = (pool.reservations for pool in before.records.pools)
    assert state_of(before, item) is ReservationState.GONE


def test_who_is_not_on_the_host_calls_nothing_gone():
    """In a namespace that no veth leads out of, and without a cache, an unknown reservation is not called gone."""
    own = join(reservations=[reserved("10.22.0.9", b"x\r\neth0")], kernel=Kernel(HOST[:1]), cached=())
    ((item,),) = (pool.reservations for pool in own.records.pools)
    assert state_of(own, item) is ReservationState.UNKNOWN
    assert kinds(own) == set()


def test_rules_of_nobody_are_leaks_where_books_are_kept():
    """A rule of an unknown owner is marked, unless the cache could not be read or nobody keeps one."""
    assert kinds(join(rules=[rule("x")])) == {FIREWALL}
    assert kinds(join(rules=[rule("x")], whole=False)) == set()
    assert kinds(join(rules=[rule("x")], cached=())) == set()


def test_rules_of_an_add_under_way_are_no_leaks():
    """As long as a container's reservation is young its rules are no leaks, although the cache does not know it."""
    young = reserved("10.22.0.9", b"x\r\neth0", old=False)
    assert kinds(join(rules=[rule("x")], reservations=[young])) == set()
    assert kinds(join(rules=[rule("x")], reservations=[reserved("10.22.0.9", b"x\r\neth0")])) == {
        FIREWALL,
        "reservation",
    }


def test_rules_that_name_the_container_only_are_its():
    """A rule of the reference, which tells the container and nothing else, is marked only when that is dead."""
    living, dead = (OwnedRule(HOST_PORT, NFTABLES, "chain", container_id=name, about="80/tcp") for name in ("a", "d"))
    assert kinds(join(rules=[living])) == set()
    found = find_leaks(join(rules=[living, dead], cached=(known(), known("d", lives=False, netns="/run/netns/d"))))
    assert [leak.description for leak in found if leak.kind == HOST_PORT] == ["host port 80/tcp (nftables: chain)"]


STRANGER = link(9, "veth0a1b2c3d", master=2, iflink=3, iflink_nsid=1)
THERE = NetworkNamespace("/run/netns/x", 1, {"eth0": link(3, "eth0", iflink=9)})


def kernel_with(*more, there=THERE):
    return Kernel((*HOST, *more), {}, {POD.path: POD, **({there.path: there} if there else {})})


def test_veths_of_nobody_are_leaks_if_both_ends_are_seen():
    """A port of our bridge that no attachment has is marked, unless it leads where we cannot look."""
    assert kinds(join(kernel=kernel_with(STRANGER))) == {"veth"}
    assert kinds(join(kernel=kernel_with(STRANGER, there=None))) == set()
    assert kinds(join(kernel=kernel_with(STRANGER, there=NetworkNamespace(THERE.path, 1)))) == set()


@pytest.mark.parametrize(
    "port",
    [
        link(9, "veth0a1b2c3d", master=2, iflink=10),  # of a VLAN's gateway, or a way to another bridge
        link(9, "veth0a1b2c3d", master=2, iflink=3, iflink_nsid=None),
        link(9, "veth1a2b3c4", master=2, iflink=3, iflink_nsid=1),  # as Docker names them
        link(9, "vethXy3k2P", master=2, iflink=3, iflink_nsid=1),  # as LXC does
        link(9, "vb-machine", master=2, iflink=3, iflink_nsid=1),  # as systemd-nspawn does
    ],
)
def test_veths_of_others_on_our_bridge_are_no_leaks(port):
    """A veth between the bridge and the host itself, or named as others name theirs, is not told to be deleted."""
    assert kinds(join(kernel=kernel_with(port, link(10, "cni0.100", iflink=9)))) == set()


def test_veths_may_be_of_any_network_of_their_bridge():
    """On a bridge of two networks a veth is marked only where books are kept of both."""
    own = join(kernel=kernel_with(STRANGER))
    other = Network("other", "1.1.0", NET.plugins)
    records = replace(own.records, networks={"other": other, "net": NET})
    assert kinds(replace(own, records=records)) == set()


def test_the_veth_of_an_add_under_way_is_no_leak():
    """As long as there is a young reservation whose address is configured nowhere yet, a veth may be its owner's."""
    young = reserved("10.22.0.9", b"x\r\neth0", old=False)
    assert kinds(join(kernel=kernel_with(STRANGER), reservations=[young])) == set()


def test_ifbs_are_known_by_their_text():
    """An ifb is a leak when its text names a container that is dead or that nobody knows."""
    for container_id, expected in (("a", set()), ("x", {"ifb"})):
        ifb = link(11, "bwp123456789012", kind="ifb", alias=f"podwire net {container_id} eth0")
        assert kinds(join(kernel=Kernel((*HOST, ifb), {}, {POD.path: POD}))) == expected
    # One of the reference's has no text; what is named or described otherwise is somebody else's.
    for name, alias, expected in (
        ("bwp0123456789ab", "", {"ifb"}),
        ("ifb0", "", set()),
        ("bwp0", "", set()),
        ("bwp0123456789ab", "somebody's", set()),
    ):
        ifb = link(11, name, kind="ifb", alias=alias)
        assert kinds(join(kernel=Kernel((*HOST, ifb), {}, {POD.path: POD}))) == expected


def test_cures_can_be_pasted():
    """Names of others in a command are quoted."""
    hostile = OwnedRule(FIREWALL, NFTABLES, "set x", b"mark", "net", "x; reboot", "eth0")
    own = join(rules=[hostile])
    old = Network("net", "1.0.0", NET.plugins)
    records = Records((), {"net": old}, own.records.cached, own.records.pools)
    own = Snapshot(records, own.kernel, own.rules, "/nonexistent")
    (leak,) = find_leaks(own)
    assert leak.fix == "podwire del net --container-id 'x; reboot' -i eth0"


def test_an_odd_name_is_found():
    """A reservation whose name is not how host-local writes the address is found."""
    own = join(reservations=[reserved("fd00::0002", b"a\r\neth0")])
    found = {(item.kind, item.address) for item in findings(own)}
    assert ("foreign", "fd00::0002") in found
    assert ip_address("fd00::0002") == ip_address("fd00::2")
