"""`podwire doctor` on healthy nodes: nothing is told, nothing is changed, and what root alone sees is said to be so."""

from __future__ import annotations

import re
import resource
import time
from pathlib import Path

import pytest

from tests.support import netstate
from tests.support.binaries import ROOT
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.netlist import NetworkList

SAMPLES = sorted(path.name for path in (ROOT / "conf").glob("*.conflist"))
MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
LIMITS = {"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000}
CHANGES = "mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,chmod,fchmod,fchmodat"


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


def needed(name: str) -> list[str]:
    text = (ROOT / "conf" / name).read_text()
    return ["nft_nat"] * ("nftables" in name) + ["ifb", "tbf"] * ('"bandwidth"' in text)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs(*needed(name)), id=name) for name in SAMPLES]
)
def test_a_healthy_node_has_nothing(node, new_sandbox, name):
    """Of a sample with two living pods that have host ports and limits nothing is told."""
    network = node.add_sample(name)
    for port in (8080, 8081):
        node.attach(network.asking(portMappings=[{**MAPPING, "hostPort": port}], bandwidth=LIMITS), new_sandbox())
        if "static" in name:
            break  # its address is one
    found = node.list_checks()
    assert list_problems(found) == [], found
    assert any(one["name"] == "check" and "were checked" in one["text"] for one in found), found


@pytest.mark.needs("nft_nat", "ifb", "tbf")
def test_all_samples_together_have_nothing(node):
    """A node whose net.d has all samples has no problem and no warning."""
    for name in SAMPLES:
        node.add_sample(name)
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("vlan_filtering")
def test_a_gateway_in_a_vlan_has_nothing(node, new_sandbox):
    """Pods in a VLAN, whose gateway stands on an interface of its own, are healthy."""
    ipam = {"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": str(node.directory / "leases")}
    body = {"type": "bridge", "bridge": "br0", "vlan": 5, "isDefaultGateway": True, "ipMasq": True, "ipam": ipam}
    path = node.configure("10-vlan.conflist", {"cniVersion": "1.0.0", "name": "vlan", "plugins": [body]})
    for _ in range(2):
        node.attach(NetworkList.load(path), new_sandbox())
    found = node.list_checks()
    assert list_problems(found) == [], found


def test_pods_of_the_reference_have_nothing(node, new_sandbox, reference):
    """Pods that the reference plugins attached, with theirs in the plugin directory, are healthy."""
    node.bin_dir = reference
    network = node.add_sample("60-podman.conflist")
    for port in (8080, 8081):
        node.attach(network.asking(portMappings=[{**MAPPING, "hostPort": port}]), new_sandbox())
    found = node.list_checks()
    assert list_problems(found) == [], found
    assert any("all 2 were checked" in one["text"] for one in found), found
    (remark,) = [one for one in found if one["name"] == "remark"]  # told once, and not on stderr
    assert (remark["severity"], remark["cure"]) == ("note", f"podwire repair {network.name}")
    assert node.doctor().stderr == ""


def test_problems_come_first_with_their_cure_below(node, sandbox):
    """Text for a person has problems, warnings, notes, then the groups in order, and a summary."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    node.host.set_sysctl("net/ipv4/ip_forward", "0")
    done = node.doctor()
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done
    assert lines[0].startswith("problem kernel: net/ipv4/ip_forward: "), lines
    assert lines[1] == "  fix: sysctl -w net/ipv4/ip_forward=1"
    assert re.fullmatch(r"ok plugins: \d+ in order", next(line for line in lines if line.startswith("ok plugins")))
    assert lines[-1].startswith("1 problem, 0 warnings, "), lines


def test_all_tells_what_is_in_order(node):
    """--all has a line for each thing that is in order, as the plugins with the time they take to start."""
    node.add_sample("60-podman.conflist")
    done = node.doctor("--all")
    assert done.returncode == 0, done
    line = r"^ok plugins: \S+/bridge: starts in [\d.]+ ms, supports 0\.1\.0 to 1\.1\.0$"
    assert re.search(line, done.stdout, re.M), done


def test_one_network_alone(node):
    """A name narrows the look to one network."""
    node.add_sample("60-podman.conflist")
    node.configure("99-broken.conflist", {"name": "broken", "cniVersion": "1.0.0", "plugins": [{"type": "absent"}]})
    assert list_problems(node.list_findings("podwire-podman")) == []
    assert node.find("plugin-missing", "broken")["subject"] == "absent"


def test_nothing_is_changed(node, new_sandbox, tmp_path, tmp_path_factory):
    """A look changes neither the kernel's state nor a file, and opens no file for writing."""
    network = node.add_sample("60-podman.conflist").asking(portMappings=[MAPPING])
    pod = new_sandbox()
    node.attach(network, pod)
    before = netstate.state(node.host, netfilter=True), netstate.state(pod), files(tmp_path)
    trace = tmp_path_factory.mktemp("trace") / "calls"
    strace = f"strace -f -o {trace} -e trace=open,openat,creat,{CHANGES}"
    assert list_problems(node.list_findings(wrapper=strace)) == []
    lines = trace.read_text().splitlines()
    assert (netstate.state(node.host, netfilter=True), netstate.state(pod), files(tmp_path)) == before
    changing = [line for line in lines if is_change(line)]
    assert any("openat(" in line for line in lines)
    assert changing == []


def is_change(line: str) -> bool:
    """Tells whether a line of strace is a call that can change a file; what programs have for /dev/null is none."""
    call = line.split(maxsplit=1)[1]
    if call.startswith(("open(", "openat(", "creat(")):
        # A file without a name, as STATUS tries whether a directory takes one, is gone when it is closed; the lock is
        # iptables-legacy's own.
        return bool(re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|creat\(", call)) and not re.search(
            r'"/dev/null"|"/run/xtables.lock"|O_TMPFILE', call
        )
    return call.startswith(tuple(f"{name}(" for name in CHANGES.split(",")))


def files(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Returns all files below a directory, with the time of their last change."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ctime_ns, path.read_bytes()) for path in found}


def test_without_root_it_says_what_it_cannot_see(node, sandbox):
    """Who is not root is told the rest, and what could not be looked at, as notes."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    above = [str(path) for path in (node.directory, *node.directory.parents) if len(path.parts) > 2]
    found = node.list_checks(
        before=f"chmod o+x {' '.join(above)}",
        wrapper="setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all",
    )
    assert not any("Traceback" in one["text"] for one in found)
    assert any("root" in one["cure"] or "root" in one["text"] for one in found if one["severity"] == "note"), found
    assert [one for one in found if one["name"] == "not-ready"] == []
    assert any(one["name"] == "forwarding" and one["severity"] == "ok" for one in found), found


@pytest.mark.crowd
def test_a_hundred_attachments_are_looked_at_in_time(node, new_sandbox):
    """A hundred attachments with host ports are checked within five seconds, or it is told how many were not.

    What is measured is the processors' time, since other tests may keep them busy.
    """
    network = node.add_sample("60-podman.conflist")
    for number in range(100):
        node.attach(network.asking(portMappings=[{**MAPPING, "hostPort": 8000 + number}]), new_sandbox())
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    found = node.list_checks()
    took, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"100 attachments: {took:.2f} s, {worked:.2f} s of work")
    assert list_problems(found) == [], found
    texts = " ".join(one["text"] for one in found)
    assert "all 100 were checked" in texts or re.search(
        r"\d+ of 100 attachments were checked; not \d+: time was up", texts
    )
    assert worked < 5


def test_a_broken_pipe_and_strange_names_do_no_harm(node):
    """What stands in files reaches a terminal escaped."""
    node.configure("10-\x1b[31m.conflist", "{")
    done = node.doctor()
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\\x1b[31m" in done.stdout
