"""A private machine for a container runtime: separate network, mount, PID, IPC and UTS namespaces on this kernel.

/etc, /opt and /var/lib are overlays over the real ones, /run and /dev/shm are empty, and /opt/cni/bin has the test's
plugins. An uplink connects it with another machine, `peer`, its default gateway. Its disk is the directory `scratch`,
with /var/lib/cni and the runtimes' state: a second machine with the same directory is the rebooted node.

One rule: there is no clean-up. All processes and mounts of a runtime end with the machine's first process.
"""

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

_TIMEOUT_S = 200
CGROUPS = "pwt-"  # followed by the identity of the machine's first process
_STALE_S = 3600  # longer than any test
_UNSHARED = ("--pid", "--ipc", "--uts", "--mount-proc")
_ENV = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C"}
# The first process ignores SIGCHLD, so that orphans do not become zombies (dash's `trap` cannot do that).
_INIT = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
# Files that belong to no pod: locks, and the last allocated address.
_BOOKKEEPING = ("lock", "xtables.lock", "last_reserved_ip")
_INDEXES = Path("/var/lib/cni/networks.podwire")
# Separate /etc, /opt, /var/lib and /run; /var/lib/cni is on the disk, the directory $SCRATCH.
DISK = """
for directory in etc opt var/lib; do
    mkdir -p "$SCRATCH/over/$directory/upper" "$SCRATCH/over/$directory/work"
    over="lowerdir=/$directory,upperdir=$SCRATCH/over/$directory/upper,workdir=$SCRATCH/over/$directory/work"
    mount -t overlay -o "$over" podwire "/$directory"
done
mkdir -p /var/lib/cni "$SCRATCH/cni"
mount --bind "$SCRATCH/cni" /var/lib/cni
mount -t tmpfs podwire /run
mkdir -p /run/netns /run/lock
"""
_SETUP = f"""
set -e
hostname podwire-tests
{DISK}
mount -t tmpfs podwire /dev/shm
mkdir -p "$SCRATCH/cgroup"
# a new /sys shows this network namespace; the control groups below it are the kernel's
mount --rbind /sys/fs/cgroup "$SCRATCH/cgroup"
mount -t sysfs podwire /sys
mount --rbind "$SCRATCH/cgroup" /sys/fs/cgroup
umount -l "$SCRATCH/cgroup"
if mountpoint -q /sys/fs/cgroup/unified; then umount -l /sys/fs/cgroup/unified; fi  # crun refuses both versions at once
rm -rf /etc/cni /opt/cni /etc/containerd /etc/containers/*.conf /etc/resolv.conf
mkdir -p {CONF_DIR} {BIN_DIR}
echo 'nameserver 127.0.0.1' > /etc/resolv.conf  # queries are refused immediately
echo '{ADDRESS} podwire-tests' >> /etc/hosts
echo 0 > /proc/sys/net/ipv4/ip_forward  # a plugin has to enable it
ip link set lo up
"""


class Host:
    """A machine that consists of namespaces, in which programs run."""

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program on the machine."""
        raise NotImplementedError

    def run(self, *argv: str, check: bool = True, **how: Any) -> str:
        """Runs a program on the machine and returns its stdout; a failure fails the test unless `check` is False."""
        done = self.done(*argv, **how)
        output = done.stderr.strip() or done.stdout.strip() or done.returncode
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {output}"
        return done.stdout

    def done(
        self, *argv: str, stdin: str | None = None, timeout_s: float = _TIMEOUT_S, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on the machine and returns its outcome."""
        line, variables = self.nsenter(*argv), {**_ENV, **(env or {})}
        return subprocess.run(
            line, env=variables, timeout=timeout_s, check=False, input=stdin or "", capture_output=True, text=True
        )

    def start(self, *argv: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts a program on the machine, with which it ends; its output is appended to a file."""
        with log.open("ab") as file:
            line = self.nsenter(*argv)
            return subprocess.Popen(line, env=_ENV, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def write(self, path: Path, text: str) -> None:
        """Writes a file on the machine, and creates its directories."""
        self.run("mkdir", "-p", str(path.parent))
        self.run("tee", str(path), stdin=text)

    def problem(self, *argv: str) -> str:
        """Runs a program on the machine and returns its error message, "" if it succeeded."""
        done = self.done(*argv)
        return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""

    def succeeds(self, *argv: str) -> bool:
        """Runs a program on the machine and returns whether it exited with 0."""
        return not self.problem(*argv)


@dataclass(frozen=True)
class Machine(Host):
    """A running machine; `scratch` is a directory of this machine and of that one."""

    pid: int
    scratch: Path
    network: Namespace
    peer: Namespace

    @property
    def cgroup(self) -> str:
        """The control group for its containers, in every hierarchy; removed with the machine."""
        return f"{CGROUPS}{identity(self.pid)}"

    def at_once(self, *lines: Sequence[str]) -> list[str]:
        """Runs programs in parallel on the machine and returns the stdout of each; all must succeed."""
        with ThreadPoolExecutor(len(lines)) as threads:
            return list(threads.map(lambda line: self.run(*line), lines))

    @contextlib.contextmanager
    def running(self, *argv: str) -> Iterator[None]:
        """Runs a daemon on the machine during the block, then kills only it; it writes to `scratch`/NAME.log."""
        nsenter = self.start(*argv, log=self.scratch / f"{Path(argv[0]).name}.log")
        daemon = _child_of(nsenter.pid)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)
            nsenter.wait()

    def namespace(self, path: str) -> Namespace:
        """Returns the network namespace at a path of the machine ("/run/netns/x"), for use on this machine."""
        return unnamed_namespace(f"/proc/{self.pid}/root{path}")

    def install(self, *directories: Path) -> None:
        """Replaces /opt/cni/bin with the programs of these directories, of which later ones take precedence."""
        script = (
            f'rm -rf {BIN_DIR}; mkdir -p {BIN_DIR}; for one; do cp -a --remove-destination "$one/." {BIN_DIR}; done'
        )
        self.run("sh", "-ec", script, "sh", *map(str, directories))

    def leftovers(self, *, links: Sequence[str] = ()) -> list[str]:
        """Returns leaked objects of pods: links other than `links`, addresses, caches, rules, namespaces."""
        kept = {"lo", "up0", "ifb0", "ifb1", *links}
        leaked = [f"link {name}" for name in netstate.links(self.network) if name not in kept]
        leaked += self._files()
        rules = [*netstate.iptables_rules(self.network), *netstate.iptables_rules(self.network, "ip6tables")]
        rules += netstate.nft_rules(self.network)
        marks = ("CNI-DN-", "dnat to", 'comment "name:', "id: ", "DNAT --to")
        leaked += [rule for rule in rules if any(mark in rule for mark in marks)]
        return leaked + [f"qdisc {line}" for line in netstate.qdiscs(self.network) if " tbf " in line]

    def picture(self) -> dict[str, Any]:
        """Returns the state of the machine, after running plugins: network, rules, limits, files, processes, mounts."""
        eventually(lambda: not {*self._processes()} & {*binaries.names()}, within_s=10)
        mounts = [line.split()[4] for line in Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()]
        return {
            **netstate.state(self.network, netfilter=True),
            "qdiscs": netstate.qdiscs(self.network),
            "files": self._files(),
            "processes": self._processes(),
            # the machine still has the mounts of earlier tests' namespaces, hidden below /run
            "mounts": sorted(path for path in mounts if path.startswith("/run/netns/") and "/pwt-" not in path),
        }

    def unchanged(self, before: dict[str, Any] | None = None) -> contextlib.AbstractContextManager[None]:
        """Asserts that the state after the block soon equals the state before it."""
        return unchanged(self.picture, before)

    def _files(self) -> list[str]:
        """Returns CNI's files of pods: addresses, the runtimes' cache, backups, namespaces."""
        directories = ("/var/lib/cni", "/run/cni", "/run/netns")
        return files_of_pods(self.run("find", *directories, "-type", "f", check=False))

    def _processes(self) -> list[str]:
        return sorted(self.run("ps", "-e", "-o", "comm=").splitlines())

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program on the machine."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--ipc", "--uts", "--", *argv]


@contextlib.contextmanager
def machine(scratch: Path) -> Iterator[Machine]:
    """Yields a machine with an uplink to its peer; the machine and its processes end with the block."""
    sweep()
    with namespaces.temporary("peer") as peer, first_process(*_UNSHARED) as pid:
        network = unnamed_namespace(f"/proc/{pid}/ns/net")
        created = Machine(pid, scratch, network, peer)
        created.run("env", f"SCRATCH={scratch}", "sh", "-c", _SETUP)
        _wire(network, peer)
        try:
            yield created
        finally:
            with contextlib.suppress(ProcessLookupError):  # a test may have stopped it
                os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: pid not in sweep()), f"control groups {created.cgroup} remain"


def eventually(condition: Callable[[], bool], *, within_s: float = 30) -> bool:
    """Returns whether a condition becomes true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def unchanged(picture: Callable[[], dict[str, Any]], before: dict[str, Any] | None = None) -> Iterator[None]:
    """Asserts that a state after the block soon equals the state before it."""
    before = before or picture()
    yield
    if not eventually(lambda: picture() == before):
        difference = "\n".join(difflib.unified_diff(_lines(before), _lines(picture()), "before", "after", lineterm=""))
        assert not difference, difference


def files_of_pods(listing: str) -> list[str]:
    """Returns the files of pods in find's output, without locks and indexes."""
    paths = [Path(name) for name in sorted(listing.splitlines())]
    return [str(path) for path in paths if not path.name.startswith(_BOOKKEEPING) and path.parent != _INDEXES]


@contextlib.contextmanager
def first_process(*unshared: str) -> Iterator[int]:
    """Yields the process ID of a machine's first process, which the kernel kills when the tests end.

    `unshared` are the namespaces besides those of mounts and the network, as options of unshare.
    """
    namespaces = ("--net", "--mount", "--propagation", "private", *unshared, "--fork", "--kill-child")
    line = ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, *_INIT]
    quiet = subprocess.DEVNULL  # it complains when the first process is killed
    with subprocess.Popen(line, stdin=quiet, stderr=quiet, start_new_session=True) as unshare:
        try:
            pid = _child_of(unshare.pid)
            assert eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n"), "no first process"
            yield pid
        finally:
            unshare.kill()


def _child_of(pid: int) -> int:
    """Waits for a process's only child and returns its process ID."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert eventually(lambda: bool(children.read_text())), f"process {pid} started nothing"
    return int(children.read_text())


def unnamed_namespace(path: str) -> Namespace:
    """Returns the network namespace at a path, without a name in /run/netns, which could leak."""
    return Namespace(os.path.relpath(path, "/run/netns"))


def _lines(picture: dict[str, Any]) -> list[str]:
    """Returns a state as lines, for a readable difference."""
    return json.dumps(picture, indent=1, sort_keys=True).splitlines()


def _wire(network: Namespace, peer: Namespace) -> None:
    network.ip("link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", peer.name)
    ends = ((network, "up0", ADDRESS, ADDRESS6), (peer, "eth0", PEER_ADDRESS, PEER_ADDRESS6))
    for namespace, link, address, address6 in ends:
        namespace.ip("link", "set", "lo", "up")
        namespace.ip("address", "add", f"{address}/24", "dev", link)
        namespace.ip("address", "add", f"{address6}/64", "dev", link, "nodad")
        namespace.ip("link", "set", link, "up")
    for gateway in (PEER_ADDRESS, PEER_ADDRESS6):  # the peer has no route to pods: they must be masqueraded
        network.ip("route", "add", "default", "via", gateway)


def sweep() -> set[int]:
    """Removes the control groups of ended machines; returns the first processes of the machines with other ones.

    Processes of other PID namespaces are invisible here: their control groups are removed when they are old. The
    kernel keeps those that still have processes.
    """
    roots = _groups(CGROUPS + "*")
    pids = {root: pid for root in roots if (pid := pid_of(root.name.removeprefix(CGROUPS)))}
    dead = [root for root, pid in pids.items() if not Path(f"/proc/{pid}").exists()]
    dead += [root for root in roots if root not in pids and _age_s(root) > _STALE_S]
    for root in dead:
        _remove_group(root)
    return {pid for root, pid in pids.items() if root.exists()}


def remove_groups(name: str) -> bool:
    """Removes the control groups of a name, in every hierarchy; returns whether they no longer exist."""
    for root in _groups(name):
        _remove_group(root)
    return not _groups(name)


def _groups(pattern: str) -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [*top.glob(pattern), *top.glob(f"*/{pattern}")]


def _remove_group(root: Path) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):  # its last process is about to end
            os.rmdir(directory)


def _age_s(path: Path) -> float:
    """Returns the seconds since a directory was last changed; 0 if it no longer exists."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0
