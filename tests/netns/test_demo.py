"""The demo, which checks each of its own steps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.binaries import ROOT


@pytest.mark.needs("ifb", "tbf")
def test_demo_finds_everything_as_it_should_be(root, bin_dir):
    """`make demo` succeeds with the built files, and says so."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\nEverything was as it should be.\n" in done.stdout
    assert "dist/bin/podwire install --conf" in done.stdout.rpartition("Next, ")[2]
