"""The archive on nodes of each Debian release, which differ in iptables, glibc and layout of the file system."""

from collections.abc import Iterator

import pytest

from tests.release import roots
from tests.release.roots import Root
from tests.support import first_commands
from tests.support.binaries import ROOT
from tests.support.machine import BIN_DIR

ROOTS = ROOT / "build" / "debian"  # `make debian-roots` creates them
RELEASES = ("bullseye", "bookworm", "trixie", "sid")


@pytest.fixture(params=RELEASES)
def debian(request, host, tmp_path) -> Iterator[Root]:
    """A minimal Debian with iptables in a network namespace of its own."""
    archive = ROOTS / f"{request.param}.tar"
    if not archive.exists():
        pytest.fail(f"{archive} is missing: run `make debian-roots`", pytrace=False)
    with host.entered(), roots.unpacked(tmp_path / "debian", [archive]) as root:
        root.run("mount", "-t", "sysfs", "sysfs", "/sys")
        yield root


def test_first_commands_on_a_node(debian, release):
    """The self-test of the unpacked archive passes, and doctor reports no fault of two networks with a pod."""
    debian.put("tmp/archive.tgz", release.one("podwire-*-linux-amd64.tgz").read_bytes())
    debian.run("sh", "-ec", f"mkdir -p {BIN_DIR} && tar -xzf /tmp/archive.tgz -C {BIN_DIR}")
    first_commands.run_selftest(debian)
    first_commands.use_networks(debian)
