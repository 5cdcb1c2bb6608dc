"""States and leaks of attachments, computed from synthetic records, kernel objects and rules, without root."""

import time
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from attachment.presence import Presence
from cni.conf import Attachment
from cni.errors import CniError
from ipam.host_local.listing import ReservationFile
from kernel.link import Link
from kernel.netfilter import nft_owner
from kernel.netfilter.owned import FIREWALL, HOST_PORT, NFTABLES, OwnedRule
from podwire.attachments import CachedAttachment
from podwire.networks import Network
from podwire.node.leaks import find_leaks
from podwire.node.links import Kernel, NetworkNamespace, _inode
from podwire.node.records import Directories, HostLocalStore, Records, Reservation
from podwire.node.release import refusal_reason
from podwire.node.reservations import ReservationState, findings, state_of
from podwire.node.rules import Rules
from podwire.node.snapshot import Snapshot
from podwire.verbs.running_attachments import RunningAttachments

NET = Network("net", "1.1.0", ({"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": True}}))
TEN_MINUTES_NS, DAY_NS = 600 * 10**9, 86400 * 10**9


def link(index, name, *, kind="veth", master=0, iflink=0, iflink_nsid=None, alias=""):
    return Link(index, name, "", 1500, 0, kind, master, iflink, iflink_nsid, 6, alias)


HOST = (link(2, "cni0", kind="bridge"), link(7, "veth1", master=2, iflink=3, iflink_nsid=0))
POD = NetworkNamespace("/run/netns/a", 0, {"eth0": link(3, "eth0", iflink=7)}, {3: (ip_interface("10.22.0.2/24"),)})


def known(container_id="a", *, is_running=True, netns="/run/netns/a", address="10.22.0.2/24"):
    result = {"cniVersion": "1.0.0", "ips": [{"address": address}]}
    presence = Presence.HERE if is_running else Presence.GONE
    return CachedAttachment(
        f"net-{container_id}", "net", Attachment(container_id, "eth0"), netns, presence, NET, result=result
    )


def reserved(name, owner, *, old=True, before_boot=False):
    written_ns = time.time_ns() + (-TEN_MINUTES_NS if old else DAY_NS)  # recent until the end of the run
    return Reservation("/d", "net", ReservationFile(name, owner, written_ns, written_ns), before_boot)


def create_snapshot(*, cached=None, reservations=(), kernel=None, rules=(), is_complete=True):
    pool = HostLocalStore("/d", "net", tuple(reservations))
    records = Records((), {"net": NET}, (known(),) if cached is None else tuple(cached), (pool,), (), is_complete)
    seen = kernel or Kernel(HOST, {}, {POD.path: POD})
    return Snapshot(records, seen, Rules(tuple(rules)), ())


def state_in(snapshot):
    """Returns the state of the only reservation, which only a gone one allows to release."""
    ((item,),) = (pool.reservations for pool in snapshot.records.pools)
    state = state_of(snapshot, item)
    assert bool(refusal_reason(snapshot, item)) is (state is not ReservationState.GONE)
    return state


def leak_kinds(snapshot):
    return {leak.kind for leak in find_leaks(snapshot)}


def firewall_rule(container_id, what=FIREWALL):
    mark = nft_owner.owner_id("net", container_id, "eth0")
    return OwnedRule(what, NFTABLES, "set x", mark, "net", container_id, "eth0")


def test_interface_index_alone_proves_nothing():
    """A veth with the expected peer index, but in another namespace, is not the attachment's."""
    wrong = Kernel((HOST[0], link(7, "veth1", master=2, iflink=3, iflink_nsid=5)), {}, {POD.path: POD})
    (pod,) = create_snapshot(kernel=wrong).pods
    assert pod.host_interface == ""


UNKNOWN = reserved("10.22.0.9", b"x\r\neth0")
RECENT = reserved("10.22.0.9", b"x\r\neth0", old=False)
UNENTERED = Kernel(HOST, {}, {POD.path: NetworkNamespace(POD.path, 0)})


@pytest.mark.parametrize(
    ("reservation", "keys", "expected"),
    [
        (UNKNOWN, {}, ReservationState.GONE),
        (RECENT, {}, ReservationState.NEW),  # its ADD may still be running
        (reserved("10.22.0.9", b"not a name"), {}, ReservationState.REMARK),
        (reserved("10.22.0.9", b""), {}, ReservationState.FOREIGN),
        (reserved("10.22.0.9", b"a\r\neth0"), {}, ReservationState.RUNNING),
        (reserved("10.22.0.9", b"a"), {}, ReservationState.RUNNING),  # an old file, without interface
        (reserved("10.22.0.2", b"x\r\neth0"), {}, ReservationState.RUNNING),  # on an interface
        (UNKNOWN, {"kernel": UNENTERED}, ReservationState.UNKNOWN),
        (reserved("10.22.0.9", b"x\r\neth0", before_boot=True), {"kernel": UNENTERED}, ReservationState.GONE),
        (UNKNOWN, {"kernel": Kernel(HOST[:1]), "cached": ()}, ReservationState.UNKNOWN),  # no veth peers elsewhere
    ],
)
def test_state_of_a_reservation(reservation, keys, expected):
    """A reservation is gone only if neither the cache nor an interface has its owner or address.

    In this boot, an unknown one is not gone if a namespace could not be entered, or none has a peer.
    """
    assert state_in(create_snapshot(reservations=[reservation], **keys)) is expected


def test_address_of_a_network_with_unknown_interfaces():
    """For an unknown plugin, or without a configuration, an address on any interface counts as its network's."""
    owned = reserved("10.22.0.2", b"x\r\neth0")
    for networks in ({"net": Network("net", "1.1.0", ({"type": "calico"},))}, {}):
        snapshot = create_snapshot(reservations=[owned], cached=())
        snapshot = replace(snapshot, records=replace(snapshot.records, networks=networks))
        assert state_in(snapshot) is ReservationState.RUNNING


def test_rules_of_unknown_owners_are_leaks_with_a_readable_cache():
    """A rule of an unknown owner is a leak, unless the cache is unreadable or no runtime keeps one."""
    assert leak_kinds(create_snapshot(rules=[firewall_rule("x")])) == {FIREWALL}
    assert leak_kinds(create_snapshot(rules=[firewall_rule("x")], is_complete=False)) == set()
    assert leak_kinds(create_snapshot(rules=[firewall_rule("x")], cached=())) == set()


def test_rules_of_a_running_add_are_no_leaks():
    """Rules of a container with a recent reservation are no leaks, even without a cache entry."""
    for reservation, expected in ((RECENT, set()), (UNKNOWN, {FIREWALL, "reservation"})):
        assert leak_kinds(create_snapshot(rules=[firewall_rule("x")], reservations=[reservation])) == expected


def test_rules_that_name_only_the_container():
    """A rule of the reference plugins that names only the container is a leak if that container has stopped."""
    running, stopped = (
        OwnedRule(HOST_PORT, NFTABLES, "chain", container_id=name, subject="80/tcp") for name in ("a", "d")
    )
    assert leak_kinds(create_snapshot(rules=[running])) == set()
    leaks = find_leaks(
        create_snapshot(rules=[running, stopped], cached=(known(), known("d", is_running=False, netns="/run/netns/d")))
    )
    assert [leak.description for leak in leaks if leak.kind == HOST_PORT] == ["host port 80/tcp (nftables: chain)"]


UNKNOWN_VETH = link(9, "veth0a1b2c3d", master=2, iflink=3, iflink_nsid=1)
OTHER_NAMESPACE = NetworkNamespace("/run/netns/x", 1, {"eth0": link(3, "eth0", iflink=9)})


def kernel_with(*more, namespace=OTHER_NAMESPACE):
    return Kernel((*HOST, *more), {}, {POD.path: POD, **({namespace.path: namespace} if namespace else {})})


def test_unknown_veths_are_leaks_if_both_ends_are_visible():
    """A port of the bridge without an attachment is a leak, unless its peer is not visible or an ADD may be running."""
    unentered = NetworkNamespace(OTHER_NAMESPACE.path, 1)
    for namespace, expected in ((OTHER_NAMESPACE, {"veth"}), (None, set()), (unentered, set())):
        assert leak_kinds(create_snapshot(kernel=kernel_with(UNKNOWN_VETH, namespace=namespace))) == expected
    assert leak_kinds(create_snapshot(kernel=kernel_with(UNKNOWN_VETH), reservations=[RECENT])) == set()


@pytest.mark.parametrize(
    "port",
    [
        link(9, "veth0a1b2c3d", master=2, iflink=10),  # the gateway of a VLAN, or a link to another bridge
        link(9, "veth0a1b2c3d", master=2, iflink=3, iflink_nsid=None),
        link(9, "veth1a2b3c4", master=2, iflink=3, iflink_nsid=1),  # a name of Docker
        link(9, "vethXy3k2P", master=2, iflink=3, iflink_nsid=1),  # of LXC
        link(9, "vb-machine", master=2, iflink=3, iflink_nsid=1),  # of systemd-nspawn
    ],
)
def test_foreign_veths_on_the_bridge_are_no_leaks(port):
    """A veth between bridge and host, or with a name of another program, is no leak."""
    assert leak_kinds(create_snapshot(kernel=kernel_with(port, link(10, "cni0.100", iflink=9)))) == set()


def test_veth_on_a_bridge_of_two_networks():
    """On a bridge of two networks a veth is a leak only if the attachments of both are recorded."""
    snapshot = create_snapshot(kernel=kernel_with(UNKNOWN_VETH))
    other = Network("other", "1.1.0", NET.plugins)
    records = replace(snapshot.records, networks={"other": other, "net": NET})
    assert leak_kinds(replace(snapshot, records=records)) == set()


def test_ifbs_are_identified_by_their_alias():
    """An ifb is a leak if its alias names a stopped or unknown container."""
    # An ifb of the reference plugins has no alias; another name or alias belongs to another program.
    for name, alias, expected in (
        ("bwp123456789012", "podwire net a eth0", set()),
        ("bwp123456789012", "podwire net x eth0", {"ifb"}),
        ("bwp0123456789ab", "", {"ifb"}),
        ("ifb0", "", set()),
        ("bwp0", "", set()),
        ("bwp0123456789ab", "foreign", set()),
    ):
        ifb = link(11, name, kind="ifb", alias=alias)
        assert leak_kinds(create_snapshot(kernel=Kernel((*HOST, ifb), {}, {POD.path: POD}))) == expected


def test_names_in_fixes_are_quoted():
    """Container IDs in a command are quoted."""
    hostile = OwnedRule(FIREWALL, NFTABLES, "set x", b"mark", "net", "x; reboot", "eth0")
    snapshot = create_snapshot(rules=[hostile])
    old = Network("net", "1.0.0", NET.plugins)
    records = Records((), {"net": old}, snapshot.records.cached, snapshot.records.pools)
    snapshot = Snapshot(records, snapshot.kernel, snapshot.rules, ())
    (leak,) = find_leaks(snapshot)
    assert leak.fix == "podwire del net --container-id 'x; reboot' -i eth0"


def test_file_name_in_another_spelling():
    """A reservation whose file name is another spelling of the address is reported."""
    snapshot = create_snapshot(reservations=[reserved("fd00::0002", b"a\r\neth0")])
    reported = {(item.kind, item.address) for item in findings(snapshot)}
    assert ("foreign", "fd00::0002") in reported
    assert ip_address("fd00::0002") == ip_address("fd00::2")


@pytest.mark.parametrize("path", ["/proc/0/ns/net", "/dev/null", "/run/netns/\0"])
@pytest.mark.every_case
def test_path_without_a_namespace_has_no_inode(path):
    """A process that ended meanwhile, another file, and an impossible path are no namespaces; nothing fails."""
    assert _inode(path) == 0


def test_gc_needs_proof_about_its_network_only():
    """An attachment of another network that may be running does not stop GC, and one of this network does."""
    unproven = replace(known(netns="/absent"), presence=Presence.UNKNOWN)
    snapshot = create_snapshot(cached=[unproven], kernel=Kernel((), {}, {}))
    RunningAttachments(snapshot, Directories("", ()), "other").require_proof()
    with pytest.raises(CniError, match='1 attachment of "net" may be running'):
        RunningAttachments(snapshot, Directories("", ()), "net").require_proof()
