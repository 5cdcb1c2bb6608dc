"""docs/repair.md: systemd accepts the unit on the page."""

import re
import shutil
import subprocess

import pytest

from tests.support.binaries import ROOT


def test_systemd_accepts_the_unit(tmp_path):
    """The unit passes systemd-analyze without a warning."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    text = (ROOT / "docs" / "repair.md").read_text()
    (unit,) = re.findall(r"```ini\n(\[Unit\].*?)```", text, re.DOTALL)
    path = tmp_path / "podwire-repair.service"
    path.write_text(unit.replace("/opt/cni/bin/podwire", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
