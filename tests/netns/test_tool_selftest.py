"""`podwire selftest` passes on this kernel, needs only its file, changes nothing, leaves nothing when killed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel import modules
from kernel.netns import Netns
from podwire.main import PLUGINS
from podwire.selftest import packets
from podwire.selftest.packets import LostError
from tests.support import binaries, netstate
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.tool import Tool

# Each runs hundreds of verbs: minutes in user-mode Linux.
pytestmark = [pytest.mark.one_kernel, pytest.mark.timeout(1000)]

SELFTEST = [str(binaries.directory() / "podwire"), "selftest"]
VERBS = {"ADD", "CHECK", "DEL", "GC", "STATUS"}
NAMES_OF_THE_TEST = ("selftest", "pwup", "pwbridge", "pwvrf", "pwdhcp", "10.209.", "192.0.2.")
# A root directory with the executable and the directories that every system has, and nothing else.
ALONE = """\
set -e
mount -t tmpfs podwire "$1" && cd "$1"
mkdir -p proc run var/lib dev
cp "$2" podwire
mount --rbind /proc proc && touch dev/null && mount --bind /dev/null dev/null
exec chroot . /podwire selftest --json
"""
IN_DIRECTORY = ALONE.replace('cd "$1"', 'mkdir "$1/below" && cd "$1/below"')


def list_failures(document: dict[str, Any]) -> list[str]:
    """Returns the reason of each network that failed."""
    return [f"{item['network']}: {item['reason']}" for item in document["networks"] if item["outcome"] == "failed"]


def list_started_processes() -> list[int]:
    """Returns the processes that a self-test has started."""
    started = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"podwire-selftest" in path.read_bytes():
                started.append(int(path.parent.name))
        except OSError:
            continue
    return started


# The kernel modules of networks, which a skipped network names.
MODULES = {"dummy": "dummy", "ipvlan": "ipvlan", "macvlan": "macvlan", "vlan": "8021q", "vrf": "vrf"}


@pytest.mark.needs("nft_nat", "nft_inet", "ifb", "tbf")  # for the network bridge, nftables
def test_every_plugin_works_or_is_skipped_with_a_reason(tool: Tool):
    """Each network passes or is skipped for a reason; the document has each verb's time and the measured limit."""
    before = netstate.state(tool.host, netfilter=True)
    with tool.host.entered():
        done = subprocess.run([*SELFTEST, "--json"], capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert list_failures(document) == []
    assert (done.stderr, done.returncode in (0, 4)) == ("", True)
    networks = {item["network"]: item for item in document["networks"]}
    assert {kind for item in networks.values() for kind in item["plugins"]} == set(PLUGINS)
    assert [item for item in networks.values() if (item["outcome"] == "skipped") != bool(item["reason"])] == []
    missing = {name: networks[name]["reason"] for name in MODULES if networks[name]["reason"]}
    fixes = {name: modules.explain_missing(module) for name, module in MODULES.items()}
    assert [name for name, reason in missing.items() if not reason.endswith(fixes[name])] == []
    for name in ("loopback", "ptp", "bridge, nftables"):
        item = networks[name]
        assert item["outcome"] == "passed"
        assert {verb["command"] for verb in item["verbs"]} == VERBS
        assert all(verb["leastMs"] > 0 for verb in item["verbs"])
    limits = [item["value"] for item in networks["bridge, nftables"]["packets"] if item["unit"] == "Mbit/s"]
    assert [0 < value < 26 for value in limits] == [True, True]
    assert document["seconds"] > 0
    assert [line for line in document["changes"] if any(name in line for name in NAMES_OF_THE_TEST)] == []
    assert netstate.state(tool.host, netfilter=True) == before


@pytest.mark.long
def test_it_needs_only_its_file(tool: Tool, tmp_path: Path):
    """Without any other program everything passes but the networks that need iptables, which are skipped."""
    (tmp_path / "root").mkdir()
    line = ["unshare", "--mount", "sh", "-c", ALONE, "sh", str(tmp_path / "root"), SELFTEST[0]]
    with tool.host.entered():
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode in (0, 4), list_failures(document)
    networks = {item["network"]: item for item in document["networks"]}
    assert networks["ptp"]["outcome"] == "passed"
    assert networks["bridge, iptables"]["outcome"] == "skipped"
    assert "iptables-restore" in networks["bridge, iptables"]["reason"]
    assert (document["passed"], document["programs"]) == (True, [])


def test_root_directory_that_is_no_mount_point_is_refused(tool: Tool, tmp_path: Path):
    """In a chroot whose mounts it cannot make private it changes nothing and names the command that helps."""
    line = ["unshare", "--mount", "sh", "-c", IN_DIRECTORY, "sh", str(tmp_path), SELFTEST[0]]
    with tool.host.entered():
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, "mount --bind DIRECTORY DIRECTORY" in json.loads(done.stdout)["details"]) == (3, True)


@pytest.mark.parametrize("after_s", [0.3, 1.0, 2.5, 5.0])
def test_killed_it_leaves_nothing(tool: Tool, after_s: float):
    """After SIGKILL at any point no process, link, file or mount remains."""
    mounts = Path("/proc/self/mountinfo").read_text()
    before = netstate.state(tool.host, netfilter=True)
    with tool.host.entered():
        process = subprocess.Popen(SELFTEST, stdout=subprocess.DEVNULL)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert eventually(lambda: not list_started_processes(), within_s=50)
    assert netstate.state(tool.host, netfilter=True) == before
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not os.path.exists("/run/podwire-selftest")


@pytest.mark.long
def test_changes_of_the_machine_are_printed(tool: Tool):
    """A link that another program creates meanwhile is printed, and the exit status is 4."""
    with tool.host.entered():
        process = subprocess.Popen(SELFTEST, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    lines = [process.stdout.readline()]  # the facts: the state before has been read when the first network is printed
    while not lines[-1].startswith("loopback"):
        lines.append(process.stdout.readline())
    tool.host.ip("link", "add", "another0", "type", "bridge")
    rest, errors = process.communicate()
    assert (process.returncode, errors) == (4, "")
    assert " another0 down, MTU 1500, master 0\n" in rest
    assert "unchanged" not in rest
    assert rest.splitlines()[-1].startswith("To send this result: podwire selftest --json")


def test_lost_packets_are_detected(new_sandbox: Callable[[], Namespace]):
    """A ping and a connection to an unused address fail."""
    sandbox = new_sandbox()
    sandbox.ip("link", "set", "lo", "up")
    with Netns(sandbox.path) as namespace:
        assert packets.ping(namespace, "127.0.0.1", "127.0.0.1") > 0
        assert packets.ping(namespace, "::1", "::1") > 0
        with pytest.raises(LostError, match=r"no reply from 192\.0\.2\.7"):
            packets.ping(namespace, "0.0.0.0", "192.0.2.7")
        with pytest.raises(LostError, match=r"no connection to 127\.0\.0\.1 port 81"):
            packets.connect(namespace, 80, namespace, ("127.0.0.1", 81))
        ms, seen = packets.connect(namespace, 80, namespace, ("127.0.0.1", 80))
        assert (ms > 0, seen) == (True, "127.0.0.1")


def test_a_missing_limit_is_detected(new_sandbox: Callable[[], Namespace]):
    """A stream without a limit is many times as fast as the limit of the self-test, in both directions."""
    sandbox = new_sandbox()
    sandbox.ip("link", "set", "lo", "up")
    with Netns(sandbox.path) as namespace:
        for to_server in (True, False):
            rate = packets.stream(namespace, 80, namespace, ("127.0.0.1", 80), 10_000_000, to_server=to_server)
            assert rate > 200_000_000
