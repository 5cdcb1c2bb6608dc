"""The demo, which checks each of its steps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.binaries import ROOT


@pytest.mark.needs("ifb", "tbf")
def test_every_step_of_the_demo_has_the_expected_effect(root, bin_dir):
    """`make demo` succeeds with the built files, and prints that every step succeeded."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\nEvery step had the expected effect.\n" in done.stdout
    assert "dist/bin/podwire install --conf" in done.stdout.rpartition("Next, ")[2]
