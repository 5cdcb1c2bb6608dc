"""A dry run prints the changes that a verb would make, and makes none."""

import os
import re
import select
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.chained import differences
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, PORTS, Tool

RESULT = """echo '{"cniVersion": "1.1.0"}'"""  # the end of a plugin that is a script


@pytest.fixture
def node(tool: Tool, new_sandbox: Callable[[], Namespace]) -> Tool:
    """The tool on a host with an uplink of MTU 1420, a default route, one pod on the bridge, and a flushed rule."""
    gateway = new_sandbox()
    tool.host.ip("link", "add", "uplink0", "mtu", "1420", "type", "veth", "peer", "beyond0", "netns", gateway.name)
    tool.host.ip("addr", "add", "192.0.2.2/24", "dev", "uplink0")
    tool.host.ip("link", "set", "uplink0", "up")
    gateway.ip("link", "set", "beyond0", "up")
    tool.host.ip("route", "add", "default", "via", "192.0.2.1")
    tuning = {"type": "tuning", "mtu": 1400, "dataDir": str(tool.directory / "backups")}
    tool.configure(tool.bridge(ipMasq=True, mtu="auto"), PORTMAP, {"type": "firewall"}, tuning)
    return tool


def read_state(tool: Tool, *pods: Namespace) -> dict[str, Any]:
    """Returns the state of the node, and mounts and files of the machine that a dry run could change."""
    notes = {str(path): path.read_text() for path in sorted(tool.directory.rglob("last_reserved_ip*"))}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [Path("/run/cni"), Path("/var/lib/cni")]
    files = sorted(str(path) for place in places for path in place.rglob("*"))
    tool_mounts = [line for line in mounts if str(tool.directory) in line or "podwire" in line]
    return tool.everything(*pods) | {"notes": notes, "mounts": tool_mounts, "machine": files}


def list_planned_changes(tool: Tool, *words: str) -> list[str]:
    """Runs a dry run with --json and returns the changes of all plugins."""
    steps = tool.json(*words, "--dry-run")["steps"]
    return [change for step in steps for change in step["changes"]]


def test_dry_run_of_add_changes_nothing(node: Tool, new_sandbox: Callable[[], Namespace]):
    """A dry run of ADD prints address, veth, MTU, routes and rules as ADD creates them, and changes nothing."""
    first, second = new_sandbox(), new_sandbox()
    node.succeed("add", "net", first.name, *PORTS)
    before = read_state(node, first, second)
    document = node.json("add", "net", second.name, *PORTS, "--dry-run")
    assert differences(before, read_state(node, first, second)) == []
    changes = "\n".join(change for step in document["steps"] for change in step["changes"])
    assert "10.22.0.3" in changes
    assert re.search(r'make veth pair "veth\w+" - "eth0"', changes)
    assert "dport" in changes
    assert "MASQUERADE" in changes
    assert 'create bridge "cni0"' not in changes
    assert not re.search(r"-N CNI-(HOSTPORT-DNAT|FORWARD)$", changes, re.MULTILINE)
    assert "10.22.0.1/" not in changes
    assert document["result"]["ips"][0]["address"] == "10.22.0.3/24"
    assert [one["mtu"] for one in document["result"]["interfaces"] if one.get("sandbox") == second.path] == [1400]
    assert "/proc/" not in changes
    added = node.json("add", "net", second.name, *PORTS)
    assert added["result"]["ips"] == document["result"]["ips"]
    mtu = [[one["mtu"] for one in document["result"]["interfaces"]] for document in (document, added)]
    assert mtu[0] == mtu[1]
    assert 1420 in mtu[0]


def test_dry_run_of_the_first_add_lists_shared_objects(node: Tool, sandbox: Namespace):
    """On a node without pods the dry run also lists the bridge, its gateway address and the shared chains."""
    before = read_state(node, sandbox)
    changes = "\n".join(list_planned_changes(node, "add", "net", sandbox.name, *PORTS))
    assert differences(before, read_state(node, sandbox)) == []
    for change in ('create bridge "cni0"', "10.22.0.1/24", "CNI-HOSTPORT-DNAT", "CNI-FORWARD"):
        assert change in changes


def test_dry_run_of_add_fails_as_add_does(node: Tool, sandbox: Namespace):
    """A dry run fails with the error of ADD: the name of the bridge is in use, or the range is full."""
    node.configure(node.bridge(bridge="uplink0"))
    before = read_state(node, sandbox)
    assert "already exists but is not a bridge" in node.fail(1, "add", "net", sandbox.name, "--dry-run")
    assert differences(before, read_state(node, sandbox)) == []
    node.leases.mkdir(parents=True)
    ipam = {"type": "host-local", "dataDir": str(node.leases.parent), "ranges": [[{"subnet": "10.22.0.0/30"}]]}
    node.configure(node.bridge(ipam=ipam))
    (node.leases / "10.22.0.2").write_text("other\r\neth0")
    before = read_state(node, sandbox)
    dry_run = node.json("add", "net", sandbox.name, "--dry-run", status=1)["steps"]
    assert differences(before, read_state(node, sandbox)) == []
    (failure,) = [step["error"] for step in dry_run if "error" in step]
    assert failure == node.json("add", "net", sandbox.name, status=1)["steps"][0]["error"]


def test_foreign_plugins_run_in_the_copy(node: Tool, reference: Path, sandbox: Namespace):
    """Another vendor's plugin is run in the copy of the host, and its changes are printed as unknown."""
    foreign_tool = Tool(node.host, node.directory, reference)
    node.configure(node.bridge(ipMasq=True), {"type": "firewall"}, version="1.0.0")
    before = read_state(node, sandbox)
    document = foreign_tool.json("add", "net", sandbox.name, "--dry-run")
    assert differences(before, read_state(node, sandbox)) == []
    assert document["result"]["ips"][0]["address"] == "10.22.0.2/24"
    assert [interface.get("sandbox") for interface in document["result"]["interfaces"]][-1] == sandbox.path
    assert not any("changes" in step for step in document["steps"])
    assert "unknown: firewall is not podwire's" in foreign_tool.succeed("add", "net", sandbox.name, "--dry-run")


def test_files_of_a_plugin_stay_in_the_copy(node: Tool, sandbox: Namespace):
    """Another vendor's plugin cannot write to the host's files in a dry run."""
    deletion = f"rm -rf {node.directory}/net.d {node.directory}/leases; touch /run/vandal {node.directory}/mine"
    vandal = node.with_scripts(vandal=f"{deletion}; {RESULT}")
    node.configure({"type": "vandal"})
    before = read_state(node, sandbox)
    vandal.run("add", "net", sandbox.name, "--dry-run")
    assert differences(before, read_state(node, sandbox)) == []
    assert not Path("/run/vandal").exists()


def test_settings_of_the_host_are_not_writable(node: Tool, sandbox: Namespace):
    """Another vendor's plugin can write network sysctls of the copy, no setting of the machine, and reach itself."""
    settings = "/proc/sys/vm/swappiness /proc/sys/kernel/hostname /proc/sysrq-trigger /sys/class /dev/shm"
    body = f'for each in {settings} /proc/sys/net/ipv4/ip_forward; do [ ! -w "$each" ] || echo "can: $each" >&2; done'
    body += "; ping -c 1 -W 20 127.0.0.1 >/dev/null || echo no loopback >&2"
    node.configure({"type": "meddler"})
    foreign_tool = node.with_scripts(meddler=f"{body}; {RESULT}")
    (step,) = foreign_tool.json("add", "net", sandbox.name, "--dry-run")["steps"]
    assert step["stderr"] == "can: /proc/sys/net/ipv4/ip_forward\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_dry_run_leaves_nothing(node: Tool, sandbox: Namespace, number: int):
    """A terminated or killed dry run leaves no process, namespace or mount."""
    before = read_state(node, sandbox)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared_directory:  # the copy has another /run
        fifo = f"{shared_directory}/up"
        os.mkfifo(fifo)
        node.configure({"type": "slow"})
        foreign_tool = node.with_scripts(slow=f"echo $$ > {fifo}; exec sleep 60")
        dry_run = foreign_tool.start("add", "net", sandbox.name, "--dry-run")
        with open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as reader:  # O_RDWR: does not wait for a writer
            readable, _, _ = select.select([reader], [], [], 60)
            assert readable
            pid = int(reader.readline())
    namespace = os.readlink(f"/proc/{pid}/ns/net")
    dry_run.send_signal(number)
    dry_run.communicate(timeout=30)
    assert eventually(lambda: namespace not in namespaces(), within_s=30)
    (node.directory / "bin" / "slow").unlink()
    (node.directory / "bin").rmdir()
    (node.directory / "net.d" / "net.conflist").write_bytes(before["files"][f"{node.directory}/net.d/net.conflist"])
    assert differences(before, read_state(node, sandbox)) == []


def namespaces() -> set[str]:
    """Returns the network namespaces of all processes."""
    links = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            links.add(os.readlink(process / "ns" / "net"))
    return links


def test_dry_run_of_del_changes_nothing(node: Tool, sandbox: Namespace):
    """A dry run of DEL prints the lease, the veth, the rules and the cache entry, and deletes nothing."""
    node.succeed("add", "net", sandbox.name, *PORTS)
    before = read_state(node, sandbox)
    changes = "\n".join(list_planned_changes(node, "del", "net", sandbox.name))
    printed = node.succeed("del", "net", sandbox.name, "--dry-run")
    assert differences(before, read_state(node, sandbox)) == []
    assert re.search(r'delete "veth\w+"', changes)
    assert "release 10.22.0.2" in changes
    assert "CNI-HOSTPORT-DNAT" in changes
    assert re.search(rf"{node.cache}/net-\S+ would be removed", printed)
    node.succeed("check", "net", sandbox.name)
    node.succeed("del", "net", sandbox.name)


def test_dry_run_of_gc_changes_nothing(node: Tool, new_sandbox: Callable[[], Namespace]):
    """A dry run of GC prints the changes of DEL and GC, and makes none."""
    running, stopped = new_sandbox(), new_sandbox()
    node.succeed("add", "net", stopped.name, *PORTS)
    node.succeed("add", "net", running.name)
    node.delete_netns(stopped)
    before = read_state(node, running)
    changes = "\n".join(list_planned_changes(node, "gc", "net"))
    assert differences(before, read_state(node, running)) == []
    assert "release 10.22.0.2" in changes
    assert "10.22.0.3" not in changes
    node.succeed("gc", "net")
    assert not (node.leases / "10.22.0.2").exists()


def test_copies_of_the_executable_count_as_podwire(node: Tool, sandbox: Namespace, tmp_path: Path):
    """The changes of plugins that are copies of the tool, as after an installation, are known."""
    for name in ("bridge", "host-local", "portmap", "firewall", "tuning"):
        shutil.copy2(binaries.directory() / name, tmp_path)
    copies = Tool(node.host, node.directory, tmp_path)
    node.succeed("add", "net", sandbox.name, *PORTS)
    assert "release 10.22.0.2" in "\n".join(list_planned_changes(copies, "del", "net", sandbox.name))


def test_changes_of_foreign_plugins_are_unknown(node: Tool, reference: Path, sandbox: Namespace):
    """A dry run of DEL or GC never runs another vendor's plugin, and prints its changes as unknown."""
    node.configure(node.bridge(ipMasq=True), {"type": "firewall"}, version="1.1.0")
    node.succeed("add", "net", sandbox.name)
    foreign_tool = Tool(node.host, node.directory, reference)
    before = read_state(node, sandbox)
    for command in (("del", "net", sandbox.name), ("gc", "net")):
        assert "unknown: bridge is not podwire's" in foreign_tool.succeed(*command, "--dry-run")
    assert differences(before, read_state(node, sandbox)) == []
