"""The client with urllib3 1.26 of Debian 12, which the agent's Debian package depends on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

PACKAGES = Path("/usr/lib/python3/dist-packages")
TESTS = ("tests/cluster/test_kubernetes_client.py", "tests/cluster/test_kubernetes_contract.py", "-k", "not real")


@pytest.mark.long
def test_urllib3_of_debian(tmp_path):
    """The tests of the client, and with the double of the contract, pass with Debian's urllib3."""
    if not (PACKAGES / "urllib3").is_dir():
        pytest.skip("install Debian's python3-urllib3")
    for name in ("urllib3", "six.py"):
        (tmp_path / name).symlink_to(PACKAGES / name)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    version = [sys.executable, "-c", "import urllib3; print(urllib3.__version__)"]
    assert subprocess.run(version, env=env, capture_output=True, text=True, check=True).stdout.startswith("1.26.")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=60", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
