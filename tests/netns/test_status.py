"""STATUS predicts ADD: without an error ADD succeeds, with code 50 ADD fails for the same reason."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.attaching import Network
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace

# Each node: shell commands before the verb, in a separate mount namespace, a command that runs the plugin, and a part
# of both verbs' errors; {store} is host-local's dataDir.
STORE = "cannot use the reservations in"
NODES = {
    "ready": ("true", "", ""),
    "store on a read-only file system": ("mkdir {store}; mount -t tmpfs -o ro podwire {store}", "", STORE),
    "a file in place of the store": ("touch {store}", "", STORE),
    "a file in place of the network's store": ("mkdir {store}; touch {store}/net", "", STORE),
    "a directory in place of the lock": ("mkdir -p {store}/net/lock", "", STORE),
    "a disk without room for a file": (
        "mkdir {store}; mount -t tmpfs -o nr_inodes=1 podwire {store}",
        "",
        "No space left on device",
    ),
    "iptables not installed": (
        "mount -t tmpfs podwire /usr/sbin; mount -t tmpfs podwire /sbin",
        "",
        "iptables-restore is not installed",
    ),
    "an iptables program that fails": (
        "mount --bind /bin/false $(readlink -f /usr/sbin/iptables-restore)",
        "",
        "exit status 1",
    ),
    # Operation not permitted, Permission denied
    "no CAP_NET_ADMIN": ("true", "setpriv --bounding-set -net_admin --inh-caps -net_admin", "ermi"),
    "no IPAM plugin": (
        "mount -t tmpfs podwire {bin}; cp /proc/self/fd/9 {bin}/{plugin}; chmod +x {bin}/{plugin}",
        "",
        'failed to find plugin "host-local"',
    ),
    "read-only kernel settings": (
        "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys",
        "",
        "forward",
    ),
}

# The configuration of each plugin, and the nodes that are not ready for it, by default all.
OPTIONS: dict[str, dict[str, Any]] = {
    "bridge": {"bridge": "cni0", "isGateway": True, "ipMasq": True, "ipMasqBackend": "iptables"},
    "ptp": {"ipMasq": True, "ipMasqBackend": "iptables"},
    "firewall": {"backend": "iptables", "ingressPolicy": "same-bridge"},
    "tuning": {"mtu": 1400},
}
TUNING_ERRORS = {  # those that differ from the ones in NODES
    "store on a read-only file system": "read-only file system",
    "a file in place of the store": "not a directory",
    "a disk without room for a file": "no space left on device",
}
UNREADY = {
    "firewall": ["iptables not installed", "an iptables program that fails", "no CAP_NET_ADMIN"],
    "tuning": [*TUNING_ERRORS, "no CAP_NET_ADMIN"],
}
CASES = [(plugin, node) for plugin in OPTIONS for node in NODES if node in ["ready", *UNREADY.get(plugin, NODES)]]


@pytest.fixture
def network(host: Namespace, store: Path, tmp_path: Path) -> Network:
    """A network that needs everything that a node may lack, with plugins in a directory that the test may hide."""
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/24"}]]}
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in (*OPTIONS, "host-local"):
        (bin_dir / name).symlink_to(binaries.directory() / name)
    config = {"cniVersion": "1.1.0", "name": "net", "ipam": ipam, "dataDir": str(store)}
    return Network(host, config, bin_dir=bin_dir)


def run_on_node(node: str, network: Network, command: str, pod: Namespace) -> Outcome:
    """Runs a verb of the network's plugin on one of NODES; file descriptor 9 is the plugin's program."""
    preparation, wrapper, _ = NODES[node]
    directory, plugin = network.bin_dir, network.config["type"]
    commands = preparation.format(store=network.config["dataDir"], bin=directory, plugin=plugin)
    return network.run_after(f"exec 9<{directory}/{plugin}; {commands}", command, pod, wrapper=wrapper)


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize(("kind", "node"), CASES, ids=["{}, {}".format(*case) for case in CASES])
def test_status_predicts_add(network: Network, sandbox: Namespace, store: Path, kind: str, node: str) -> None:
    """If STATUS succeeds ADD succeeds, and if STATUS fails with code 50 ADD fails for the same reason."""
    conf = network.having(type=kind, **OPTIONS[kind])
    if "ipMasq" not in OPTIONS[kind]:  # a chained plugin: bridge creates the interface
        bridge_keys = {"type": "bridge", "bridge": "cni0", "isGateway": True, "dataDir": None}
        conf = conf.having(prevResult=network.having(**bridge_keys).add(sandbox), ipam=None)
        subprocess.run(["rm", "-rf", store], check=True)
    status = run_on_node(node, conf.having(prevResult=None), "STATUS", sandbox)
    subprocess.run(["rm", "-rf", store], check=True)
    added = run_on_node(node, conf, "ADD", sandbox)
    if node == "ready":
        status.assert_silent()
        added.result()
        return
    status_error, add_error = status.error(), added.error()
    reason = TUNING_ERRORS.get(node if kind == "tuning" else "", NODES[node][2])
    outcome = status_error["code"], reason in str(status_error), reason in str(add_error)
    assert outcome == (50, True, True), (status_error, add_error)
