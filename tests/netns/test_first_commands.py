"""The first commands on a new node, on this kernel."""

import pytest

from tests.release import roots
from tests.support import binaries, first_commands
from tests.support.machine import BIN_DIR


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_first_commands_on_a_node(host, tmp_path):
    """The self-test passes or names the missing modules, and doctor reports no fault of two networks with a pod."""
    with host.entered(), roots.temporary(tmp_path / "node") as node:
        node.run("mount", "-t", "sysfs", "sysfs", "/sys")
        node.put(f"{BIN_DIR}/podwire".lstrip("/"), (binaries.directory() / "podwire").read_bytes(), 0o755)
        node.run(f"{BIN_DIR}/podwire", "install")
        assert [reason for reason in first_commands.run_selftest(node) if "modprobe" not in reason] == []
        first_commands.use_networks(node)
