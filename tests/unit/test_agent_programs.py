"""The agent's runs of `podwire install` and `podwire gc`, with a script as the executable."""

import json
from ipaddress import ip_network

import pytest

from agent.garbage import Collection, GarbageCollector
from agent.node import Node
from agent.node_files import NodeFiles, masquerade_backends
from agent.settings import parse
from process.loop import Loop
from tests.unit.test_agent_parts import run_until

NODE = Node("node-1", "uid", (ip_network("10.244.1.0/24"), ip_network("fd00:1::/64")))
SCRIPT = """#!/bin/sh
echo "$@" >>{directory}/calls
[ ! -e {directory}/node ] || cat "$(echo "$@" | sed 's/.*--node //')" >{directory}/seen
cat {directory}/output
exit $(cat {directory}/status)
"""


@pytest.fixture
def settings(tmp_path):
    """Settings whose executable is a script that logs its calls."""
    (tmp_path / "output").write_text("wrote /x\n")
    (tmp_path / "status").write_text("0")
    (tmp_path / "node").write_text("")
    (tmp_path / "net.conflist").write_text(json.dumps({"name": "podnet", "plugins": []}))
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "net.conflist").write_text("{}")
    program = tmp_path / "podwire"
    program.write_text(SCRIPT.format(directory=tmp_path))
    program.chmod(0o755)
    options = {"podwire": program, "conf": tmp_path / "net.conflist", "conf-dir": tmp_path / "net.d"}
    return parse([f"--{name}={value}" for name, value in options.items()], {"NODE_NAME": "node-1"})


@pytest.fixture
def files(settings, tmp_path):
    """A NodeFiles and its reports; `ensure` waits for the installation."""

    class Files:
        def __init__(self):
            self.loop = Loop()
            self.reports: list[tuple[str, str]] = []
            self.files = NodeFiles(settings, self.loop, lambda *report: self.reports.append(report))

        def ensure(self, node=NODE):
            self.files.ensure(node)
            run_until(self.loop, lambda: not self.files.is_running)

        @property
        def calls(self):
            path = tmp_path / "calls"
            return path.read_text().splitlines() if path.exists() else []

    return Files()


def test_installs_once_for_the_same_networks(files, tmp_path):
    """It runs `podwire install` with the node's podCIDRs, and not again while nothing changes."""
    files.ensure()
    files.ensure()
    (call,) = files.calls
    assert call.startswith(f"install --conf {tmp_path}/net.conflist --bin-dir /opt/cni/bin --conf-dir {tmp_path}/net.d")
    assert json.loads((tmp_path / "seen").read_text()) == {
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "spec": {"podCIDRs": ["10.244.1.0/24", "fd00:1::/64"]},
    }
    assert files.reports == [("", "wrote /x")]
    assert files.files.is_installed


def test_installs_again_when_something_changed(files, tmp_path):
    """Other podCIDRs, another file, another executable and a deleted network are reasons to install again."""
    changed = NODE._replace(pod_cidrs=NODE.pod_cidrs[:1])
    files.ensure()
    files.ensure(changed)
    (tmp_path / "net.conflist").write_text(json.dumps({"name": "other"}))
    files.ensure(changed)
    (tmp_path / "podwire").write_text(SCRIPT.format(directory=tmp_path) + "\n")
    files.ensure(changed)
    (tmp_path / "net.d" / "net.conflist").unlink()
    files.ensure(changed)
    assert len(files.calls) == 5


def test_podcidr_that_changes_during_an_installation_is_installed_after_it(files, tmp_path):
    """A change of podCIDRs while `podwire install` runs is installed when it has ended."""
    files.files.ensure(NODE)
    files.ensure(NODE._replace(pod_cidrs=NODE.pod_cidrs[:1]))
    assert len(files.calls) == 2
    assert json.loads((tmp_path / "seen").read_text())["spec"] == {"podCIDRs": ["10.244.1.0/24"]}


def test_failure_is_reported_and_repeated(files, tmp_path):
    """A failed installation is reported with its error, and the next call installs again."""
    (tmp_path / "status").write_text("3")
    (tmp_path / "output").write_text("wrote /x\n2 pods run in network podnet\n")
    files.ensure()
    problem = "podwire install failed (exit status 3): 2 pods run in network podnet"
    assert files.reports == [(problem, "wrote /x\n2 pods run in network podnet")]
    assert not files.files.is_installed
    files.ensure()
    assert len(files.calls) == 2


def test_missing_files_are_reported(files, tmp_path):
    """A missing executable or network is reported with its path."""
    (tmp_path / "podwire").unlink()
    files.files.ensure(NODE)
    (tmp_path / "net.conflist").unlink()
    files.files.ensure(NODE)
    assert [report[0] for report in files.reports] == [
        f"cannot start podwire install: {tmp_path}/podwire No such file or directory",
        f"cannot start podwire install: {tmp_path}/net.conflist No such file or directory",
    ]


@pytest.mark.parametrize(("status", "result"), [(0, "ok"), (1, "failed"), (3, "incomplete"), (4, "incomplete")])
def test_garbage_collection_reports_its_result(settings, tmp_path, status, result):
    """Exit status 3 and 4 of `podwire gc` mean that there was no proof: incomplete."""
    (tmp_path / "node").unlink()
    (tmp_path / "status").write_text(str(status))
    loop = Loop()
    reports: list[Collection] = []
    collector = GarbageCollector(settings, loop, reports.append)
    collector.run()
    collector.run()
    run_until(loop, lambda: reports)
    assert reports == [Collection(result, "wrote /x")]
    assert (tmp_path / "calls").read_text().startswith("gc podnet --cache-dir /var/lib/cni")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', None])
def test_garbage_collection_needs_a_network(settings, tmp_path, text):
    """A network's file without a name is a failure, not an exception."""
    path = tmp_path / "net.conflist"
    path.unlink() if text is None else path.write_text(text)
    reports: list[Collection] = []
    GarbageCollector(settings, Loop(), reports.append).run()
    assert [one.result for one in reports] == ["failed"]


@pytest.mark.parametrize(
    ("plugins", "backends"),
    [
        ([{"ipMasq": True, "ipMasqBackend": "nftables"}], ("nftables",)),
        ([{"ipMasq": True, "ipMasqBackend": "iptables"}], ("iptables",)),
        ([{"ipMasq": True}], ("iptables", "nftables")),
        ([{"type": "bridge"}], ("iptables", "nftables")),
        ("x", ("nftables",)),
    ],
)
def test_backends_of_the_network(tmp_path, plugins, backends):
    """The masquerading backends are those that the network names."""
    path = tmp_path / "net"
    path.write_text(json.dumps({"plugins": plugins}))
    assert masquerade_backends(str(path)) == backends
