"""A private machine for a container runtime: network, mounts, processes, IPC and name of its own on this kernel.

/etc, /opt and /var/lib are overlays over the real ones, /run and /dev/shm are empty, /opt/cni/bin has what the test
puts there. An uplink leads to another machine, `peer`, which is the way out. Its disk is `scratch`, with /var/lib/cni
and all that runtimes keep: a second machine on the same one is the node that starts again.

One rule: leaving is the clean-up. Whatever a runtime makes or starts ends with the machine's first process.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import binaries, namespaces, netstate
from tests.support.namespaces import Namespace
from tests.support.processes import PATH, identity, pid_of

ADDRESS, PEER_ADDRESS = "203.0.113.1", "203.0.113.2"
ADDRESS6, PEER_ADDRESS6 = "2001:db8::1", "2001:db8::2"
BIN_DIR = Path("/opt/cni/bin")
CONF_DIR = Path("/etc/cni/net.d")

_TIMEOUT_S = 60
_CGROUPS = "pwt-"  # then the identity of the machine's first process
_STALE_S = 3600  # no test takes that long
_UNSHARED = ("--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
_ENV = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C"}
# The first process: whoever dies is nobody's zombie, as SIGCHLD is ignored (which dash's `trap` does not do).
_INIT = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
# Locks, and what says which address is next: no pod's.
_BOOKKEEPING = ("lock", "xtables.lock", "last_reserved_ip")
_INDEXES = Path("/var/lib/cni/networks.podwire")
_SETUP = f"""
set -e
hostname podwire-tests
for directory in etc opt var/lib; do
    mkdir -p "$SCRATCH/over/$directory/upper" "$SCRATCH/over/$directory/work"
    over="lowerdir=/$directory,upperdir=$SCRATCH/over/$directory/upper,workdir=$SCRATCH/over/$directory/work"
    mount -t overlay -o "$over" podwire "/$directory"
done
mkdir -p /var/lib/cni "$SCRATCH/cni"
mount --bind "$SCRATCH/cni" /var/lib/cni
mount -t tmpfs podwire /run
mount -t tmpfs podwire /dev/shm
mkdir -p /run/netns /run/lock "$SCRATCH/cgroup"
# /sys shows the network of who mounted it; the control groups below it stay the kernel's
mount --rbind /sys/fs/cgroup "$SCRATCH/cgroup"
mount -t sysfs podwire /sys
mount --rbind "$SCRATCH/cgroup" /sys/fs/cgroup
umount -l "$SCRATCH/cgroup"
if mountpoint -q /sys/fs/cgroup/unified; then umount -l /sys/fs/cgroup/unified; fi  # crun refuses a mixture
rm -rf /etc/cni /opt/cni /etc/containerd /etc/containers/*.conf /etc/resolv.conf
mkdir -p {CONF_DIR} {BIN_DIR}
echo 'nameserver 127.0.0.1' > /etc/resolv.conf  # refused at once
echo '{ADDRESS} podwire-tests' >> /etc/hosts
echo 0 > /proc/sys/net/ipv4/ip_forward  # a plugin has to turn it on
ip link set lo up
"""


@dataclass(frozen=True)
class Machine:
    """A machine that is up; `scratch` is a directory seen inside and outside."""

    pid: int
    scratch: Path
    network: Namespace
    peer: Namespace

    @property
    def cgroup(self) -> str:
        """The control group for its containers, in every hierarchy; it goes with the machine."""
        return f"{_CGROUPS}{identity(self.pid)}"

    def run(self, *argv: str, check: bool = True, stdin: str | None = None, timeout_s: float = _TIMEOUT_S) -> str:
        """Runs a program inside and returns its stdout; a failing one fails the test unless `check` is off."""
        done = self.done(*argv, stdin=stdin, timeout_s=timeout_s)
        told = done.stderr.strip() or done.stdout.strip() or done.returncode
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {told}"
        return done.stdout

    def done(
        self, *argv: str, stdin: str | None = None, timeout_s: float = _TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program inside to its end, whatever that is."""
        line, pipes = self._inside(argv), {"input": stdin or "", "capture_output": True, "text": True}
        return subprocess.run(line, env=_ENV, timeout=timeout_s, check=False, **pipes)

    def problem(self, *argv: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Runs a program inside and returns what it said when it failed, "" when it did not."""
        done = self.done(*argv, timeout_s=timeout_s)
        return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""

    def succeeds(self, *argv: str, timeout_s: float = _TIMEOUT_S) -> bool:
        """Tells whether a program inside exits with 0."""
        return not self.problem(*argv, timeout_s=timeout_s)

    def at_once(self, *lines: Sequence[str], timeout_s: float = _TIMEOUT_S) -> list[str]:
        """Runs several programs at the same time, which must all succeed, and returns the stdout of each."""
        with ThreadPoolExecutor(len(lines)) as threads:
            return list(threads.map(lambda line: self.run(*line, timeout_s=timeout_s), lines))

    @contextlib.contextmanager
    def running(self, *argv: str) -> Iterator[None]:
        """Runs a daemon inside for the duration of the block, then kills it alone; it writes to `scratch`/NAME.log."""
        with (self.scratch / f"{Path(argv[0]).name}.log").open("ab") as log:
            line = self._inside(argv)
            nsenter = subprocess.Popen(line, env=_ENV, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        daemon = _child_of(nsenter.pid)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)
            nsenter.wait()

    def namespace(self, path: str) -> Namespace:
        """Returns the network namespace at a path inside ("/run/netns/x"), so that it can be looked at from outside."""
        return _seen(f"/proc/{self.pid}/root{path}")

    def write(self, path: Path, text: str) -> None:
        """Writes a file inside, with its directories."""
        self.run("mkdir", "-p", str(path.parent))
        self.run("tee", str(path), stdin=text)

    def install(self, *directories: Path) -> None:
        """Puts all programs of these directories into /opt/cni/bin, where the later ones win; all others go."""
        script = (
            f'rm -rf {BIN_DIR}; mkdir -p {BIN_DIR}; for one; do cp -a --remove-destination "$one/." {BIN_DIR}; done'
        )
        self.run("sh", "-ec", script, "sh", *map(str, directories))

    def leftovers(self, *, links: Sequence[str] = ()) -> list[str]:
        """Returns what pods that are gone have left: links but those named, addresses, caches, rules, namespaces."""
        kept = {"lo", "up0", "ifb0", "ifb1", *links}
        found = [f"link {name}" for name in netstate.links(self.network) if name not in kept]
        found += self._files()
        rules = [*netstate.iptables_rules(self.network), *netstate.iptables_rules(self.network, "ip6tables")]
        rules += netstate.nft_rules(self.network)
        marks = ("CNI-DN-", "dnat to", 'comment "name:', "id: ", "DNAT --to")
        found += [rule for rule in rules if any(mark in rule for mark in marks)]
        return found + [f"qdisc {line}" for line in netstate.qdiscs(self.network) if " tbf " in line]

    def picture(self) -> dict[str, Any]:
        """Returns the whole state as a value: network, rules, limits, CNI's files, processes, namespaces.

        Plugins may still be at it, as one that closes sockets after its end: they are waited for.
        """
        eventually(lambda: not {*self._processes()} & {*binaries.names()})
        places = [line.split()[4] for line in Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()]
        return {
            **netstate.state(self.network, netfilter=True),
            "qdiscs": netstate.qdiscs(self.network),
            "files": self._files(),
            "processes": self._processes(),
            # of the tests' namespaces, which come and go, those of before are still known here, hidden below /run
            "mounts": sorted(place for place in places if place.startswith("/run/netns/") and "/pwt-" not in place),
        }

    def unchanged(self, before: dict[str, Any] | None = None) -> contextlib.AbstractContextManager[None]:
        """Demands that the picture after the block is that before it, once what goes by itself has gone."""
        return unchanged(self.picture, before)

    def _files(self) -> list[str]:
        """Returns CNI's files: addresses, the runtimes' cache, backups, namespaces; not what is no pod's."""
        places = ("/var/lib/cni", "/run/cni", "/run/netns")
        return files_of_pods(self.run("find", *places, "-type", "f", check=False))

    def _processes(self) -> list[str]:
        return sorted(self.run("ps", "-e", "-o", "comm=").splitlines())

    def _inside(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--ipc", "--uts", "--", *argv]


@contextlib.contextmanager
def machine(scratch: Path) -> Iterator[Machine]:
    """Yields a machine with an uplink to its peer; with the block it ends, and all that runs on it."""
    _sweep()
    with namespaces.temporary("peer") as peer, _first_process() as pid:
        network = _seen(f"/proc/{pid}/ns/net")
        made = Machine(pid, scratch, network, peer)
        made.run("env", f"SCRATCH={scratch}", "sh", "-c", _SETUP)
        _wire(network, peer)
        try:
            yield made
        finally:
            with contextlib.suppress(ProcessLookupError):  # a test may have switched it off
                os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: pid not in _sweep()), f"control groups {made.cgroup} are left"


def eventually(wanted: Callable[[], bool], *, within_s: float = 10) -> bool:
    """Tells whether something becomes true in time."""
    end = time.monotonic() + within_s
    while not wanted():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def unchanged(picture: Callable[[], dict[str, Any]], before: dict[str, Any] | None = None) -> Iterator[None]:
    """Demands that a picture after the block is that before it, once what goes by itself has gone."""
    before = before or picture()
    yield
    if not eventually(lambda: picture() == before):
        difference = "\n".join(difflib.unified_diff(_lines(before), _lines(picture()), "before", "after", lineterm=""))
        assert not difference, difference


def files_of_pods(found: str) -> list[str]:
    """Returns of the files that `find` has printed those that are some pod's, and not what finds addresses faster."""
    paths = [Path(name) for name in sorted(found.splitlines())]
    return [str(path) for path in paths if not path.name.startswith(_BOOKKEEPING) and path.parent != _INDEXES]


@contextlib.contextmanager
def _first_process() -> Iterator[int]:
    """Yields the process whose namespaces are the machine's; it does not outlive the tests, however these end."""
    line = ["setpriv", "--pdeathsig=KILL", "unshare", *_UNSHARED, "--propagation", "private", *_INIT]
    quiet = subprocess.DEVNULL  # it complains when the first process is killed
    with subprocess.Popen(line, stdin=quiet, stderr=quiet, start_new_session=True) as unshare:
        try:
            pid = _child_of(unshare.pid)
            assert eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n"), "no first process"
            yield pid
        finally:
            unshare.kill()


def _child_of(pid: int) -> int:
    """Waits for a process's one child and returns its id."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert eventually(lambda: bool(children.read_text())), f"process {pid} started nothing"
    return int(children.read_text())


def _seen(path: str) -> Namespace:
    """Returns the network namespace at a path, under a name that is nowhere and so cannot be left behind."""
    return Namespace(os.path.relpath(path, "/run/netns"))


def _lines(picture: dict[str, Any]) -> list[str]:
    """Returns a picture in lines, whose difference can be read."""
    return json.dumps(picture, indent=1, sort_keys=True).splitlines()


def _wire(network: Namespace, peer: Namespace) -> None:
    network.ip("link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", peer.name)
    ends = ((network, "up0", ADDRESS, ADDRESS6), (peer, "eth0", PEER_ADDRESS, PEER_ADDRESS6))
    for namespace, link, own, own6 in ends:
        namespace.ip("link", "set", "lo", "up")
        namespace.ip("address", "add", f"{own}/24", "dev", link)
        namespace.ip("address", "add", f"{own6}/64", "dev", link, "nodad")
        namespace.ip("link", "set", link, "up")
    for gateway in (PEER_ADDRESS, PEER_ADDRESS6):  # the peer knows no way to pods: they must be masqueraded
        network.ip("route", "add", "default", "via", gateway)


def _sweep() -> set[int]:
    """Removes the control groups of machines that have ended, of killed tests too; returns the process ids of the rest.

    Whether a process of another PID namespace runs cannot be seen: control groups of others are removed when they are
    old. The kernel keeps those that still have processes.
    """
    top = Path("/sys/fs/cgroup")
    found = [*top.glob(_CGROUPS + "*"), *top.glob(f"*/{_CGROUPS}*")]
    pids = {root: pid for root in found if (pid := pid_of(root.name.removeprefix(_CGROUPS)))}
    dead = [root for root, pid in pids.items() if not Path(f"/proc/{pid}").exists()]
    dead += [root for root in found if root not in pids and _age_s(root) > _STALE_S]
    for directory in (directory for root in dead for directory, _, _ in os.walk(root, topdown=False)):
        with contextlib.suppress(OSError):  # its last process is about to end
            os.rmdir(directory)
    return {pid for root, pid in pids.items() if root.exists()}


def _age_s(path: Path) -> float:
    """Returns the seconds since a directory was last changed; 0 for one that is no longer there."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0
