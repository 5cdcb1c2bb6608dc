"""The first commands on a new node, on this kernel."""

import pytest

from tests.release import roots
from tests.support import binaries, first_commands
from tests.support.machine import BIN_DIR

# The root's /etc is empty: iptables is iptables-nft, as on a new Debian.
_IPTABLES = """\
mkdir /etc/alternatives && cd /etc/alternatives
for name in iptables ip6tables; do
    for verb in "" -restore -save; do ln -s "/usr/sbin/$name-nft$verb" "$name$verb"; done
done
"""


@pytest.mark.needs("nft_nat")
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_first_commands_on_a_node(host, tmp_path):
    """The self-test passes or names the missing modules, and doctor reports no fault of two networks with a pod."""
    with host.entered(), roots.temporary(tmp_path / "node") as node:
        node.run("mount", "-t", "sysfs", "sysfs", "/sys")
        node.run("sh", "-ec", _IPTABLES)
        node.put(f"{BIN_DIR}/podwire".lstrip("/"), (binaries.directory() / "podwire").read_bytes(), 0o755)
        for directory in (str(BIN_DIR), "/usr/lib/cni"):  # the root has podman, which uses the second one
            node.run(f"{BIN_DIR}/podwire", "install", "--bin-dir", directory)
        first_commands.run_selftest(node)
        first_commands.use_networks(node)
