"""A node of the world: a machine with a disk, a boot ID and a clock, its agent's manager, and its pods."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent.api_errors import ApiError
from agent.pools import grants_file
from agent.pools.grants_file import FileEntry
from agent.pools.identity import read as read_identity
from agent.pools.manager import Clocks, Manager
from agent.pools.memory import NodeFacts
from agent.pools.network_blocks import NetworkOptions
from cni import skel
from cni.errors import CniError
from ipam.host_local.main import PLUGIN
from kernel import boot
from tests.pools_world.disk import CrashAtFile, Disk
from tests.support.store_double import Crash, StoreDouble
from tests.support.streams import MemoryStdin

NETWORK = "net"
API_ERRORS = (ApiError, Crash, RuntimeError)  # after which a reclaimer tries again


class Reports:
    """What a manager has reported."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.last_problems: tuple[str, ...] = ()

    def problems(self, texts) -> None:
        self.last_problems = texts

    def usage(self, pools) -> None:
        pass

    def event(self, text) -> None:
        self.events.append(text)


class Node:
    """A machine. Pods that run are in `pods`; the reservations of others may still be on the disk."""

    def __init__(self, root: Path, store: StoreDouble, number: int, node: str = "", pool: str = "default") -> None:
        self.root, self._store, self.number, self._pool = root, store, number, pool
        self.node, self.is_copy = node or f"{number:032x}", bool(node)
        if not node:
            os.mkdir(f"{root}/state")
            Path(f"{root}/state/node-id").write_text(json.dumps({"node": self.node, "machine": f"machine-{number}"}))
        self.is_on, self.boots, self.uid = True, 1, 1
        self.time_s = 1000.0 * number
        self.manager: Manager | None = None
        self.pods: dict[str, list[str]] = {}
        self.orphans: set[str] = set()  # pods whose grants were in a file that is lost
        self.has_started = False
        self.reports = Reports()
        self.disk = Disk()
        self._containers = 0

    @property
    def boot_id(self) -> str:
        return f"boot-{self.number}-{self.boots}"

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """The blocks that plugins may use now, and the others of the file; none if the file is of another boot."""
        if not self.is_on:
            return ()
        try:
            with open(self.grants_path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return ()
        boot_id, entries = _parsed(content)
        return entries if boot_id == self.boot_id else ()

    @property
    def grants_path(self) -> str:
        return f"{self.root}/leases.podwire/{NETWORK}.grants"

    # The agent.

    def step(self) -> None:
        """Lets the agent make a step; a crash ends it, and the next step starts another one."""
        if not self.is_on:
            return
        if self.manager is None:
            try:
                with self._booted():
                    identity = read_identity(f"{self.root}/state", f"machine-{self.number}")
                self.node = identity.node
                identity = identity._replace(is_new=not self.has_started)
            except CniError as error:
                self.reports.last_problems = (str(error),)
                return
            options = NetworkOptions(NETWORK, self._pool, f"{self.root}/leases", f"{self.root}/results")
            clocks = Clocks(lambda: self.time_s, lambda: 1e9, lambda: 0.5)
            facts = NodeFacts(f"uid-{self.uid}", f"node-{self.number}")
            self.manager = Manager(self._store, identity, (options,), self.reports, facts, clocks)
            self.has_started = True
        try:
            with self.disk.in_use():
                self.manager.step()
        except (Crash, CrashAtFile):
            self.manager = None
        self.time_s += 0.01

    def crash(self) -> None:
        self.manager = None

    def rename(self) -> None:
        """Gives the Node object another UID."""
        self.uid += 1
        if self.manager:
            self.manager.set_facts(NodeFacts(f"uid-{self.uid}", f"node-{self.number}"))

    def power_off(self) -> None:
        """Ends everything at once; what was not on the disk is lost."""
        self.is_on, self.manager = False, None
        self.pods.clear()
        self.disk.lose_power()

    def boot(self) -> None:
        if not self.is_on:
            self.is_on = True
            self.boots += 1

    def copy(self, root: Path, number: int) -> Node:
        """Returns another machine with a copy of this one's disk."""
        shutil.copytree(self.root, root)
        other = Node(root, self._store, number, self.node, self._pool)
        other.has_started = self.has_started
        return other

    # The plugins.

    def add(self, namespace: str = "", pod: str = "") -> dict[str, Any]:
        """Runs ADD for a new pod, whose name the runtime passes if it has a namespace; returns the answer."""
        self._containers += 1
        container = f"c{self.number}-{self.boots}-{self._containers}"
        answer = self._run("ADD", container, namespace, pod)
        assert answer is not None
        if "ips" in answer:
            self.pods[container] = [ip["address"].split("/")[0] for ip in answer["ips"]]
        return answer

    def delete(self, number: int) -> None:
        """Runs DEL for a pod that runs."""
        if self.pods:
            container = sorted(self.pods, key=lambda name: (name not in self.orphans, name))[number % len(self.pods)]
            del self.pods[container]
            assert self._run("DEL", container) is None

    def collect(self) -> None:
        """Runs GC: the reservations of pods that do not run are released."""
        valid: Any = [{"containerID": container, "ifname": "eth0"} for container in self.pods]
        keys: dict[str, Any] = {"cni.dev/valid-attachments": valid}
        assert self._run("GC", "", **keys) is None

    def lose_file(self) -> None:
        """Damages the grants file, as a bad disk does, and ends the agent: the next one knows nothing of the grants."""
        if self.is_on and os.path.exists(self.grants_path):
            Path(self.grants_path).write_text("{")
            self.manager = None
            self.orphans = set(self.pods)

    def _run(
        self, command: str, container: str, namespace: str = "", pod: str = "", **keys: Any
    ) -> dict[str, Any] | None:
        env = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_IFNAME": "eth0",
            "CNI_NETNS": "/dev/null",
            "CNI_PATH": "/bin",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}" if namespace else "",
        }
        if command == "GC":
            del env["CNI_CONTAINERID"], env["CNI_IFNAME"], env["CNI_NETNS"]
        ipam = {"type": "host-local", "dataDir": f"{self.root}/leases", "pool": self._pool}
        config = {"name": NETWORK, "cniVersion": "1.1.0", "ipam": ipam, **keys}
        stdout = io.BytesIO()
        with self._booted():
            skel.run(PLUGIN, env, MemoryStdin(json.dumps(config).encode()), stdout, about="")
        answer: dict[str, Any] | None = json.loads(stdout.getvalue()) if stdout.getvalue() else None
        return answer

    @contextmanager
    def _booted(self) -> Iterator[None]:
        """Lets the code of this process see this machine's boot."""
        before = boot.get_boot_id
        boot.get_boot_id = lambda: self.boot_id
        try:
            yield
        finally:
            boot.get_boot_id = before


@lru_cache(1024)
def _parsed(content: bytes) -> tuple[str, tuple[FileEntry, ...]]:
    """Returns the boot and the entries of a grants file; nothing for a damaged one."""
    try:
        grants = grants_file.parse(content)
    except (ValueError, CniError):
        return "", ()
    return grants.boot, grants.entries
