"""`make bench-cluster` in small: all of its parts work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_a_tiny_run(tmp_path: Path):
    """A run over 50 nodes has every part; pods make no request, and etcd counts as many requests as the double."""
    path = tmp_path / "report.json"
    subprocess.run([sys.executable, "-m", "bench.cluster", "--tiny", f"--json={path}"], cwd=ROOT, check=True)
    report = json.loads(path.read_text())
    assert (report["pods"]["sockets"], report["waits"]["requests_of_pods"]) == (0, 0)
    assert sum(report["etcd"]["requests"].values()) == sum(report["fill"]["requests"].values())
    assert report["agent"]["idle_requests"] == 0
    assert len(report["waits"]["rows"]) == 2
    assert report["joins"]["late_s"] < 10
