"""Restrictions that an administrator has written in the chains of a node, and connections that they refuse."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.fault_node import FaultNode
from tests.support.namespaces import Namespace

_MAIL, _ADMIN, _LIMITED = 25, 9999, 8081
_TIMEOUT_S = 20.0  # the rules refuse at once
# No mail, a port of the node closed to the pods, a published port only for another network.
_SHELL = f"""
iptables -N DOCKER-USER; iptables -I FORWARD -j DOCKER-USER
iptables -A DOCKER-USER -i out0 ! -s 192.168.1.0/24 -p tcp -m conntrack --ctorigdstport {_LIMITED} -j REJECT
iptables -A FORWARD -p tcp --dport {_MAIL} -j REJECT --reject-with tcp-reset
iptables -A INPUT -i {{gate}} -p tcp --dport {_ADMIN} -j REJECT --reject-with tcp-reset
"""


class Restrictions:
    """The restrictions on a node. Everything that they refuse would be answered: a process listens there."""

    def __init__(self, node: FaultNode) -> None:
        self._node = node
        words = node.words
        pod, far = Namespace(words["pod"]), Namespace(words["far"])
        self._connections = (
            (pod, "192.0.2.2", _MAIL, "mail from a pod"),
            (pod, words["gateway"], _ADMIN, "a port of the node from a pod"),
            (far, "192.0.2.1", _LIMITED, "a published port from another network"),
        )

    def install(self) -> None:
        """Writes the rules, if they are not there."""
        if "DOCKER-USER" not in self._node.shell("iptables -S").stdout:
            self._node.inject(_SHELL)

    def passing(self) -> list[str]:
        """Returns the connections that are made in spite of the restrictions."""
        return [name for client, address, port, name in self._connections if _connects(client, address, port)]


@contextmanager
def restrictions(node: FaultNode) -> Iterator[Restrictions]:
    """Yields the restrictions, with the processes that listen; each connection is refused by a rule, not otherwise."""
    words = node.words
    places = ((Namespace(words["far"]), _MAIL), (node.host, _ADMIN), (Namespace(words["pod2"]), 80))
    with ExitStack() as stack:
        for namespace, port in places:
            with namespace.entered():
                stack.enter_context(socket.create_server(("", port)))
        written = Restrictions(node)
        assert len(written.passing()) == 3
        written.install()
        assert written.passing() == []
        yield written


def _connects(client: Namespace, address: str, port: int) -> bool:
    with client.entered(), socket.socket() as connection:
        connection.settimeout(_TIMEOUT_S)
        return connection.connect_ex((address, port)) == 0
