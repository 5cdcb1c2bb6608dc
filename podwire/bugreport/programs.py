"""The host's programs whose output a bug report contains, by the file that it gets; none of them changes anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from kernel.system import PROGRAM_DIRECTORIES
from podwire.bugreport.limits import PartError
from podwire.node.programs import find_program
from process import child

# iptables-legacy-save reads only tables that the kernel already has: it does not load the modules of others.
NODE: Mapping[str, tuple[str, ...]] = {
    "node/links.txt": ("ip", "-d", "-s", "-s", "link", "show"),
    "node/addresses.txt": ("ip", "-d", "address", "show"),
    "node/routes.txt": ("ip", "-d", "-4", "route", "show", "table", "all"),
    "node/routes6.txt": ("ip", "-d", "-6", "route", "show", "table", "all"),
    "node/rules.txt": ("ip", "-4", "rule", "show"),
    "node/rules6.txt": ("ip", "-6", "rule", "show"),
    "node/neighbours.txt": ("ip", "-s", "neighbour", "show"),
    "node/nexthops.txt": ("ip", "nexthop", "show"),
    "node/namespaces.txt": ("ip", "netns", "list-id"),
    "node/bridge-ports.txt": ("bridge", "-d", "link", "show"),
    "node/bridge-vlans.txt": ("bridge", "-d", "vlan", "show"),
    "node/bridge-fdb.txt": ("bridge", "-s", "fdb", "show"),
    "node/qdiscs.txt": ("tc", "-s", "-d", "qdisc", "show"),
    "node/sockets.txt": ("ss", "-lntup"),
    "filter/nftables.txt": ("nft", "-a", "list", "ruleset"),
    "filter/iptables-nft.txt": ("iptables-nft-save", "-c"),
    "filter/ip6tables-nft.txt": ("ip6tables-nft-save", "-c"),
    "filter/iptables-legacy.txt": ("iptables-legacy-save", "-c"),
    "filter/ip6tables-legacy.txt": ("ip6tables-legacy-save", "-c"),
    "filter/ipsets.txt": ("ipset", "list"),
    "versions/nft.txt": ("nft", "--version"),
    "versions/iptables.txt": ("iptables", "--version"),
    "versions/iproute2.txt": ("ip", "-V"),
    "versions/systemd.txt": ("systemctl", "--version"),
    "versions/containerd.txt": ("containerd", "--version"),
    "versions/crio.txt": ("crio", "--version"),
    "versions/podman.txt": ("podman", "--version"),
    "versions/kubelet.txt": ("kubelet", "--version"),
    "log/journal.txt": ("journalctl", "--no-pager", "--quiet", "-t", "podwire", "-n", "2000", "-o", "verbose"),
}
# Programs that many nodes do not have: their absence is no failure.
OPTIONAL = ("ipset", "systemctl", "containerd", "crio", "podman", "kubelet", "journalctl", "ss", "bridge")
POD: tuple[tuple[str, ...], ...] = (
    ("ip", "-d", "-s", "-s", "link", "show"),
    ("ip", "address", "show"),
    ("ip", "-4", "route", "show", "table", "all"),
    ("ip", "-6", "route", "show", "table", "all"),
    ("ip", "-4", "rule", "show"),
    ("ip", "-6", "rule", "show"),
    ("ip", "-s", "neighbour", "show"),
    ("tc", "-s", "qdisc", "show"),
)
_TABLES = ("/proc/net/ip_tables_names", "/proc/net/ip6_tables_names")


def run(commands: Sequence[Sequence[str]], env: Mapping[str, str], limit_s: float) -> bytes:
    """Runs programs in parallel, and returns the command line and the output of each; raises PartError."""
    lines = [" ".join(words) for words in commands]
    paths = [find_program(words[0], env.get("PATH", "")) for words in commands]
    missing = dict.fromkeys(words[0] for words, path in zip(commands, paths, strict=True) if not path)
    if missing:
        raise PartError(f"this host has no program {', '.join(missing)}")
    kept = {"PATH": ":".join(PROGRAM_DIRECTORIES), "LC_ALL": "C"}
    runnable = [
        child.ChildCommand((path, *words[1:]), kept, capture_stderr=True)
        for path, words in zip(paths, commands, strict=True)
    ]
    try:
        outcomes = child.run(*runnable, limit_s=limit_s)
    except OSError as error:
        raise PartError(f"{lines[0]}: {error.strerror}") from error
    texts = []
    for line, outcome in zip(lines, outcomes, strict=True):
        ending = f"({outcome.ending})\n".encode() if outcome.status else b""
        texts.append(b"$ " + line.encode() + b"\n" + outcome.stdout + outcome.stderr + ending)
    if all(outcome.status for outcome in outcomes):
        raise PartError(f"{lines[0]}: {outcomes[0].ending}: {outcomes[0].stderr.decode(errors='replace').strip()}")
    return b"\n".join(texts)


def is_applicable(name: str) -> bool:
    """Returns whether the kernel has what a file of NODE is about: VLANs on bridges, tables of iptables-legacy."""
    if name == "node/bridge-vlans.txt":
        links = os.listdir("/sys/class/net")
        return any(os.path.exists(f"/sys/class/net/{link}/bridge/vlan_filtering") for link in links)
    if "legacy" not in name:
        return True
    try:
        with open(_TABLES["ip6" in name], "rb") as file:
            return bool(file.read(1))
    except FileNotFoundError:
        return False
