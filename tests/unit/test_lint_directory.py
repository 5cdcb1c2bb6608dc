"""A directory of networks is read as the runtimes read it: the file that wins, hidden files, conflicts."""

import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cni.errors import CniError
from podwire import networks
from podwire.lint import directory
from podwire.lint.directory import LintResult
from podwire.main import PLUGINS
from tests.support.binaries import ROOT

SAMPLES = sorted(path for path in (ROOT / "tests/data/netd").iterdir() if path.is_dir() and path.name != "broken")
CONFLICTS = tomllib.loads((ROOT / "tests" / "data" / "lint_conflicts.toml").read_text())


def bridge(subnet: str, name: str = "cni0", **keys: Any) -> dict[str, Any]:
    return {"type": "bridge", "bridge": name, "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]}, **keys}


def network(name: str, *plugins: dict[str, Any]) -> str:
    return json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": plugins})


def lint(path: Path, **files: str) -> LintResult:
    """Writes files and checks the directory; `__` in an argument's name stands for a dot."""
    for name, text in files.items():
        (path / name.lstrip("f").replace("__", ".").replace("_", "-")).write_text(text)
    return directory.lint_directory(str(path), PLUGINS, ())


def list_findings(linted: LintResult) -> list[tuple[str, str, str]]:
    return [(Path(page.path).name, str(one.severity), one.text) for page in linted.files for one in page.findings]


def winner(linted: LintResult) -> str:
    return os.path.basename(linted.winner.path) if linted.winner else ""


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_files_of_runtimes_and_providers(path):
    """The configurations of containerd, CRI-O, podman, k3s and other providers have only notes."""
    linted = lint(path)
    assert linted.winner
    assert {severity for _, severity, _ in list_findings(linted)} <= {"note"}


def test_sample_networks_have_no_findings():
    """The sample networks have no findings, neither alone nor together."""
    linted = lint(ROOT / "conf")
    assert list_findings(linted) == []
    assert winner(linted) == "10-podwire.conflist"
    for path in (ROOT / "conf").glob("*.conflist"):
        assert list_findings(directory.lint_file(str(path), PLUGINS, ())) == []


def test_first_file_by_name_wins(tmp_path):
    """The first of *.conf, *.conflist and *.json by name is the pod network."""
    alone = json.dumps({"cniVersion": "1.0.0", "name": "b", "type": "calico"})
    linted = lint(tmp_path, f10_a__conflist=network("a", {"type": "calico"}), f05_b__json=alone)
    assert winner(linted) == "05-b.json"
    assert list_findings(linted) == []


def test_invalid_first_file(tmp_path):
    """An invalid file before the first usable one is an error, with a note that containerd then uses none."""
    linted = lint(tmp_path, f10_a__conflist="{", f20_b__conflist=network("b", {"type": "calico"}), f30_c__conf="[")
    assert winner(linted) == "20-b.conflist"
    findings = [f"{name} {severity}" for name, severity, _ in list_findings(linted)]
    assert findings == ["10-a.conflist note", "10-a.conflist error", "30-c.conf error"]
    assert "containerd uses no network at all" in list_findings(linted)[0][2]


def test_loopback_as_the_pod_network(tmp_path):
    """A loopback network as the first file is a warning, and after another file it is not."""
    lo = network("lo", {"type": "loopback"})
    assert [findings[1] for findings in list_findings(lint(tmp_path, f99_lo__conflist=lo))] == ["warning"]
    assert list_findings(lint(tmp_path, f10_a__conflist=network("a", {"type": "calico"}))) == []


def test_duplicate_network_name(tmp_path):
    """Of two networks of one name libcni finds the one in a *.conflist, and the other is a warning."""
    alone = json.dumps({"cniVersion": "1.0.0", "name": "a", "type": "calico"})
    linted = lint(tmp_path, f05_a__conf=alone, f10_a__conflist=network("a", {"type": "calico"}))
    assert [(name, severity) for name, severity, _ in list_findings(linted)] == [("05-a.conf", "warning")]
    assert networks.get_network(str(tmp_path), "a").path.endswith("10-a.conflist")


@pytest.mark.parametrize(
    "name",
    ["10-a.conflist.bak", "10-a.conf~", "10-a.yaml", ".10-a.conflist.swp", "10-a.JSON", "10-a.conflist.dpkg-old"],
)
def test_file_that_no_runtime_reads(name, tmp_path):
    """A file that resembles a configuration, but has another suffix, is a note."""
    (tmp_path / name).write_text("{")
    (tmp_path / "10-a.conflist").write_text(network("a", {"type": "calico"}))
    assert [findings[:2] for findings in list_findings(lint(tmp_path))] == [(name, "note")]


def test_other_files_are_ignored(tmp_path):
    """Directories, and files of network providers beside the configurations, have no findings."""
    (tmp_path / "multus.d").mkdir()
    (tmp_path / "10-b.conflist").mkdir()
    (tmp_path / "calico-kubeconfig").write_text("apiVersion: v1")
    assert list_findings(lint(tmp_path, f10_a__conflist=network("a", {"type": "calico"}))) == []


def test_hidden_file_is_read(tmp_path):
    """A file whose name begins with a dot, which runtimes read, is a note."""
    (tmp_path / ".a.conflist").write_text(network("a", {"type": "calico"}))
    linted = lint(tmp_path)
    assert winner(linted) == ".a.conflist"
    assert [findings[:2] for findings in list_findings(linted)] == [(".a.conflist", "note")]


@pytest.mark.parametrize("pair", CONFLICTS)
def test_conflict_is_reported_at_the_later_network(pair, tmp_path):
    """Two networks that allocate the same addresses, or set up one bridge differently, are a warning."""
    first, second = (network(name, *CONFLICTS[pair][key]) for name, key in (("a", "first"), ("b", "second")))
    findings = list_findings(lint(tmp_path, f10_a__conflist=first, f20_b__conflist=second))
    expected = CONFLICTS[pair]["findings"]
    severities = {("20-b.conflist", "note" if "VLAN" in pair else "warning")}
    assert [item[:2] for item in findings] == [*severities] * len(expected), findings
    assert all(part in text for (_, _, text), part in zip(findings, expected, strict=True))


def test_unreadable_files_do_not_stop_the_others(tmp_path):
    """A FIFO, a dangling link, a device, a huge file and a name that is not UTF-8 are errors of one file each."""
    os.mkfifo(tmp_path / "10-fifo.conflist")
    (tmp_path / "11-gone.conflist").symlink_to("nowhere")
    (tmp_path / "12-huge.conflist").write_bytes(b" " * (3 << 20))
    (tmp_path / "13-device.conflist").symlink_to("/dev/zero")
    os.close(os.open(os.fsencode(tmp_path) + b"/14-\xff.conflist", os.O_CREAT | os.O_WRONLY))
    linted = lint(tmp_path, f20_b__conflist=network("b", {"type": "calico"}))
    assert winner(linted) == "20-b.conflist"
    assert [text for _, severity, text in list_findings(linted) if severity == "error"] == [
        "it is not a regular file",
        "it cannot be read: No such file or directory",
        "it has more than 2048 KiB",
        "it is not a regular file",
        "the file is empty",
    ]


def test_missing_directory_is_an_error(tmp_path):
    """A missing directory is an error of the command."""
    with pytest.raises(CniError, match="cannot read"):
        lint(tmp_path / "gone")


def test_many_networks_are_checked_in_time(tmp_path):
    """Each of hundreds of conflicting networks is reported with the first ten that it conflicts with."""
    names = {f"n{index:03}": bridge("10.1.0.0/16", mtu=1000 + index) for index in range(200)}
    files = {f"{name}.conflist": network(name, plugin) for name, plugin in names.items()}
    start = time.process_time()
    linted = lint(tmp_path, **files)
    assert time.process_time() - start < 20
    last = [text for _, _, text in list_findings(linted) if "n199" not in text and "mtu 1199 here" in text]
    assert len(last) == 10
    overlaps = [text for _, _, text in list_findings(linted) if "overlaps 10.1.0" in text]
    assert len(overlaps) == sum(min(index, 10) for index in range(200))


def test_overlaps_with_other_subnets_in_between(tmp_path):
    """A subnet in another one is reported, also if smaller and IPv6 subnets are between them by address."""
    subnets = ("10.0.0.0/8", "10.1.0.0/24", "fd00::/64", "10.2.0.0/24", "10.1.0.0/25", "11.0.0.0/24")
    files = {f"{n}.conflist": network(f"n{n}", bridge(subnet, f"br{n}")) for n, subnet in enumerate(subnets)}
    overlaps = [(name[0], text) for name, _, text in list_findings(lint(tmp_path, **files)) if " overlaps " in text]
    pairs = {(number, text.split(" of network ")[-1][:4]) for number, text in overlaps}
    assert pairs == {("1", '"n0"'), ("3", '"n0"'), ("4", '"n0"'), ("4", '"n1"')}
