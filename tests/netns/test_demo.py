"""The demo, which checks each of its steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.binaries import ROOT
from tests.support.processes import output

PROGRAM = re.compile(r"(?:/usr)?/s?bin/[^/]+")


@pytest.fixture
def installed_programs(tmp_path: Path) -> str:
    """A directory with the programs of a minimal Debian and of the packages that `make demo` installs."""
    (packages,) = re.findall(r"^DEMO_PACKAGES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = output("dpkg-query", "--show", "--showformat", "${Package} ${Essential} ${Priority}\n").splitlines()
    minimal = [line.split()[0] for line in shown if " yes " in line or line.endswith(" required")]
    listed = output("dpkg-query", "--listfiles", *minimal, *packages.split()).splitlines()
    programs = {Path(path).name: path for path in filter(PROGRAM.fullmatch, listed)}
    programs["iptables-save"] = "/usr/sbin/iptables-save"  # a link of update-alternatives
    for name, path in programs.items():
        (tmp_path / name).symlink_to(path)
    return str(tmp_path)


@pytest.mark.one_kernel
@pytest.mark.needs("ifb", "tbf")
def test_every_step_of_the_demo_has_the_expected_effect(root, bin_dir, installed_programs):
    """`make demo` succeeds with the built files and the programs that it installs; every step is as expected."""
    command = [sys.executable, "-m", "tests.demo"]
    env = {**os.environ, "PATH": installed_programs}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "\nEvery step had the expected effect.\n" in done.stdout
    assert "dist/bin/podwire install --conf" in done.stdout.rpartition("Next, ")[2]
