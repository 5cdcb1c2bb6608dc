"""The doctor's pure parts, faults that no throwaway namespace can have, and its manual."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni.errors import CniError
from kernel.address import AssignedAddress
from kernel.link import IFF_LOOPBACK, Link
from podwire.doctor import addresses, kernel, links
from podwire.doctor.checks import CHECKS, run_checks
from podwire.doctor.finding import UNSEEN, Finding, Severity, without_consequences
from podwire.doctor.node import Node, overlapping
from podwire.main import PLUGINS
from podwire.runtimes import Runtime
from tests.support import doctor_manual
from tests.support.binaries import ROOT

LIST = '{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", %s}}]}'


@pytest.fixture
def node(tmp_path) -> Node:
    """A node with one network, its store below the test's directory."""
    conf_dir = tmp_path / "net.d"
    conf_dir.mkdir()
    (conf_dir / "10.conflist").write_text(LIST % f'"subnet": "10.9.0.0/24", "dataDir": "{tmp_path}/leases"')
    made = Node(PLUGINS, {}, str(conf_dir), (str(tmp_path / "bin"),), str(tmp_path / "cni"))
    made.runtimes = ()  # whatever is installed on the machine of the tests
    return made


@pytest.fixture
def settings(monkeypatch) -> dict[str, str]:
    """What the kernel's settings are, instead of the running one's."""
    found: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in found:
            raise FileNotFoundError(name)
        return found[name]

    monkeypatch.setattr(kernel.sysctl, "get", get)
    return found


def look(node: Node, name: str) -> list[Finding]:
    """Returns what a check finds that is not in order."""
    check = next(check for check in CHECKS if check.name == name)
    return [one for one in check.run(node) if one.severity is not Severity.OK]


def test_the_manual_has_every_finding():
    """The tables of docs/doctor.md are those of the checks."""
    text = doctor_manual.PAGE.read_text()
    assert text == doctor_manual.with_table(text), "run python -m tests.support.doctor_manual"


def test_every_finding_is_made_by_a_test():
    """Each fault that can be told is named in a test that makes it."""
    tests = [*Path(__file__).parent.glob("test_doctor*.py"), *(ROOT / "tests" / "netns").glob("test_tool_doctor*.py")]
    text = "".join(path.read_text() for path in tests)
    names = [fault.name for check in CHECKS for fault in check.faults] + [UNSEEN.name]
    assert len(names) == len(set(names))
    assert [name for name in names if f'"{name}"' not in text] == []


@pytest.mark.parametrize(("count", "told"), [("899", False), ("900", True), ("1000", True)])
def test_connections_that_fill_their_table(node, settings, count, told):
    """A table of connections that is nine tenths full is told, with twice its size as the cure."""
    settings.update({"netfilter/nf_conntrack_count": count, "netfilter/nf_conntrack_max": "1000"})
    expected = [("conntrack-full", "sysctl -w net/netfilter/nf_conntrack_max=2000")] if told else []
    assert [(one.name, one.fix) for one in look(node, "connections")] == expected


def test_more_pods_than_neighbours(node, settings, tmp_path):
    """As many living pods as the host may know neighbours are told."""
    settings["ipv4/neigh/default/gc_thresh3"] = "2"
    results = tmp_path / "cni" / "results"
    results.mkdir(parents=True)
    ip = '"ips": [{"address": "10.9.0.%d/24"}]'
    for number in (2, 3):
        body = f'{{"networkName": "net", "containerId": "c{number}", "ifName": "eth0", "netns": "/proc/self/ns/net", '
        body += '"result": {"cniVersion": "1.0.0", %s}}' % (ip % number)
        (results / f"net-c{number}-eth0").write_text(body)
    (found,) = look(node, "neighbours")
    assert (found.name, found.fix) == ("neighbours-full", "sysctl -w net/ipv4/neigh/default/gc_thresh3=8")


@pytest.mark.parametrize(("accept", "told"), [("1", True), ("2", False), ("0", False)])
def test_a_default_route_that_runs_out(node, settings, monkeypatch, tmp_path, accept, told):
    """A default route from a router's advertisement is told where forwarding makes the kernel refuse the next one."""
    routes = tmp_path / "ipv6_route"
    zero = "0" * 32
    routes.write_text(f"{zero} 00 {zero} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00450003     eth0\n")
    monkeypatch.setattr(kernel, "_ROUTES6", str(routes))
    settings.update({"ipv6/conf/all/forwarding": "1", "ipv6/conf/eth0/accept_ra": accept})
    expected = [("router-advertisements-ignored", "sysctl -w net/ipv6/conf/eth0/accept_ra=2")] if told else []
    assert [(one.name, one.fix) for one in look(node, "advertisements")] == expected


@pytest.mark.parametrize(("kind", "name"), [("nfs4", "store-shared"), ("tmpfs", "store-in-memory"), ("ext4", "")])
def test_the_file_system_of_a_store(node, monkeypatch, kind, name):
    """A store on the network is a warning, one in memory a note."""
    monkeypatch.setattr(addresses, "get_file_system", lambda directory: kind)
    assert [one.name for one in look(node, "stores")] == [name] * bool(name)


@pytest.mark.parametrize(("ahead_s", "told"), [(0, False), (3600, True)])
def test_a_clock_that_was_set_back(node, tmp_path, ahead_s, told):
    """A file of the cache that is from the future is a note about the clock."""
    results = tmp_path / "cni" / "results"
    results.mkdir(parents=True)
    entry = results / "net-c-eth0"
    entry.write_text('{"networkName": "net", "containerId": "c", "ifName": "eth0", "netns": "/absent"}')
    os.utime(entry, (time.time() + ahead_s,) * 2)
    assert [one.name for one in look(node, "clock")] == ["clock-set-back"] * told
    assert [one.name for one in look(node, "cache")] == ["dead-attachments"]


def test_a_command_that_is_told_has_the_directories_that_were_given(node):
    """Who looks at other directories than the usual ones is told commands that do, too."""
    own = Node(
        PLUGINS, {}, "net.d", ("bin",), "a b", options={"--conf-dir": "net.d", "--bin-dir": "", "--cache-dir": "a b"}
    )
    assert own.command("gc", "net") == "podwire gc net --conf-dir net.d --cache-dir 'a b'"
    assert node.command("gc", "net") == "podwire gc net"


def full(**values: int) -> Callable[[str], os.statvfs_result]:
    """Returns a statvfs whose file system is as given, and has room else."""
    usual = {"f_flag": 0, "f_blocks": 100, "f_bavail": 50, "f_files": 100, "f_favail": 50, **values}
    order = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag")
    return lambda path: os.statvfs_result([usual.get(name, 0) for name in (*order, "f_namemax")])


@pytest.mark.parametrize(
    ("values", "text"),
    [({"f_bavail": 0}, "full"), ({"f_favail": 0}, "no free inodes"), ({"f_flag": os.ST_RDONLY}, "read-only"), ({}, "")],
)
def test_a_disk_without_room(node, monkeypatch, tmp_path, values, text):
    """A cache on a file system that is full or read-only is told, and so is a store."""
    (tmp_path / "cni").mkdir()
    monkeypatch.setattr(os, "statvfs", full(**values))
    disk, store = look(node, "disk"), look(node, "stores")
    assert [one.name for one in disk] == ["cache-full"] * bool(text)
    assert [one.name for one in store if one.name == "store-unusable"] == ["store-unusable"] * bool(text)
    assert all(text in one.text for one in disk)


def test_what_cannot_be_looked_at_stops_nothing(node, monkeypatch):
    """An error of one check is a note, and the others are made."""

    def fail(name: str) -> str:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(kernel.sysctl, "get", fail)
    found = [(check.group, one) for check, one in run_checks(node)]
    unseen = [one for group, one in found if group == "kernel" and one.name == "not-seen"]
    assert unseen
    assert all(one.severity is Severity.NOTE and "Permission denied" in one.text for one in unseen)
    assert {group for group, _ in found} == {check.group for check in CHECKS}


def put(path: Path, content: str = "a plugin") -> Path:
    """Makes an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def with_runtime(node: Node, *places: Path, **keys: object) -> None:
    """Installs a runtime that searches these directories."""
    how = {"conf_dir": node.conf_dir, **keys}
    node.runtimes = (Runtime("containerd", tuple(map(str, places)), **how),)  # type: ignore[misc,arg-type]


def directories(node: Node) -> list[tuple[str, str]]:
    """Returns name and fix of what the check finds."""
    return [(one.name, one.fix) for one in look(node, "directories")]


def test_a_runtime_that_runs_the_plugins_of_another_directory(node, tmp_path):
    """The fix installs podwire where the runtime looks, if doctor looks at podwire; after it all is in order."""
    lib, own = tmp_path / "lib", tmp_path / "bin"
    with_runtime(node, lib)
    fix = [("runtime-looks-elsewhere", f"podwire install --bin-dir {lib}")]
    put(own / "bridge")
    put(own / "host-local")
    assert directories(node) == [("runtime-looks-elsewhere", f'install "bridge" into {lib}')]
    put(own / "podwire")
    assert directories(node) == fix
    put(lib / "bridge", "the reference's")
    assert directories(node) == fix
    put(lib / "bridge")
    assert directories(node) == fix
    put(lib / "host-local")
    assert directories(node) == []


def test_a_runtime_that_has_what_doctor_does_not_see(node, tmp_path):
    """Where the runtime has plugins and the directories that doctor looks at have none, doctor is to look there."""
    lib = tmp_path / "lib"
    with_runtime(node, tmp_path / "absent", lib)
    put(lib / "bridge")
    text = f"podwire doctor --bin-dir {tmp_path}/absent:{lib}"
    assert directories(node) == [("runtime-looks-elsewhere", text)]


def test_a_runtime_that_finds_others_first(node, tmp_path):
    """Of several directories the one that shadows podwire's is the one to install into."""
    with_runtime(node, tmp_path / "absent", tmp_path / "lib", tmp_path / "bin")
    for name in ("bridge", "host-local", "podwire"):
        put(tmp_path / "bin" / name)
    assert directories(node) == []
    put(tmp_path / "lib" / "host-local", "the reference's")
    assert directories(node) == [("runtime-looks-elsewhere", f"podwire install --bin-dir {tmp_path}/lib")]


def test_a_runtime_that_reads_other_networks(node, tmp_path):
    """A directory of networks other than the one looked at is reported; the same one by another path is not."""
    (tmp_path / "link").symlink_to(node.conf_dir)
    with_runtime(node, conf_dir=f"{tmp_path}/link/")
    assert directories(node) == []
    with_runtime(node, conf_dir="/etc/b")
    assert directories(node) == [("runtime-looks-elsewhere", "podwire doctor --conf-dir /etc/b")]


def test_settings_that_cannot_be_read(node):
    """Settings of an installed runtime that are no TOML are a warning, which names the file."""
    node.runtimes = (Runtime("containerd", problem=CniError(6, "/etc/x is not TOML: line 1", "correct the file")),)
    (found,) = look(node, "directories")
    assert (found.name, found.text) == ("runtime-settings-unreadable", "/etc/x is not TOML: line 1")


def test_a_runtime_without_cni(node):
    """A runtime that runs no plugins is a note, whatever its directories are."""
    with_runtime(node, Path("/opt/other"), without_cni="network_backend is netavark")
    assert directories(node) == [("runtime-without-cni", "")]


def test_a_plugin_is_installed_where_the_runtime_looks(node, tmp_path):
    """A missing plugin is to be installed into the runtime's directory, if that is one of those looked at."""
    (tmp_path / "bin").mkdir()
    node.bin_dirs = (str(tmp_path / "opt"), str(tmp_path / "bin"))
    with_runtime(node, tmp_path / "bin")
    assert node.install_dir == str(tmp_path / "bin")
    with_runtime(node, tmp_path / "lib")
    assert node.install_dir == str(tmp_path / "opt")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[Match]\nName=*\n", True),
        ("[Match]\nName=en* cni*\n", True),
        ("[Match]\nName=en*\n", False),
        ("[Match]\nName=!cni*\n", False),
        ("[Match]\nName=*\n[Link]\nUnmanaged=yes\n", False),
        ("[Match]\nType=ether\nName=*\n", False),
    ],
)
def test_a_file_of_networkd_that_takes_a_bridge(node, monkeypatch, tmp_path, text, told):
    """A .network file whose pattern matches the bridge or a pod's interface is a note."""
    (tmp_path / "10.network").write_text(text)
    monkeypatch.setattr(links, "_NETWORKD", (str(tmp_path),))
    monkeypatch.setattr(links, "_is_running", lambda directory: "systemd" in directory)
    assert [one.name for one in look(node, "managed")] == ["managed-by-others"] * told


def test_a_bridge_whose_address_follows_from_its_ports(node, monkeypatch, tmp_path):
    """A bridge without an address of its own is a note, as far as sysfs is of this namespace."""
    (tmp_path / "cni" / "results").mkdir(parents=True)
    (item,) = node.interfaces
    about = tmp_path / "cni0"
    about.mkdir()
    (about / "ifindex").write_text("7\n")
    (about / "addr_assign_type").write_text("0\n")
    monkeypatch.setattr(links, "_SYS", str(tmp_path))
    bridge = links.Link(7, "cni0", "02:00:00:00:00:01", 1500, 1, "bridge", 0, 0, None, 6)
    (found,) = links._mac(node, item, bridge)
    assert (found.name, found.fix) == ("bridge-address-changes", "ip link set cni0 address 02:00:00:00:00:01")
    (about / "addr_assign_type").write_text("3\n")
    assert list(links._mac(node, item, bridge)) == []
    (about / "ifindex").write_text("8\n")
    (about / "addr_assign_type").write_text("0\n")
    assert list(links._mac(node, item, bridge)) == []


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("10.9.0.0/24", "10.9.0.128/25", True),
        ("10.9.0.128/25", "10.9.0.0/16", True),
        ("10.9.0.0/24", "10.9.1.0/24", False),
        ("10.9.0.0/24", "fd00::/64", False),
    ],
)
def test_subnets_that_overlap(one, other, together):
    """Two subnets overlap when an address lies in both."""
    assert bool(overlapping(ip_network(one), [ip_network(other)])) == together


def remembered(tmp_path, address: str = "10.9.0.2/24", name: str = "net") -> None:
    """Puts a living attachment into the cache."""
    results = tmp_path / "cni" / "results"
    results.mkdir(parents=True, exist_ok=True)
    body = {"networkName": name, "containerId": "c2", "ifName": "eth0", "netns": "/proc/self/ns/net"}
    result = {"cniVersion": "1.0.0", "ips": [{"address": address}]}
    (results / "one").write_text(json.dumps({**body, "result": result}))


@pytest.mark.parametrize(
    ("name", "flags", "told"), [("lo", IFF_LOOPBACK, True), ("cni0", 0, False), ("eth9", 0, False)]
)
def test_the_host_keeps_the_addresses_that_it_needs(node, tmp_path, name, flags, told):
    """An address that a pod and the host have is taken off `lo`; off another interface the host may need it."""
    remembered(tmp_path)
    node.links = (Link(1, name, "", 1500, flags, "", 0, 0, None, 6),)
    node.addresses = {1: (AssignedAddress(bytes([10, 9, 0, 2]), 24, 0),)}
    (found,) = look(node, "twice")
    assert found.fix.startswith("ip address del 10.9.0.2/24 dev lo" if told else "remove the pod of c2 eth0; or, ")


@pytest.mark.parametrize("version", ["", "1", "$(id)", "1.0.0.0", "9.9.9"])
def test_a_version_that_is_none_stops_nothing(node, version):
    """The plugins of a network of whatever version are asked for their STATUS, and those of the next one, too."""
    text = LIST % '"subnet": "10.9.0.0/24"'
    Path(node.conf_dir, "05.conflist").write_text(text.replace("1.0.0", version).replace('"net"', '"odd"'))
    told = {one.subject for check in CHECKS if check.name == "status" for one in check.run(node)}
    assert told == {"odd: bridge", "net: bridge"}


def test_a_flag_that_is_none_stops_nothing(node, tmp_path):
    """An attachment whose cached configuration has keys of wrong types is judged as any other."""
    remembered(tmp_path)
    plugin = {"type": "bridge", "ipMasq": {}}
    (one,) = node.known
    assert node.checker._lacks_only_rules(one, plugin) is False


def test_a_net_d_that_is_no_directory(node, tmp_path):
    """A file in the place of net.d is a problem, with what puts a directory there."""
    node.conf_dir = f"{tmp_path}/a file"
    Path(node.conf_dir).touch()
    (found,) = look(node, "files")
    assert (found.severity, found.text) == (Severity.PROBLEM, "it is not a directory")
    assert found.fix == f"mv '{node.conf_dir}' '{node.conf_dir}'.old; mkdir '{node.conf_dir}'"


def test_names_of_the_cache_are_no_commands(node, tmp_path):
    """A network's name that only the cache has, which may be anything, is quoted in a command that is told."""
    assert node.command("gc", "$(id); x") == "podwire gc '$(id); x'"


def test_a_consequence_of_another_fault_is_left_out():
    """Of findings about one interface the cause is reported, and its consequence is not, whichever comes first."""
    consequence = Finding(Severity.PROBLEM, "check-failed", "pod", "no gateway", behind=("veth1", "cni0"))
    cause = Finding(Severity.PROBLEM, "bridge-down", "net", "down", objects=("cni0",))
    other = Finding(Severity.PROBLEM, "check-failed", "pod", "no gateway", behind=("veth2", "cni1"))
    check = CHECKS[0]
    findings = [(check, consequence), (check, cause), (check, other)]
    assert without_consequences(findings) == [
        (check, cause),
        (check, other),
    ]
