"""Asks podwire-agent whether network policies deny a connection that got no answer."""

from __future__ import annotations

from cni.errors import CniError
from cni.fields import Fields
from kernel.packet_tap import TCP, UDP
from podwire.cluster import agent_socket
from podwire.probe.attempt import Attempt
from podwire.probe.transfer import Stage, Transfer
from podwire.trace.exchange import Exchange, Flow
from podwire.trace.topology import PodPlace
from process import signals

_LIMIT_S = 5.0
_PROTOCOLS = {TCP: "tcp", UDP: "udp"}


class PolicyQuestions:
    """Questions to the agent of this node; after an error it is asked no more."""

    def __init__(self) -> None:
        self._is_answering = True

    def find_denial(self, flow: Flow, attempt: Attempt | None) -> str:
        """Returns why network policies deny an attempt's flow; "" if they allow it, or the agent does not answer."""
        try:
            return self._ask(flow) if self._is_answering and _is_unanswered(attempt) else ""
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
        with signals.unblocked():
            document = agent_socket.post(agent_socket.SOCKET, "/policy/why", question, limit_s=_LIMIT_S)
        answer = Fields(document, context="the answer of podwire-agent")
        if answer.string("problem"):
            return ""  # it may not enforce all of them
        ends = [
            connection.section(end) for connection in answer.objects("connections") for end in ("egress", "ingress")
        ]
        return next((end.string("reason") for end in ends if not end.boolean("allowed")), "")


def _is_unanswered(attempt: Attempt | None) -> bool:
    """Returns whether packets of a new connection were sent, and nothing came back."""
    if isinstance(attempt, Transfer):
        return attempt.stage is Stage.CONNECT and not attempt.error
    return isinstance(attempt, Exchange) and not attempt.seen.send_error
