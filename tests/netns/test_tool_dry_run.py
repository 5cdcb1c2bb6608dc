"""A dry run tells what a verb would change, and changes nothing at all."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.chained import differences
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool

PORTS = ("--capability-args", '{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}')


@pytest.fixture
def node(tool: Tool, new_sandbox: Callable[[], Namespace]) -> Tool:
    """The tool on a host with an uplink of MTU 1420, a default route, one pod on the bridge, and a flushed rule."""
    outside = new_sandbox()
    tool.host.ip("link", "add", "uplink0", "mtu", "1420", "type", "veth", "peer", "beyond0", "netns", outside.name)
    tool.host.ip("addr", "add", "192.0.2.2/24", "dev", "uplink0")
    tool.host.ip("link", "set", "uplink0", "up")
    outside.ip("link", "set", "beyond0", "up")
    tool.host.ip("route", "add", "default", "via", "192.0.2.1")
    tuning = {"type": "tuning", "mtu": 1400, "dataDir": str(tool.directory / "backups")}
    tool.configure(tool.bridge(ipMasq=True, mtu="auto"), PORTMAP, {"type": "firewall"}, tuning)
    return tool


def machine(tool: Tool, *pods: Namespace) -> dict[str, Any]:
    """Returns all there is, on the machine, too: links, mounts, namespaces' names and host-local's notes."""
    notes = {str(path): path.read_text() for path in sorted(tool.directory.rglob("last_reserved_ip*"))}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [Path("/run/cni"), Path("/var/lib/cni")]
    files = sorted(str(path) for place in places for path in place.rglob("*"))
    own = [line for line in mounts if str(tool.directory) in line or "podwire" in line]
    return tool.everything(*pods) | {"notes": notes, "mounts": own, "machine": files}


def told(tool: Tool, *words: str) -> list[str]:
    """Runs a dry run with --json and returns its changes, those of all plugins."""
    steps = tool.json(*words, "--dry-run")["steps"]
    return [change for step in steps for change in step["changes"]]


def test_add_tells_all_and_changes_nothing(node: Tool, new_sandbox: Callable[[], Namespace]):
    """The next address, the veth, its MTU, routes and rules are told as they would be, and all is as before."""
    first, second = new_sandbox(), new_sandbox()
    node.succeed("add", "net", first.name, *PORTS)
    before = machine(node, first, second)
    document = node.json("add", "net", second.name, *PORTS, "--dry-run")
    assert differences(before, machine(node, first, second)) == []
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


def test_add_on_a_fresh_node_names_what_all_share(node: Tool, sandbox: Namespace):
    """On a node without a pod the bridge, its gateway address and the shared chains would be made, too."""
    before = machine(node, sandbox)
    changes = "\n".join(told(node, "add", "net", sandbox.name, *PORTS))
    assert differences(before, machine(node, sandbox)) == []
    for change in ('create bridge "cni0"', "10.22.0.1/24", "CNI-HOSTPORT-DNAT", "CNI-FORWARD"):
        assert change in changes


def test_add_tells_what_would_fail(node: Tool, sandbox: Namespace):
    """What fails ADD fails its dry run with the same words: a bridge that is none, a range without a free address."""
    node.configure(node.bridge(bridge="uplink0"))
    before = machine(node, sandbox)
    assert "already exists but is not a bridge" in node.fail(1, "add", "net", sandbox.name, "--dry-run")
    assert differences(before, machine(node, sandbox)) == []
    node.leases.mkdir(parents=True)
    ipam = {"type": "host-local", "dataDir": str(node.leases.parent), "ranges": [[{"subnet": "10.22.0.0/30"}]]}
    node.configure(node.bridge(ipam=ipam))
    (node.leases / "10.22.0.2").write_text("other\r\neth0")
    before = machine(node, sandbox)
    tried = node.json("add", "net", sandbox.name, "--dry-run", status=1)["steps"]
    assert differences(before, machine(node, sandbox)) == []
    (failure,) = [step["error"] for step in tried if "error" in step]
    assert failure == node.json("add", "net", sandbox.name, status=1)["steps"][0]["error"]


def test_add_runs_the_plugins_of_others_in_the_copy(node: Tool, reference: Path, sandbox: Namespace):
    """What is not podwire's is run in earnest, where it can do no harm; that its changes are unknown is told."""
    theirs = Tool(node.host, node.directory, reference)
    node.configure(node.bridge(ipMasq=True), {"type": "firewall"}, version="1.0.0")
    before = machine(node, sandbox)
    document = theirs.json("add", "net", sandbox.name, "--dry-run")
    assert differences(before, machine(node, sandbox)) == []
    assert document["result"]["ips"][0]["address"] == "10.22.0.2/24"
    assert [interface.get("sandbox") for interface in document["result"]["interfaces"]][-1] == sandbox.path
    assert not any("changes" in step for step in document["steps"])
    assert "unknown: firewall is not podwire's" in theirs.succeed("add", "net", sandbox.name, "--dry-run")


def test_what_a_plugin_writes_stays_in_the_copy(node: Tool, sandbox: Namespace):
    """A plugin of others cannot write to the host's files while it is tried."""
    directory = node.directory / "bin"
    directory.mkdir()
    (directory / "vandal").write_text(
        f"#!/bin/sh\nrm -rf {node.directory}/net.d {node.directory}/leases; touch /run/vandal {node.directory}/mine\n"
        'echo \'{"cniVersion": "1.1.0"}\'\n'
    )
    (directory / "vandal").chmod(0o755)
    node.configure({"type": "vandal"})
    before = machine(node, sandbox)
    Tool(node.host, node.directory, Path(f"{directory}:{binaries.directory()}")).run(
        "add", "net", sandbox.name, "--dry-run"
    )
    assert differences(before, machine(node, sandbox)) == []
    assert not Path("/run/vandal").exists()


def test_settings_of_the_machine_are_out_of_reach(node: Tool, sandbox: Namespace):
    """A plugin of others may set what is the copy's network's, and nothing that is the whole machine's."""
    settings = "/proc/sys/vm/swappiness /proc/sys/kernel/hostname /proc/sysrq-trigger /sys/class /dev/shm"
    body = f'for each in {settings} /proc/sys/net/ipv4/ip_forward; do [ ! -w "$each" ] || echo "can: $each" >&2; done'
    theirs = others(node, "meddler", body)
    (step,) = theirs.json("add", "net", sandbox.name, "--dry-run")["steps"]
    assert step["stderr"] == "can: /proc/sys/net/ipv4/ip_forward\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_tried_ends_with_the_tool(node: Tool, sandbox: Namespace, number: int):
    """However a dry run ends, no process of it is left, nor a namespace or a mount."""
    before = machine(node, sandbox)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shown:  # nothing under /run is the host's in there
        up = f"{shown}/up"
        os.mkfifo(up)
        theirs = others(node, "slow", f"echo $$ > {up}; exec sleep 60")
        tried = theirs.start("add", "net", sandbox.name, "--dry-run")
        with open(os.open(up, os.O_RDWR), "rb", buffering=0) as reader:  # which does not wait for a writer
            readable, _, _ = select.select([reader], [], [], 60)
            assert readable, ended(tried)
            pid = int(reader.readline())
    namespace = os.readlink(f"/proc/{pid}/ns/net")
    tried.send_signal(number)
    tried.communicate(timeout=30)
    deadline = time.monotonic() + 30
    while namespace in namespaces() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert namespace not in namespaces()
    (node.directory / "bin" / "slow").unlink()
    (node.directory / "bin").rmdir()
    (node.directory / "net.d" / "net.conflist").write_bytes(before["files"][f"{node.directory}/net.d/net.conflist"])
    assert differences(before, machine(node, sandbox)) == []


def ended(tool: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Ends the tool; returns what it printed on stdout and stderr."""
    tool.terminate()
    return tool.communicate(timeout=30)


def namespaces() -> set[str]:
    """Returns the network namespaces of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(os.readlink(process / "ns" / "net"))
    return found


def others(node: Tool, name: str, body: str) -> Tool:
    """Makes a network of one plugin that is a shell script; returns the tool that finds it."""
    directory = node.directory / "bin"
    directory.mkdir()
    (directory / name).write_text(f'#!/bin/sh\n{body}\necho \'{{"cniVersion": "1.1.0"}}\'\n')
    (directory / name).chmod(0o755)
    node.configure({"type": name})
    return Tool(node.host, node.directory, directory)


def test_del_tells_all_and_changes_nothing(node: Tool, sandbox: Namespace):
    """The lease, the veth, the rules and the entry that would go are told, and all is as before."""
    node.succeed("add", "net", sandbox.name, *PORTS)
    before = machine(node, sandbox)
    changes = "\n".join(told(node, "del", "net", sandbox.name))
    printed = node.succeed("del", "net", sandbox.name, "--dry-run")
    assert differences(before, machine(node, sandbox)) == []
    assert re.search(r'delete "veth\w+"', changes)
    assert "release 10.22.0.2" in changes
    assert "CNI-HOSTPORT-DNAT" in changes
    assert re.search(rf"{node.cache}/net-\S+ would be removed", printed)
    node.succeed("check", "net", sandbox.name)
    node.succeed("del", "net", sandbox.name)


def test_gc_tells_all_and_changes_nothing(node: Tool, new_sandbox: Callable[[], Namespace]):
    """What DEL of the dead and GC would remove is told, and all is as before."""
    living, dead = new_sandbox(), new_sandbox()
    node.succeed("add", "net", dead.name, *PORTS)
    node.succeed("add", "net", living.name)
    node.delete_netns(dead)
    before = machine(node, living)
    changes = "\n".join(told(node, "gc", "net"))
    assert differences(before, machine(node, living)) == []
    assert "release 10.22.0.2" in changes
    assert "10.22.0.3" not in changes
    node.succeed("gc", "net")
    assert not (node.leases / "10.22.0.2").exists()


def test_a_copy_of_the_file_is_no_stranger(node: Tool, sandbox: Namespace, tmp_path: Path):
    """What plugins would do is told also where they are copies of the tool, as it is after an installation."""
    for name in ("bridge", "host-local", "portmap", "firewall", "tuning"):
        shutil.copy2(binaries.directory() / name, tmp_path)
    copies = Tool(node.host, node.directory, tmp_path)
    node.succeed("add", "net", sandbox.name, *PORTS)
    assert "release 10.22.0.2" in "\n".join(told(copies, "del", "net", sandbox.name))


def test_of_others_nothing_is_known(node: Tool, reference: Path, sandbox: Namespace):
    """A dry run of DEL or GC never runs another's plugin, and says that it cannot tell."""
    node.configure(node.bridge(ipMasq=True), {"type": "firewall"}, version="1.1.0")
    node.succeed("add", "net", sandbox.name)
    theirs = Tool(node.host, node.directory, reference)
    before = machine(node, sandbox)
    for command in (("del", "net", sandbox.name), ("gc", "net")):
        assert "unknown: bridge is not podwire's" in theirs.succeed(*command, "--dry-run")
    assert differences(before, machine(node, sandbox)) == []
