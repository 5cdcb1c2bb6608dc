"""The systemd units of the documents and of deploy/systemd: systemd accepts them."""

import re
import shutil
import subprocess

import pytest

from tests.support.binaries import ROOT

REPAIR = re.findall(r"```ini\n(\[Unit\].*?)```", (ROOT / "docs" / "repair.md").read_text(), re.DOTALL)
METRICS = {path.name: path.read_text() for path in (ROOT / "deploy" / "systemd").glob("podwire-metrics.*")}


@pytest.mark.parametrize("units", [{"podwire-repair.service": REPAIR[0]}, METRICS], ids=["repair", "metrics"])
def test_systemd_accepts_the_units(tmp_path, units):
    """The units pass systemd-analyze without a warning."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    for name, text in units.items():
        (tmp_path / name).write_text(text.replace("/opt/cni/bin/podwire", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in units)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_units_are_complete():
    """The page has one unit; the service of the metrics, which has a timer, writes what --file accepts."""
    assert len(REPAIR) == 1
    assert METRICS.keys() == {"podwire-metrics.service", "podwire-metrics.timer"}
    pattern = r"^ExecStart=/opt/cni/bin/podwire metrics --file \S+/podwire\.prom$"
    assert re.search(pattern, METRICS["podwire-metrics.service"], re.MULTILINE)
