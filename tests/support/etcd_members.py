"""etcd whose members are hosts of their own on the nodes' link, so that each can be cut off, replaced and restored."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import namespaces
from tests.support.etcd import Etcd
from tests.support.machine import eventually
from tests.support.namespaces import Namespace

_CLIENT_PORT, _PEER_PORT = 2379, 2380
_CHANGE_S = 40.0


class EtcdMembers(Etcd):
    """A cluster of `size` members on the bridge "lan" of the fabric."""

    def __init__(self, program: Path, directory: Path, fabric: Namespace, *, size: int = 3) -> None:
        super().__init__(program, directory, size=size)
        self._fabric = fabric
        self.hosts = [f"192.0.2.{101 + number}" for number in range(size)]
        self.urls = [f"http://{host}:{_CLIENT_PORT}" for host in self.hosts]
        self._peers = [f"http://{host}:{_PEER_PORT}" for host in self.hosts]
        self._namespaces: list[Namespace] = []
        self._state = ["new"] * size

    @contextlib.contextmanager
    def running(self) -> Iterator[EtcdMembers]:
        """Runs the members inside the block; the caller is in the fabric."""
        with contextlib.ExitStack() as stack:
            for number, host in enumerate(self.hosts):
                namespace = stack.enter_context(namespaces.temporary("etcd"))
                port = self.port(number)
                self._fabric.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace.name)
                self._fabric.ip("link", "set", port, "master", "lan", "up")
                namespace.ip("link", "set", "lo", "up")
                namespace.ip("address", "add", f"{host}/24", "dev", "eth0")
                namespace.ip("link", "set", "eth0", "up")
                self._namespaces.append(namespace)
            stack.enter_context(super().running())
            yield self

    def port(self, number: int) -> str:
        """Returns the name of a member's port on the bridge."""
        return f"etcd{number}"

    def start(self, number: int) -> None:
        """Starts a member with the data of its directory; does not wait."""
        members = ",".join(f"m{one}={peer}" for one, peer in enumerate(self._peers))
        url, peer = self.urls[number], self._peers[number]
        enter = ("nsenter", f"--net={self._namespaces[number].path}", "--")
        with (self.directory / f"etcd-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                (
                    *("setpriv", "--pdeathsig=KILL", *enter, str(self.program), f"--name=m{number}"),
                    *("--unsafe-no-fsync", f"--data-dir={self.data(number)}", f"--initial-cluster={members}"),
                    *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}", "--heartbeat-interval=50"),
                    *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", "--election-timeout=500"),
                    *(f"--initial-cluster-state={self._state[number]}", "--log-level=warn"),
                ),
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def data(self, number: int) -> Path:
        """Returns the directory of a member's data."""
        return self.directory / f"etcd-{number}"

    def signal(self, number: int, kind: signal.Signals) -> None:
        """Sends a signal to a member: SIGSTOP, SIGCONT, SIGKILL."""
        self._processes[number].send_signal(kind)

    def replace(self, number: int) -> None:
        """Replaces a member by a new one without data, as after its disk was lost."""
        self.kill(number)
        assert eventually(lambda: self._leave(number), within_s=_CHANGE_S)
        assert eventually(lambda: self._join(number), within_s=_CHANGE_S)
        shutil.rmtree(self.data(number))
        self._state[number] = "existing"
        self.start(number)

    def _leave(self, number: int) -> bool:
        """Removes a member from the cluster; returns whether it is no member any more."""
        with contextlib.suppress(OSError):  # an answer may be lost while a leader is elected
            for member in self._list(number):
                self.call("cluster/member/remove", {"ID": member["ID"]}, number=self._other(number))
            return not self._list(number)
        return False

    def _join(self, number: int) -> bool:
        """Adds a member that has not started yet; returns whether it is a member."""
        with contextlib.suppress(OSError):
            if not self._list(number):
                self.call("cluster/member/add", {"peerURLs": [self._peers[number]]}, number=self._other(number))
            return bool(self._list(number))
        return False

    def _list(self, number: int) -> list[dict[str, Any]]:
        members = self.call("cluster/member/list", {}, number=self._other(number))["members"]
        return [member for member in members if member["peerURLs"] == [self._peers[number]]]

    def _other(self, number: int) -> int:
        return (number + 1) % len(self.urls)

    def back_up(self, name: str) -> None:
        """Stops all members, copies their data, and starts them again."""
        self._stop_all()
        for number in range(len(self.urls)):
            shutil.copytree(self.data(number), self.directory / f"{name}-{number}")
            self.start(number)

    def roll_back(self, name: str) -> None:
        """Replaces the data of all members by those of a backup."""
        self._stop_all()
        for number in range(len(self.urls)):
            shutil.rmtree(self.data(number))
            shutil.copytree(self.directory / f"{name}-{number}", self.data(number))
            self.start(number)

    def _stop_all(self) -> None:
        for number in range(len(self.urls)):
            with contextlib.suppress(KeyError):
                self.kill(number)
