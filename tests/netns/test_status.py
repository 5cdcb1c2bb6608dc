"""STATUS says what ADD would meet: ready and it succeeds, code 50 and it fails for the same reason."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support import binaries
from tests.support.attaching import Network
from tests.support.namespaces import Namespace
from tests.support.running import Outcome, environment

# Each node by what is done before the verb, in a mount namespace of its own, and what both verbs say then;
# {store} is host-local's dataDir.
NODES = {
    "ready": ("true", ""),
    "store on a read-only file system": (
        "mkdir {store}; mount -t tmpfs -o ro podwire {store}",
        "cannot use the reservations in",
    ),
    "a file where the store should be": ("touch {store}", "cannot use the reservations in"),
    "a file where the network's should be": ("mkdir {store}; touch {store}/net", "cannot use the reservations in"),
    "a lock that is none": ("mkdir -p {store}/net/lock", "cannot use the reservations in"),
    "a disk without room for a file": (
        "mkdir {store}; mount -t tmpfs -o nr_inodes=1 podwire {store}",
        "No space left on device",
    ),
    "no program of iptables": (
        "mount -t tmpfs podwire /usr/sbin; mount -t tmpfs podwire /sbin",
        "iptables-restore is not installed",
    ),
    "a program of iptables that fails": (
        "mount --bind /bin/false $(readlink -f /usr/sbin/iptables-restore)",
        "exit status 1",
    ),
    "no right to change the network": (
        "exec setpriv --bounding-set -net_admin --inh-caps -net_admin",
        "ermi",  # Operation not permitted, Permission denied
    ),
    "no IPAM plugin": (
        "mount -t tmpfs podwire {bin}; cp /proc/self/fd/9 {bin}/bridge; chmod +x {bin}/bridge",
        'failed to find plugin "host-local"',
    ),
    "kernel settings that cannot be changed": (
        "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys",
        "forward",
    ),
}


@pytest.fixture
def network(host: Namespace, store: Path, tmp_path: Path) -> Network:
    """A network that needs everything that a node can lack; its plugins are in a directory that a node may hide."""
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/24"}]]}
    bridge = {"bridge": "cni0", "isGateway": True, "ipMasq": True, "ipMasqBackend": "iptables", "ipam": ipam}
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("bridge", "host-local"):
        (bin_dir / name).hardlink_to(binaries.directory() / name)
    return Network(host, {"cniVersion": "1.1.0", "name": "net", "type": "bridge", **bridge}, bin_dir=bin_dir)


def on(node: str, network: Network, command: str, pod: Namespace) -> Outcome:
    """Runs a verb of bridge on a node as `NODES` has it."""
    bin_dir, config = network.bin_dir, network.config
    assert bin_dir
    prepared = NODES[node][0].format(store=config["ipam"]["dataDir"], bin=bin_dir)
    start = "{0} {1}/bridge" if prepared.startswith("exec") else "{0}; exec {1}/bridge"
    names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0", "CNI_PATH": str(bin_dir)}
    with network.host.entered(), (bin_dir / "bridge").open("rb") as program:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", f"exec 9<{bin_dir}/bridge; {start.format(prepared, bin_dir)}"],
            input=json.dumps(config).encode(),
            env=environment(command, **(names if command == "ADD" else {"CNI_PATH": str(bin_dir)})),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert program
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize("node", NODES)
def test_status_says_what_add_would_meet(network: Network, sandbox: Namespace, store: Path, node: str) -> None:
    """Where STATUS is silent ADD succeeds; where STATUS has code 50 ADD fails, for the same reason."""
    status = on(node, network, "STATUS", sandbox)
    subprocess.run(["rm", "-rf", store], check=True)
    added = on(node, network, "ADD", sandbox)
    if node == "ready":
        status.silence()
        added.result()
        return
    told, failed = status.error(), added.error()
    reason = NODES[node][1]
    assert (told["code"], reason in str(told), reason in str(failed)) == (50, True, True), (told, failed)
