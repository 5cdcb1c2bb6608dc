"""Asks podwire-agent whether network policies deny a path whose packet was lost."""

from __future__ import annotations

from cni.errors import CniError
from cni.fields import Fields
from kernel.packet_tap import TCP, UDP
from podwire.cluster import agent_socket
from podwire.trace.exchange import Flow
from podwire.trace.topology import PodPlace

_PROTOCOLS = {TCP: "tcp", UDP: "udp"}


def find_denial(flow: Flow) -> str:
    """Returns which policies deny a connection, "" if none is known to."""
    destination = flow.target.address(flow.destination.version) if isinstance(flow.target, PodPlace) else None
    protocol = _PROTOCOLS.get(flow.protocol, "icmp")
    question = {
        "source": str(flow.source_address),
        "destination": str(destination or flow.destination),
        "protocol": protocol,
        "port": 0 if protocol == "icmp" else flow.target_port or flow.port,
    }
    try:
        document = agent_socket.post(agent_socket.SOCKET, "/policy/why", question)
        answer = Fields(document, context="the answer of podwire-agent")
        if answer.string("problem"):
            return ""  # it does not enforce the policies
        ends = [
            connection.section(end) for connection in answer.objects("connections") for end in ("egress", "ingress")
        ]
        return next((end.string("reason") for end in ends if not end.boolean("allowed")), "")
    except CniError:
        return ""  # no agent enforces policies here
