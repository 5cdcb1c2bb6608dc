"""The DHCP daemon of the warm-up: the other end of the plugin's connection, which grants one lease."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from cni.result import DNS, IPConfig, Result, Route
from ipam.dhcp.rpc import ALLOCATE, Connection

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


class Daemon:
    """The daemon's side of one connection."""

    def __init__(self) -> None:
        self._connection = Connection()

    def answers(self, data: bytes) -> bytes:
        """Receives the plugin's bytes and returns the daemon's."""
        calls = self._connection.receive(data)
        answer = self._connection.data_to_send()
        for call in calls:
            answer += self._connection.reply(call, _RESULT if call.method == ALLOCATE else None)
        return answer
