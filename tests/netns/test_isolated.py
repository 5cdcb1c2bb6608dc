"""tests/runner/isolated.sh: isolation of a part of `make test` from the machine."""

import subprocess
import time

import pytest

from tests.support import binaries
from tests.support.binaries import ROOT

TEST_ROOT = ROOT / "build" / "root"
STANDARD_SIGNALS = (1 << 31) - 1  # 32 and 33 belong to the C library


@pytest.fixture
def isolated(root, tmp_path):
    """A function that runs a line of shell like a part, and returns its output."""
    if not (TEST_ROOT / "usr").is_dir():
        binaries.skip_or_fail("no test root file system: make test-root")
    (tmp_path / "scratch").mkdir()

    def run(script):
        command = [ROOT / "tests/runner/isolated.sh", TEST_ROOT, tmp_path / "scratch", "sh", "-c", script]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    return run


def test_a_part_is_isolated_from_the_machine(isolated, tmp_path):
    """A part sees no process, link or file of the machine, cannot change its root, and starts with default signals."""
    secret = tmp_path / "secret"
    secret.touch()
    seen = isolated(f"cat /proc/1/comm; ls /sys/class/net; ls /run/netns; test -e {secret} || echo no")
    assert seen == "bash\nlo\nno\n"
    assert "Read-only" in isolated("touch /etc/x /usr/x /var/lib/x 2>&1 || true")
    isolated("touch /run/x /tmp/x /root/x /dev/shm/x; mkdir /var/tmp/y")
    masks = dict(line.split(":\t") for line in isolated("grep -E 'SigBlk|SigIgn' /proc/self/status").splitlines())
    assert {int(mask, 16) & STANDARD_SIGNALS for mask in masks.values()} == {0}


def test_a_part_leaves_no_process(isolated, tmp_path):
    """A daemon that a part started ends with the part."""
    stays = tmp_path / "scratch" / "stays"
    isolated(
        "setsid sh -c 'while sleep 0.05; do >/tmp/stays; done' >/dev/null 2>&1 & until test -e /tmp/stays; do :; done"
    )
    stays.unlink(missing_ok=True)
    time.sleep(0.5)
    assert not stays.exists()


def test_the_exit_status_of_a_part_is_that_of_its_command(isolated):
    """A failing command fails the part."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        isolated("exit 7")
    assert failed.value.returncode == 7
