"""The doctor's pure functions, faults that cannot occur in a test namespace, and its manual."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attachment.presence import Presence
from cni.address import parse_mac
from cni.conf import Attachment
from kernel import advertised_route, ebpf, sysctl
from kernel.address import AssignedAddress
from kernel.bridge_state import BridgePort, BridgeSettings, LinkSettings
from kernel.link import IFF_LOOPBACK, Link
from kernel.neighbour import NUD_PERMANENT, ForwardingEntry
from kernel.netfilter import nft_owner
from kernel.netfilter.owned import HOST_PORT, NFTABLES, OwnedRule
from podwire.attachments import CachedAttachment
from podwire.doctor import addresses, links, packetfilter, ports, probes, rules, traffic
from podwire.doctor.checks import CHECKS, run_checks
from podwire.doctor.finding import UNSEEN, Finding, Severity, fold_consequences
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import VethPod
from podwire.facts import cgroups
from podwire.layers import Layer
from podwire.main import PLUGINS
from podwire.node.records import Directories
from podwire.node.rules import Rules
from podwire.predictions import obstacles
from podwire.predictions.routing import Fib
from tests.support import doctor_manual, libcni
from tests.support.binaries import ROOT
from tests.support.fault_table import FAULTS
from tests.support.unit_node import network, new_node, run_check

CNI0 = Link(5, "cni0", "02:00:00:00:00:01", 1500, 1, "bridge", 0, 0, None, 6)


@pytest.fixture
def settings(monkeypatch) -> dict[str, str]:
    """The kernel settings that the checks read, instead of those of the running kernel."""
    values: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in values:
            raise FileNotFoundError(name)
        return values[name]

    monkeypatch.setattr(sysctl, "get", get)
    return values


def write_cache_entry(directory: Path, container: str = "c2", netns: str = "") -> Path:
    """Writes an attachment with an address, by default a running one, to the cache; returns its file."""
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}]}
    return libcni.write_entry(directory / "cni", "net", container, netns=netns, result=result)


def test_manual_has_every_finding():
    """The tables of docs/doctor.md have the faults of the checks."""
    text = doctor_manual.PAGE.read_text()
    assert text == doctor_manual.with_table(text), "run python -m tests.support.doctor_manual"


def test_injected_faults_have_findings_of_the_manual():
    """Each fault that the tests inject has a finding that a check declares, and there are many of them."""
    declared = {fault.name for check in CHECKS for fault in check.faults} | {UNSEEN.name}
    assert {name for one in FAULTS for name in (one.finding, *one.others)} - declared == set()
    assert len(FAULTS) >= 120


def test_every_fault_has_a_test():
    """The name of each fault occurs in a test."""
    tests = [*Path(__file__).parent.glob("test_doctor*.py"), *(ROOT / "tests" / "netns").glob("test_tool_doctor*.py")]
    text = "".join(path.read_text() for path in tests) + "".join(f'"{fault.finding}"' for fault in FAULTS)
    names = [fault.name for check in CHECKS for fault in check.faults] + [UNSEEN.name]
    assert len(names) == len(set(names))
    assert [name for name in names if f'"{name}"' not in text] == []


@pytest.mark.parametrize(("count", "is_reported"), [("899", False), ("900", True), ("1000", True)])
def test_full_connection_table(node, settings, count, is_reported):
    """A connection table that is 90 % full is reported, with twice its size as the fix."""
    settings.update({"netfilter/nf_conntrack_count": count, "netfilter/nf_conntrack_max": "1000"})
    expected = [("conntrack-full", "sysctl -w net/netfilter/nf_conntrack_max=2000")] if is_reported else []
    assert [(one.name, one.fix) for one in run_check(node, "connections")] == expected


def test_full_neighbour_table(node, settings, tmp_path):
    """A neighbour table that has no room for two entries of each running pod is reported."""
    settings["ipv4/neigh/default/gc_thresh3"] = "4"
    for container in ("c2", "c3"):
        write_cache_entry(tmp_path, container)
    (finding,) = run_check(node, "neighbours")
    assert (finding.name, finding.fix) == ("neighbours-full", "sysctl -w net/ipv4/neigh/default/gc_thresh3=16")


@pytest.mark.parametrize(("accept", "is_reported"), [("1", True), ("2", False), ("0", False)])
def test_default_route_that_expires(node, settings, monkeypatch, tmp_path, accept, is_reported):
    """A default route from a router advertisement is reported if the kernel ignores further advertisements."""
    routes = tmp_path / "ipv6_route"
    zero = "0" * 32
    routes.write_text(f"{zero} 00 {zero} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00450003     eth0\n")
    monkeypatch.setattr(advertised_route, "PATH", str(routes))
    settings.update({"ipv6/conf/all/forwarding": "1", "ipv6/conf/eth0/accept_ra": accept})
    expected = [("router-advertisements-ignored", "sysctl -w net/ipv6/conf/eth0/accept_ra=2")] if is_reported else []
    assert [(one.name, one.fix) for one in run_check(node, "advertisements")] == expected


@pytest.mark.parametrize(("kind", "name"), [("nfs4", "store-shared"), ("tmpfs", "store-in-memory"), ("ext4", "")])
def test_file_system_of_a_store(node, monkeypatch, kind, name):
    """A store on a network file system is a warning, and one in memory a note."""
    monkeypatch.setattr(addresses, "get_file_system", lambda directory: kind)
    assert [one.name for one in run_check(node, "stores")] == [name] * bool(name)


def test_printed_commands_have_the_directory_options(node):
    """Printed commands repeat the options for directories other than the default, and quote names of networks."""
    options = [("--conf-dir", "net.d"), ("--bin-dir", ""), ("--cache-dir", "a b")]
    other = CheckedNode(PLUGINS, {}, Directories("net.d", (Layer("a b"),)), ("bin",), options=options)
    assert other.command("gc", "net") == "podwire gc net --conf-dir net.d --cache-dir 'a b'"
    assert node.command("gc", "$(id); x") == "podwire gc '$(id); x'"


def statvfs_with(**values: int) -> Callable[[str], os.statvfs_result]:
    """Returns a function statvfs with these values, and otherwise free space."""
    usual = {"f_flag": 0, "f_blocks": 100, "f_bavail": 50, "f_files": 100, "f_favail": 50, **values}
    order = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag")
    return lambda path: os.statvfs_result([usual.get(name, 0) for name in (*order, "f_namemax")])


@pytest.mark.parametrize(
    ("values", "text"),
    [({"f_bavail": 0}, "full"), ({"f_favail": 0}, "no free inodes"), ({"f_flag": os.ST_RDONLY}, "read-only"), ({}, "")],
)
def test_full_or_read_only_file_system(node, monkeypatch, tmp_path, values, text):
    """A cache and a store on a full or read-only file system are reported."""
    (tmp_path / "cni").mkdir()
    monkeypatch.setattr(os, "statvfs", statvfs_with(**values))
    disk, store = run_check(node, "disk"), run_check(node, "stores")
    assert [one.name for one in disk] == ["cache-full"] * bool(text)
    assert [one.name for one in store if one.name == "store-unusable"] == ["store-unusable"] * bool(text)
    assert all(text in one.text for one in disk)


def test_failing_check_does_not_stop_the_others(node, monkeypatch):
    """The error of a check is a note, and the other checks run; the progress line names the group of each."""
    shown: list[str] = []

    def fail(name: str) -> str:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(sysctl, "get", fail)
    findings = [(check.group, one) for check, one in run_checks(node, shown.append)]
    unseen = [one for group, one in findings if group == "kernel" and one.name == "not-seen"]
    assert unseen
    assert all(one.severity is Severity.NOTE for one in unseen)
    assert any("Permission denied" in one.text for one in unseen)
    assert {group for group, _ in findings} == {check.group for check in CHECKS}
    assert shown == [f"checking {check.group}" for check in CHECKS]


def test_first_network_is_not_that_of_the_running_pods(node):
    """A file that sorts before that of the running pods' network is a warning, unless pods have its network, too."""
    old = Path(node.conf_dir) / "00-old.conflist"
    old.write_text(network(name="old"))

    def pod(network: str) -> CachedAttachment:
        args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=a"
        return CachedAttachment("", network, Attachment("c", "eth0"), "", Presence.HERE, cni_args=args)

    node.running = (pod("net"),)
    (finding,) = run_check(node, "first")
    assert (finding.name, finding.subject) == ("other-network-first", str(old))
    node.running = (pod("net"), pod("old"))
    assert run_check(node, "first") == []


NETWORKD, NETWORK_MANAGER = ("systemd", "10.network"), ("NetworkManager", "cni.conf")


@pytest.mark.parametrize(
    ("manager", "text", "is_reported"),
    [
        (NETWORKD, "[Match]\nName=*\n", True),
        (NETWORKD, "[Match]\nName=en* cni*\n", True),
        (NETWORKD, "[Match]\nName=en*\n", False),
        (NETWORKD, "[Match]\nName=!cni*\n", False),
        (NETWORKD, "[Match]\nName=*\n[Link]\nUnmanaged=yes\n", False),
        (NETWORKD, "[Match]\nType=ether\nName=*\n", False),
        (NETWORK_MANAGER, "[keyfile]\nunmanaged-devices=interface-name:veth*;interface-name:cni0\n", False),
        (NETWORK_MANAGER, "#unmanaged-devices=cni0", True),
    ],
)
@pytest.mark.every_case
def test_program_that_manages_a_bridge(node, monkeypatch, tmp_path, manager, text, is_reported):
    """A .network file that matches the bridge or a pod is a note, and so is NetworkManager unless a file ends it."""
    program, name = manager
    (tmp_path / name).write_text(text)
    for directories in ("_NETWORKD", "_NETWORK_MANAGER"):
        monkeypatch.setattr(links, directories, (str(tmp_path),))
    monkeypatch.setattr(links, "_is_running", lambda directory: program in directory)
    expected = [("managed-by-others", True)] * is_reported
    assert [(one.name, program in one.subject) for one in run_check(node, "managed")] == expected


def test_bridge_without_a_fixed_mac_address(node, monkeypatch, tmp_path):
    """A bridge without a fixed MAC address is a note, if sysfs belongs to this namespace."""
    (tmp_path / "cni" / "results").mkdir(parents=True)
    (tmp_path / "cni0").mkdir()
    (item,) = node.interfaces
    monkeypatch.setattr(links, "_SYS", str(tmp_path))
    expected = [("bridge-address-changes", f"ip link set cni0 address {CNI0.mac}")]
    for ifindex, assign_type, findings in ((CNI0.index, 0, expected), (CNI0.index, 3, []), (CNI0.index + 1, 0, [])):
        (tmp_path / "cni0" / "ifindex").write_text(f"{ifindex}\n")
        (tmp_path / "cni0" / "addr_assign_type").write_text(f"{assign_type}\n")
        assert [(one.name, one.fix) for one in links._mac(node, item, CNI0)] == findings


@pytest.mark.parametrize(
    ("name", "flags", "is_deleted"), [("lo", IFF_LOOPBACK, True), ("cni0", 0, False), ("eth9", 0, False)]
)
def test_fix_of_a_duplicate_address(node, tmp_path, name, flags, is_deleted):
    """The fix deletes an address of pod and host from `lo`; on another interface the host may need it."""
    write_cache_entry(tmp_path)
    node.links = (Link(1, name, "", 1500, flags, "", 0, 0, None, 6),)
    node.addresses = {1: (AssignedAddress(bytes([10, 9, 0, 2]), 24, 0),)}
    (finding,) = run_check(node, "twice")
    fix = "ip address del 10.9.0.2/24 dev lo" if is_deleted else "remove the pod of c2 eth0; or, "
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize("version", ["", "1", "$(id)", "1.0.0.0", "9.9.9"])
def test_invalid_version_does_not_stop_status(node, version, monkeypatch):
    """The plugins of a network with an invalid version run STATUS, and so do those of the next network."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    Path(node.conf_dir, "05.conflist").write_text(network(version=version, name="odd"))
    subjects = {one.subject for check in CHECKS if check.name == "status" for one in check.run(node)}
    assert subjects == {"odd: bridge", "net: bridge"}


def test_invalid_flag_does_not_stop_check(node, tmp_path):
    """A cached configuration with keys of wrong types is handled like any other."""
    write_cache_entry(tmp_path)
    (one,) = node.known
    assert node.checker._lacks_only_rules(one, {"type": "bridge", "ipMasq": {}}) is False


def test_file_in_place_of_net_d(node, tmp_path):
    """A file in place of net.d is a problem, with a command that replaces it by a directory."""
    node.conf_dir = f"{tmp_path}/a file"
    Path(node.conf_dir).touch()
    (finding,) = run_check(node, "files")
    assert (finding.severity, finding.text) == (Severity.PROBLEM, "it is not a directory")
    assert finding.fix == f"mv '{node.conf_dir}' '{node.conf_dir}'.old; mkdir '{node.conf_dir}'"


def test_consequence_of_another_fault_is_left_out():
    """Of two findings about one interface only the cause is reported, in any order."""
    consequence = Finding(Severity.PROBLEM, "check-failed", "pod", "no gateway", behind=("veth1", "cni0"))
    cause = Finding(Severity.PROBLEM, "bridge-down", "net", "down", objects=("cni0",))
    other = Finding(Severity.PROBLEM, "check-failed", "pod", "no gateway", behind=("veth2", "cni1"))
    check = CHECKS[0]
    findings = [(check, consequence), (check, cause), (check, other)]
    assert fold_consequences(findings) == [(check, replace(cause, consequences=(consequence,))), (check, other)]


def test_program_on_a_pods_interface(node, monkeypatch):
    """An XDP program on the pods' bridge is a note: doctor does not know what it does."""
    (item,) = node.interfaces
    attachment = CachedAttachment("", "net", Attachment("c2", "eth0"), "", Presence.HERE)
    pod = VethPod(item, attachment, (), (), "", None, CNI0)
    monkeypatch.setattr(traffic, "list_pods", lambda _node: [pod])
    monkeypatch.setattr(ebpf, "list_tcx_directions", lambda _index: [])
    node.links, node.queues = (CNI0,), {}
    node.forwarding = (ForwardingEntry(CNI0.index, CNI0.index, parse_mac(CNI0.mac), NUD_PERMANENT, 0),)
    node.fib = Fib([], [])
    node.link_settings = LinkSettings({}, {}, frozenset({CNI0.index}))
    (finding,) = run_check(node, "traffic")
    assert (finding.name, finding.subject) == ("traffic-program", "cni0")


def test_programs_of_a_pods_cgroup(node, monkeypatch):
    """Programs of a cgroup are one note for all pods in it, except those of the root and those that services have."""
    attached = {"/cg": ("connect4",), "/cg/system.slice": ("bind4",), "/cg/pods": ("bind4", "connect6")}
    monkeypatch.setattr(cgroups, "_root", lambda: "/cg")
    monkeypatch.setattr(cgroups, "_programs", lambda directory: attached.get(directory, ()))
    monkeypatch.setattr(cgroups, "_cgroup_of", lambda pid: f"/pods/{pid}")
    monkeypatch.setattr(cgroups, "processes_by_namespace", lambda: {os.stat("/").st_ino: ["1", "2"]})
    (item,) = node.interfaces
    cached = CachedAttachment("", "net", Attachment("c2", "eth0"), "/", Presence.HERE)
    pod = VethPod(item, cached, (), (), "", None, None)
    monkeypatch.setattr(traffic, "list_pods", lambda _node: [pod, pod])
    monkeypatch.setattr(obstacles, "list_namespace_obstacles", lambda _node: [])
    (finding,) = run_check(node, "traffic")
    assert (finding.name, finding.subject) == ("cgroup-program", "/cg/pods")
    assert "(connect6)" in finding.text


@pytest.mark.parametrize(("state", "severity"), [(0, Severity.PROBLEM), (3, Severity.WARNING)])
@pytest.mark.every_case
def test_spanning_tree_that_blocks_a_pod(node, state, severity):
    """A spanning tree is a problem if it blocks the port of a pod now, and otherwise a warning."""
    (item,) = node.interfaces
    attachment = CachedAttachment("", "net", Attachment("c2", "eth0"), "", Presence.HERE)
    pod = VethPod(item, attachment, (), (), "", CNI0._replace(index=7, kind="veth"), CNI0)
    node.link_settings = LinkSettings(
        {5: BridgeSettings(5, stp=True, vlan_filtering=False)},
        {7: BridgePort(7, state, False, None, None, None, None, None, None, None)},
        frozenset(),
    )
    assert [one.severity for one in ports._bridge(node, CNI0, [pod])] == [severity]


def test_a_network_without_granted_blocks_is_not_ready(tmp_path, monkeypatch):
    """With "pool" STATUS of host-local runs: without granted blocks each ADD fails."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (finding,) = run_check(new_node(tmp_path, "dummy", subnet="", pool="default"), "status")
    assert (finding.name, finding.severity) == ("not-ready", Severity.PROBLEM)
    assert "network net has no addresses yet: no " in finding.text  # also where the kernel lacks dummy interfaces


def test_translation_for_some_packets_may_be_intended():
    """A DNAT with further conditions is a note, since it may be a resolver's; one of a published port is not."""
    for label, has_others, is_note in (
        (probes.RESOLVING, True, True),
        (probes.RESOLVING, False, False),
        (probes.PUBLISHED, True, False),
    ):
        event, conditions = (
            SimpleNamespace(**keys) for keys in ({"action": SimpleNamespace(kind="dnat")}, {"has_others": has_others})
        )
        culprit: Any = SimpleNamespace(event=event, conditions=conditions, labels=[label], lost=True)
        assert rules._is_note(culprit, rules._NAT) == is_note
        assert not rules._is_note(culprit, rules._DROPS)


def test_stale_host_port_without_another_rule(monkeypatch):
    """The only rule of a container is found stale if its owner is gone: nothing else needs to remain of the pod."""
    rule = OwnedRule(HOST_PORT, NFTABLES, "table ip cni_hostport", nft_owner.owner_id("net", "gone", "eth0"))
    monkeypatch.setattr(packetfilter, "read_rules", lambda: Rules((rule,)))
    for container, stale in (("gone", {}), ("other", {"net": 1})):
        running = frozenset({("net", Attachment(container, "eth0"))})
        assert packetfilter._stale_owners({"net"}, running) == stale


def test_status_of_host_local_does_not_run_without_a_pool(tmp_path, monkeypatch):
    """With "subnet" the store is not used, even if ADD could not use it: another check reports that."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "leases").write_text("not a directory")
    findings = run_check(new_node(tmp_path, "dummy"), "status")
    assert not any(str(tmp_path) in one.text for one in findings)  # a kernel without dummy interfaces is a finding
