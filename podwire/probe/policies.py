"""Asks podwire-agent whether network policies deny a connection that got no answer."""

from __future__ import annotations

from cni.errors import CniError
from cni.fields import Fields
from kernel.packet_tap import TCP, UDP
from podwire.cluster import agent_socket
from podwire.trace.exchange import Flow
from podwire.trace.topology import PodPlace

_LIMIT_S = 10.0
_PROTOCOLS = {TCP: "tcp", UDP: "udp"}


class PolicyQuestions:
    """Questions to the agent of this node; after an error it is asked no more."""

    def __init__(self) -> None:
        self._is_answering = True

    def find_denial(self, flow: Flow) -> str:
        """Returns why network policies deny a flow; "" if they allow it, or the agent does not answer."""
        try:
            return self._ask(flow) if self._is_answering else ""
        except CniError:
            self._is_answering = False
            return ""

    def _ask(self, flow: Flow) -> str:
        destination = flow.target.address(flow.destination.version) if isinstance(flow.target, PodPlace) else None
        protocol = _PROTOCOLS.get(flow.protocol, "icmp")
        question = {
            "source": str(flow.source_address),
            "destination": str(destination or flow.destination),
            "protocol": protocol,
            "port": 0 if protocol == "icmp" else flow.target_port or flow.port,
        }
        document = agent_socket.post(agent_socket.SOCKET, "/policy/why", question, limit_s=_LIMIT_S)
        answer = Fields(document, context="the answer of podwire-agent")
        if answer.string("problem"):
            return ""  # it may not enforce all of them
        ends = [
            connection.section(end) for connection in answer.objects("connections") for end in ("egress", "ingress")
        ]
        return next((end.string("reason") for end in ends if not end.boolean("allowed")), "")
