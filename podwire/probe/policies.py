"""Asks podwire-agent whether network policies deny a connection that got no answer."""

from __future__ import annotations

from cni.errors import CniError
from podwire.probe.attempt import Attempt
from podwire.probe.transfer import Stage, Transfer
from podwire.trace import network_policy
from podwire.trace.exchange import Exchange, Flow
from podwire.trace.topology import PodPlace


class PolicyQuestions:
    """Questions to the agent of this node; after an error the agent is not asked again."""

    def __init__(self) -> None:
        self._is_answering = True

    def find_denial(self, flow: Flow, attempt: Attempt | None) -> str:
        """Returns why network policies deny an attempt's flow; "" if they allow it, or the agent does not answer.

        Without a target the destination may be a Service's: only a trace shows where its packets go.
        """
        if not (self._is_answering and flow.target and is_unanswered(attempt)):
            return ""
        address = flow.target.address(flow.version) if isinstance(flow.target, PodPlace) else None
        try:
            return network_policy.ask_agent(
                flow.source_address, address or flow.destination, flow.protocol, flow.target_port or flow.port
            )
        except CniError:
            self._is_answering = False
            return ""


def is_unanswered(attempt: Attempt | None) -> bool:
    """Returns whether packets of a new connection were sent, and nothing came back."""
    if isinstance(attempt, Transfer):
        return attempt.stage is Stage.CONNECT and not attempt.error
    return isinstance(attempt, Exchange) and not attempt.seen.send_error
