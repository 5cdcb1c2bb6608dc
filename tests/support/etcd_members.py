"""etcd whose members are hosts of their own on the nodes' link, so that each can be cut off, replaced and restored."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support import namespaces
from tests.support.etcd import Etcd
from tests.support.machine import eventually
from tests.support.namespaces import Namespace

_CHANGE_S = 40.0


class EtcdMembers(Etcd):
    """A cluster of `size` members on the bridge "lan" of the fabric."""

    def __init__(self, program: Path, directory: Path, fabric: Namespace, *, size: int = 3) -> None:
        super().__init__(program, directory, size=size)
        self._fabric = fabric
        self.options = ["--heartbeat-interval=50", "--election-timeout=500", "--log-level=warn"]
        self.hosts = [f"192.0.2.{101 + number}" for number in range(size)]
        self.urls = [f"http://{host}:2379" for host in self.hosts]
        self.peers = [f"http://{host}:2380" for host in self.hosts]
        self._namespaces: list[Namespace] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
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
            yield stack.enter_context(super().running())

    def port(self, number: int) -> str:
        """Returns the name of a member's port on the bridge."""
        return f"etcd{number}"

    def entering(self, number: int) -> Sequence[str]:
        """Returns the words that move a member to its host."""
        return ("nsenter", f"--net={self._namespaces[number].path}", "--")

    def replace(self, number: int) -> None:
        """Replaces a member by a new one without data, as after its disk was lost."""
        self.kill(number)
        assert eventually(lambda: self._leave(number), within_s=_CHANGE_S)
        assert eventually(lambda: self._join(number), within_s=_CHANGE_S)
        shutil.rmtree(self.data(number))
        self.states[number] = "existing"
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
                self.call("cluster/member/add", {"peerURLs": [self.peers[number]]}, number=self._other(number))
            return bool(self._list(number))
        return False

    def _list(self, number: int) -> list[dict[str, Any]]:
        members = self.call("cluster/member/list", {}, number=self._other(number))["members"]
        return [member for member in members if member["peerURLs"] == [self.peers[number]]]

    def _other(self, number: int) -> int:
        return (number + 1) % len(self.urls)
