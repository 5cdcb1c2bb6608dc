"""Names the network policies that dropped a packet, from the comment of the agent's chain or the agent's answer."""

from __future__ import annotations

from attachment.policy.table import ChainSubject
from cni.address import Address
from cni.errors import CniError
from cni.fields import Fields
from kernel.packet_tap import TCP, UDP, Sighting
from podwire.cluster import agent_socket
from podwire.trace.exchange import Flow
from podwire.trace.place import NODE, Place
from podwire.trace.rules import MetRule
from podwire.trace.suspect import Suspect
from podwire.trace.topology import PodPlace
from process import signals

NAME = "network-policy"  # of the suspects
_AGENT = "podwire-agent"
_LIMIT_S = 2.0
_PROTOCOLS = {TCP: "tcp", UDP: "udp"}


def of_rule(rule: MetRule, flow: Flow) -> Suspect | None:
    """Returns the suspect if a chain of network policies dropped the packet, None for a rule of another chain."""
    if not rule.comment:
        return None
    (direction, namespace, policies), is_complete = ChainSubject.parse(rule.comment)
    place = flow.target if direction == "ingress" else flow.source
    end = f"{direction} of {place.name}" if isinstance(place, PodPlace) else direction
    if policies:
        noun, verb = ("policies", "drop") if policies[1:] else ("policy", "drops")
        cut = " and more" if policies[1:] else "..."
        names = ", ".join(policies) + ("" if is_complete else cut)
        text = f"network {noun} {names} of namespace {namespace} {verb} it ({end})"
    else:
        text = f"{_AGENT} isolates the pod until the API server sends its object ({end})"
    return Suspect(NAME, rule.place, text, rule.describe(), _AGENT, _why_command(flow))


def at_other_node(flow: Flow, last: Sighting) -> Suspect | None:
    """Returns the suspect for a packet that has left this node as `last`, if policies deny it at the other end."""
    try:
        denial = ask_agent(last.source, last.destination, flow.protocol, last.port)
    except CniError:
        return None
    if not denial:
        return None
    look = _command(_name(flow.source, flow.source_address), str(last.destination), last.port, flow.protocol)
    return Suspect(NAME, NODE, f"at the other end, {denial}", str(last.destination), _AGENT, look)


def ask_agent(source: Address, destination: Address, protocol: int, port: int) -> str:
    """Returns why network policies deny a connection, as podwire-agent says; "" if they allow it. Raises CniError."""
    name = _PROTOCOLS.get(protocol, "icmp")
    question = {
        "source": str(source),
        "destination": str(destination),
        "protocol": name,
        "port": port if name != "icmp" else 0,
    }
    with signals.unblocked():
        document = agent_socket.post(agent_socket.SOCKET, "/policy/why", question, limit_s=_LIMIT_S)
    answer = Fields(document, context="the answer of podwire-agent")
    if answer.string("problem"):
        return ""  # it may not enforce all of them
    ends = [connection.section(end) for connection in answer.objects("connections") for end in ("egress", "ingress")]
    return next((end.string("reason") for end in ends if not end.boolean("allowed")), "")


def _why_command(flow: Flow) -> str:
    """Returns the `podwire policy why` command for the packet."""
    port = flow.target_port if flow.target else flow.port
    return _command(_name(flow.source, flow.source_address), _name(flow.target, flow.destination), port, flow.protocol)


def _command(source: str, target: str, port: int, protocol: int) -> str:
    if port:
        host = f"[{target}]" if ":" in target else target
        target = f"{host}:{port}" + ("/udp" if protocol == UDP else "")
    return f"podwire policy why {source} {target}"


def _name(place: Place | None, address: Address) -> str:
    """Returns a pod's name, or the address of a place that is no pod with a name."""
    if not isinstance(place, PodPlace):
        return str(address)
    return place.name if "/" in place.name else str(place.address(address.version) or address)
