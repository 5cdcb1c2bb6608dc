"""`podwire doctor` on healthy nodes: it reports no problem, changes nothing, and lists what only root can inspect."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import dhcp_node, kernels, netstate
from tests.support.doctor_node import list_problems
from tests.support.samples import FILES, list_features

SINGLE = ("80-static.conflist", "92-vlan.conflist", "93-host-device.conflist")  # one address, VLAN or device
MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
LIMITS = {"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000}
CHANGES = "mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,chmod,fchmod,fchmodat"


@pytest.fixture
def prepare(node) -> Iterator[Any]:
    """A function that prepares the host for lists, until the test ends."""
    with ExitStack() as stack:
        directory = node.directory / "dhcp"
        yield lambda *networks: stack.enter_context(dhcp_node.prepared(node.host, networks, directory))


@pytest.mark.parametrize(
    "name", [pytest.param(path.name, marks=pytest.mark.needs(*list_features(path)), id=path.name) for path in FILES]
)
def test_healthy_node_has_no_problem(node, new_sandbox, name, prepare):
    """A sample network with two running pods that have host ports and limits has no problem and no warning."""
    network = node.add_sample(name)
    prepare(network)
    for port in (8080, 8081):
        node.attach(
            network.with_capabilities(portMappings=[{**MAPPING, "hostPort": port}], bandwidth=LIMITS), new_sandbox()
        )
        if name in SINGLE:
            break
    findings = node.list_checks()
    assert list_problems(findings) == [], findings
    assert any(one["name"] == "check" and "CHECK was run" in one["text"] for one in findings), findings


def test_all_samples_together_have_no_problem(node, prepare):
    """A node whose net.d has all samples that the kernel supports has no problem and no warning."""
    prepare(*(node.add_sample(path.name) for path in FILES if not kernels.lacking(list_features(path))))
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("vlan_filtering")
def test_gateway_in_a_vlan_has_no_problem(node, new_sandbox):
    """Pods in a VLAN, whose gateway address is on a separate interface, are healthy."""
    network = node.add_bridge(vlan=5, isDefaultGateway=True, ipMasq=True)
    for _ in range(2):
        node.attach(network, new_sandbox())
    findings = node.list_checks()
    assert list_problems(findings) == [], findings


def test_pods_of_the_reference_plugins_have_no_problem(node, new_sandbox, reference):
    """Pods that the reference plugins attached, with the reference plugins in the plugin directory, are healthy."""
    node.bin_dir = reference
    network = node.add_sample("60-podman.conflist")
    for port in (8080, 8081):
        node.attach(network.with_capabilities(portMappings=[{**MAPPING, "hostPort": port}]), new_sandbox())
    findings = node.list_checks()
    assert list_problems(findings) == [], findings
    assert any("CHECK was run for 2" in one["text"] for one in findings), findings
    (remark,) = [one for one in findings if one["name"] == "remark"]  # reported once, and not on stderr
    assert (remark["severity"], remark["cure"]) == ("note", f"podwire repair {network.name}")
    assert node.doctor().stderr == ""


def test_problems_come_first_with_their_fix_below(node, sandbox):
    """The text output has problems, warnings, notes, then the groups without findings, and a summary."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    node.host.set_sysctl("net/ipv4/ip_forward", "0")
    done = node.doctor()
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done
    assert lines[0].startswith("problem kernel: net/ipv4/ip_forward: "), lines
    assert lines[1] == "  fix: sysctl -w net/ipv4/ip_forward=1"
    assert re.fullmatch(r"ok plugins: \d+ in order", next(line for line in lines if line.startswith("ok plugins")))
    assert lines[-1].startswith("1 problem, 0 warnings, "), lines


def test_all_prints_checks_that_pass(node, sandbox):
    """--all prints a line for each check that passes: a plugin with the time it takes to start, the chains read."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    done = node.doctor("--all")
    assert done.returncode == 0, done
    plugin = r"^ok plugins: \S+/bridge: starts in [\d.]+ ms, supports 0\.1\.0 to 1\.1\.0$"
    chains = r"^ok packet filter: \d+ chains read: .*no rule or policy drops or diverts the pods' packets$"
    assert all(re.search(line, done.stdout, re.M) for line in (plugin, chains)), done
    assert "use this file, the only one: network podwire-podman" in done.stdout


def test_network_argument_limits_the_checks(node):
    """With a network as argument only that network is checked."""
    node.add_sample("60-podman.conflist")
    node.configure("99-broken.conflist", {"name": "broken", "cniVersion": "1.0.0", "plugins": [{"type": "absent"}]})
    assert list_problems(node.list_findings("podwire-podman")) == []
    assert node.find("plugin-missing", "broken")["subject"] == "absent"


def test_doctor_changes_nothing(node, new_sandbox, tmp_path, tmp_path_factory):
    """Doctor changes neither the kernel's state nor a file, and opens no file for writing."""
    network = node.add_sample("60-podman.conflist").with_capabilities(portMappings=[MAPPING])
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
    """Returns whether a line of strace is a call that can change a file, other than /dev/null."""
    call = line.split(maxsplit=1)[1]
    if call.startswith(("open(", "openat(", "creat(")):
        # STATUS creates an unnamed file to check that a directory is writable; the lock is that of iptables-legacy.
        return bool(re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|creat\(", call)) and not re.search(
            r'"/dev/null"|"/run/xtables.lock"|O_TMPFILE', call
        )
    return call.startswith(tuple(f"{name}(" for name in CHANGES.split(",")))


def files(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Returns all files below a directory, with the time of their last change."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ctime_ns, path.read_bytes()) for path in paths}


def test_without_root_missing_checks_are_notes(node, sandbox):
    """Without root doctor runs the other checks, and reports as notes what it could not inspect."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    above = [str(path) for path in (node.directory, *node.directory.parents) if len(path.parts) > 2]
    findings = node.list_checks(
        before=f"chmod o+x {' '.join(above)}",
        wrapper="setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all",
    )
    assert not any("Traceback" in one["text"] for one in findings)
    assert any("root" in one["cure"] or "root" in one["text"] for one in findings if one["severity"] == "note"), (
        findings
    )
    assert [one for one in findings if one["name"] == "not-ready"] == []
    assert any(one["name"] == "forwarding" and one["severity"] == "ok" for one in findings), findings


def test_pods_of_a_network_before_it_got_another_bridge(node, new_sandbox):
    """Pods from before a change of the file keep their bridge, and are still checked; later ones get the new one."""
    for number, bridge in enumerate(("cni0", "cni9")):
        pod = new_sandbox()
        pod.ip("link", "set", "lo", "up")
        network = node.add_bridge("pods", f"10.{77 + number}.0.0/24", bridge=bridge)
        result = node.attach(network, pod)
        assert node.list_findings() == []
        if bridge == "cni0":
            port = next(one["name"] for one in result["interfaces"] if one["name"].startswith("veth"))
    node.host.ip("link", "set", port, "nomaster")
    (finding,) = list_problems(node.list_findings())
    assert finding["cure"] == f"ip link set {port} master cni0"
