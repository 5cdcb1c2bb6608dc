"""Names the network policies that dropped a packet, from the comment of the agent's chain."""

from __future__ import annotations

from attachment.policy.table import ChainSubject
from cni.address import Address
from kernel.packet_tap import UDP
from podwire.trace.exchange import Flow
from podwire.trace.place import Place
from podwire.trace.rules import MetRule
from podwire.trace.suspect import Suspect
from podwire.trace.topology import PodPlace

_AGENT = "podwire-agent"


def of_rule(rule: MetRule, flow: Flow) -> Suspect | None:
    """Returns the suspect if a chain of network policies dropped the packet, None for a rule of another chain."""
    if not rule.comment:
        return None
    (direction, namespace, policies), is_complete = ChainSubject.parse(rule.comment)
    place = flow.target if direction == "ingress" else flow.source
    end = f"{direction} of {place.name}" if isinstance(place, PodPlace) else direction
    if policies:
        noun, verb = ("policy", "drops") if is_complete and not policies[1:] else ("policies", "drop")
        names = ", ".join(policies) + ("" if is_complete else " and more")
        text = f"network {noun} {names} of namespace {namespace} {verb} it ({end})"
    else:
        text = f"{_AGENT} isolates the pod until the API server sends its object ({end})"
    return Suspect("network-policy", rule.place, text, rule.describe(), _AGENT, _why_command(flow))


def _why_command(flow: Flow) -> str:
    """Returns the `podwire policy why` command for the packet."""
    target, port = _name(flow.target, flow.destination), flow.target_port if flow.target else flow.port
    if port:
        host = f"[{target}]" if ":" in target else target
        target = f"{host}:{port}" + ("/udp" if flow.protocol == UDP else "")
    return f"podwire policy why {_name(flow.source, flow.source_address)} {target}"


def _name(place: Place | None, address: Address) -> str:
    """Returns a pod's name, or the address of a place that is no pod with a name."""
    if not isinstance(place, PodPlace):
        return str(address)
    return place.name if "/" in place.name else str(place.address(address.version) or address)
