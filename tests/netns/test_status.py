"""STATUS says what ADD would meet: ready and it succeeds, code 50 and it fails for the same reason."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.attaching import Network
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace

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
        "mount -t tmpfs podwire {bin}; cp /proc/self/fd/9 {bin}/{plugin}; chmod +x {bin}/{plugin}",
        'failed to find plugin "host-local"',
    ),
    "kernel settings that cannot be changed": (
        "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys",
        "forward",
    ),
}


# What each plugin is asked for, and which nodes are not ready for it; None for all of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "bridge": {"bridge": "cni0", "isGateway": True, "ipMasq": True, "ipMasqBackend": "iptables"},
    "ptp": {"ipMasq": True, "ipMasqBackend": "iptables"},
    "firewall": {"backend": "iptables", "ingressPolicy": "same-bridge"},
    "tuning": {"mtu": 1400},
}
UNREADY = {
    "firewall": ["no program of iptables", "a program of iptables that fails", "no right to change the network"],
    "tuning": [
        "store on a read-only file system",
        "a file where the store should be",
        "a disk without room for a file",
        "no right to change the network",
    ],
}
SAID = {  # by both, where it is not what the node's entry has
    ("tuning", "store on a read-only file system"): "read-only file system",
    ("tuning", "a file where the store should be"): "not a directory",
    ("tuning", "a disk without room for a file"): "no space left on device",
}
CASES = [(plugin, node) for plugin in OPTIONS for node in NODES if node in ["ready", *UNREADY.get(plugin, NODES)]]


@pytest.fixture
def network(host: Namespace, store: Path, tmp_path: Path) -> Network:
    """A network that needs everything that a node can lack; its plugins are in a directory that a node may hide."""
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/24"}]]}
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in (*OPTIONS, "host-local"):
        (bin_dir / name).symlink_to(binaries.directory() / name)
    config = {"cniVersion": "1.1.0", "name": "net", "ipam": ipam, "dataDir": str(store)}
    return Network(host, config, bin_dir=bin_dir)


def on(node: str, network: Network, command: str, pod: Namespace) -> Outcome:
    """Runs a verb of the network's plugin on a node as `NODES` has it."""
    bin_dir, config = network.bin_dir, network.config
    assert bin_dir
    plugin = config["type"]
    prepared = NODES[node][0].format(store=config["dataDir"], bin=bin_dir, plugin=plugin)
    start = f"{prepared} {bin_dir}/{plugin}" if prepared.startswith("exec") else f"{prepared}; exec {bin_dir}/{plugin}"
    names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0", "CNI_PATH": str(bin_dir)}
    with network.host.entered(), (bin_dir / plugin).open("rb") as program:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", f"exec 9<{bin_dir}/{plugin}; {start}"],
            input=json.dumps(config).encode(),
            env=environment(command, **(names if command == "ADD" else {"CNI_PATH": str(bin_dir)})),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert program
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize(("kind", "node"), CASES, ids=["{}, {}".format(*case) for case in CASES])
def test_status_says_what_add_would_meet(
    network: Network, sandbox: Namespace, store: Path, kind: str, node: str
) -> None:
    """Where STATUS is silent ADD succeeds; where STATUS has code 50 ADD fails, for the same reason."""
    own = network.having(type=kind, **OPTIONS[kind])
    if "ipMasq" not in OPTIONS[kind]:  # it is listed behind one that makes the interface
        interface = {"type": "bridge", "bridge": "cni0", "isGateway": True, "dataDir": None}
        own = own.having(prevResult=network.having(**interface).add(sandbox), ipam=None)
        subprocess.run(["rm", "-rf", store], check=True)
    status = on(node, own.having(prevResult=None), "STATUS", sandbox)
    subprocess.run(["rm", "-rf", store], check=True)
    added = on(node, own, "ADD", sandbox)
    if node == "ready":
        status.assert_silent()
        added.result()
        return
    told, failed = status.error(), added.error()
    reason = SAID.get((kind, node), NODES[node][1])
    assert (told["code"], reason in str(told), reason in str(failed)) == (50, True, True), (told, failed)
