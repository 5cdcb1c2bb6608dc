"""The Makefile: what it builds again, and which packages a target installs; the workflow for a forge's CI."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.binaries import ROOT

PACKAGES = ("process", "cni", "kernel", "attachment", "ipam", "plugins", "podwire", "pack/stand_ins")
PYTHON = """#!/bin/sh
mkdir -p dist/bin && touch dist/bin/podwire && echo built
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., str]:
    """Returns a function that runs make in a project of one module per package, whose build only prints "built"."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for package in PACKAGES:
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "one.py").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    for name, text in (
        ("pack/install_packages.sh", "#!/bin/sh\n"),
        ("pack/progress.sh", '#!/bin/sh\nshift\nexec "$@"\n'),
        (".venv/bin/python", PYTHON),
        (".venv/.made", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def make(*words: str) -> str:
        command = ["make", "--no-print-directory", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    return make


def test_compiled_modules_cause_no_build(make: Callable[..., str], tmp_path: Path) -> None:
    """A program that runs, and writes __pycache__ beside the sources, does not make the executable out of date."""
    assert make("binaries").endswith("\nbuilt\n")
    assert make("binaries") == ""
    (tmp_path / "plugins/__pycache__").mkdir()
    (tmp_path / "plugins/__pycache__/one.pyc").write_text("")
    assert make("binaries") == ""


@pytest.mark.every_case
@pytest.mark.parametrize("change", ["echo 'x = 1' > one.py", "touch two.py", "rm one.py", "mv one.py other.py"])
def test_changed_sources_cause_a_build(make: Callable[..., str], tmp_path: Path, change: str) -> None:
    """The executable is built again, once, if a source file was changed, added, removed or renamed."""
    make("binaries")
    for path in tmp_path.rglob("*"):  # a change in the same tick of the clock would not be newer
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**9), follow_symlinks=False)
    subprocess.run(change, shell=True, cwd=tmp_path / "plugins", check=True)
    assert make("binaries").endswith("\nbuilt\n")
    assert make("binaries") == ""


def list_installed(target: str) -> set[str]:
    command = ["make", "--no-print-directory", "--dry-run", target]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for line in re.findall(r"install_packages\.sh (.*)", lines) for name in line.split()}


def test_demo_installs_no_service_and_no_other_plugins() -> None:
    """`make demo` needs compiler, Python, ip, ping and the packet filters: no DHCP server, no reference plugins."""
    used = {"iproute2", "iputils-ping", "iptables", "nftables"}
    assert list_installed("demo") == list_installed("binaries") | used
    assert list_installed("needs-test") > {"kea-dhcp4-server", "udhcpd"}


@pytest.mark.parametrize("target", ["demo", "needs-test", "bench"])
def test_no_target_installs_what_changes_the_machine(target: str) -> None:
    """Neither the reference plugins, which podman would prefer, nor firewalld nor a runtime is installed."""
    assert not list_installed(target) & {"containernetworking-plugins", "firewalld", "podman", "containerd"}


QUICK = {"help", "sign", "clean", "kubernetes"}  # kubernetes: the script says it
DURATION = re.compile(r"\((?:.*; )?(?:a|half a|half an|\d+|\d+ to \d+) (?:CPU )?(?:second|minute|hour)s?\b.*\)$")
DESCRIBED = re.compile(r"^([a-z0-9-]+):.*## (.*)$", re.MULTILINE)


def test_long_targets_say_how_long_they_take() -> None:
    """`make help` has a duration for each target but the quick ones, and the target prints its line before it works."""
    text = (ROOT / "Makefile").read_text()
    described = dict(DESCRIBED.findall(text))
    assert [name for name, about in described.items() if name not in QUICK and not DURATION.search(about)] == []
    said = set(re.findall(r"\$\(call say,([a-z0-9-]+)\)", text))
    (shared,) = re.findall(r"^(.*): test-%:$", text, re.MULTILINE)  # by their name in $@
    assert described.keys() - QUICK == said | set(shared.split())


def test_workflow_runs_the_two_commands() -> None:
    """Each job runs one of `make check` and `.ci/run` on the Debian release of the Makefile, with read-only rights."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    jobs = workflow["jobs"].values()
    assert [job["steps"][-1]["run"] for job in jobs] == ["make check", ".ci/run"]
    (release,) = re.findall(r"^DEBIAN := (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    images = [job["container"] if isinstance(job["container"], str) else job["container"]["image"] for job in jobs]
    assert set(images) == {f"debian:{release}"}
    assert workflow["permissions"] == {"contents": "read"}
