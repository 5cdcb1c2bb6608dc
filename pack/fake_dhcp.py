"""The DHCP daemon of the warm-up: the other end of the plugin's connection, which grants one lease."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from types import TracebackType

from cni.result import DNS, IPConfig, Result, Route
from ipam.dhcp.rpc import ALLOCATE, Connection
from kernel.rtnl import Deadline

# Keys of `ipam`.
KEYS = {
    "provide": [{"option": "host-name", "value": "warm-up", "fromArg": "K8S_POD_NAME"}],
    "request": [{"option": "domain-name-servers"}],
}
_GATEWAY = IPv4Address("10.1.2.1")
_RESULT = Result(
    ips=(IPConfig(IPv4Interface("10.1.2.2/24"), _GATEWAY),),
    routes=(Route(IPv4Interface(IPv4Network("0.0.0.0/0").with_prefixlen), _GATEWAY),),
    dns=DNS(nameservers=("10.1.2.1",)),
)


class _Daemon:
    """A connected socket, whose other end is the daemon's side of the protocol in this process."""

    def __init__(self) -> None:
        self._descriptor = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)  # poll(2): always ready
        self._connection = Connection()
        self._answer = b""

    def __enter__(self) -> _Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Returns a descriptor for poll(2)."""
        return self._descriptor

    def setblocking(self, flag: bool) -> None:
        """Accepts any mode."""

    def send(self, data: memoryview) -> int:
        """Receives the plugin's bytes, and prepares the answer."""
        calls = self._connection.receive(bytes(data))
        self._answer += self._connection.data_to_send()
        for call in calls:
            self._answer += self._connection.reply(call, _RESULT if call.method == ALLOCATE else None)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Returns the whole answer."""
        answer, self._answer = self._answer, b""
        return answer


def connect(path: str, deadline: Deadline) -> _Daemon:
    """Returns a connection to the daemon, whatever the path."""
    return _Daemon()
