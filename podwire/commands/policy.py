"""`podwire policy list|why`: asks podwire-agent about the network policies of this node's pods."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from cni.errors import Code
from cni.fields import Fields
from podwire import destination_argument
from podwire.cluster import agent_socket
from podwire.command import Command, Context, ExitStatus, UsageError, exit_status, run_subcommand
from podwire.commands.agent_command import add_command
from podwire.destination_argument import is_address
from podwire.output import Cell, Text

_DIRECTIONS = ("egress", "ingress")
_HINT = "examples: shop/db-0:5432, shop/dns-0:53/udp, 10.22.0.7:80, [fd00::7]:80, shop/db-0 (a ping)"

_DESCRIPTION = """\
podwire-agent with --network-policy enforces the NetworkPolicies of the cluster for the pods of this node. These
commands ask the agent; they send no packets and change nothing. `podwire trace` sends a packet, and names the rule
that drops it."""
_LIST = """\
Prints the policies that the agent knows: the directions in which they isolate pods, the number of pods of this node
that they select, and the number of dropped packets. Policies that select the same pods share a counter, so a dropped
packet counts for each of them; it restarts at 0 when a policy of the group comes or goes. A second table lists the pods
of this node and their policies.

Exit status: 0; 1 if the agent does not enforce all policies, with the reason printed; 3 if the agent does not answer.

--json prints {"policies": [{"namespace", "name", "directions", "pods", "droppedPackets"}], "pods": [{"namespace",
"name", "addresses", "policies", "isKnown"}], "problem"}; "isKnown" is false while the agent has no object of the pod:
meanwhile the pod is isolated if its namespace has policies."""
_WHY = """\
Prints whether the policies allow a connection, and which policy and rule decides, at both ends: the egress of the
source and the ingress of the destination. An end is a pod on any node (NAMESPACE/NAME), or any address. Without a port
the connection is a ping; with a port it is TCP, or UDP or SCTP with /udp or /sctp. Policies apply to pods: for a
Service, name one of its pods.

Exit status: 0 allowed; 1 denied; 3 the agent does not answer, or knows no such pod; 4 allowed, but the agent does not
enforce all policies, with the reason printed.

--json prints {"connections": [{"source", "destination", "allowed", "egress": {"allowed", "reason"}, "ingress":
{"allowed", "reason"}}], "problem"}, with a connection for each IP version that both ends have."""
_EXAMPLES = {
    "list": (("podwire policy list", "the policies, and the pods of this node that they select"),),
    "why": (
        ("podwire policy why shop/web-0 shop/db-0:5432", "may web-0 connect to db-0?"),
        ("podwire policy why 203.0.113.9 shop/dns-0:53/udp", "may this address send to dns-0?"),
    ),
}


def _list(context: Context, options: Namespace) -> ExitStatus:
    document = agent_socket.get(options.socket, "/policy")
    fields, out = _fields(document, options), context.out
    out.print_json(document)
    policies, pods, problem = fields.objects("policies"), fields.objects("pods"), fields.string("problem")
    if policies:
        titles = ("NAMESPACE", "POLICY", "ISOLATES", "PODS HERE", "DROPPED PACKETS")
        out.print_table(titles, list(map(_policy_row, policies)))
    if pods:
        out.print_table(("POD", "ADDRESSES", "POLICIES"), [_pod_row(pod) for pod in pods])
    if not policies:
        out.print("the cluster has no network policies")
    _print_problem(context, problem)
    return exit_status(wrong=bool(problem), complete=True)


def _policy_row(policy: Fields) -> list[Text]:
    numbers = [str(policy.integer(key) or 0) for key in ("pods", "droppedPackets")]
    return [policy.string("namespace"), policy.string("name"), " ".join(policy.strings("directions")), *numbers]


def _pod_row(pod: Fields) -> list[Text]:
    name, policies = f"{pod.string('namespace')}/{pod.string('name')}", " ".join(pod.strings("policies")) or "-"
    policies_cell: Text = policies if pod.boolean("isKnown") else Cell("unknown", "warning")
    return [name, " ".join(pod.strings("addresses")), policies_cell]


def _why(context: Context, options: Namespace) -> ExitStatus:
    question = _question(options.source, options.destination)
    document = agent_socket.post(options.socket, "/policy/why", question)
    fields, out = _fields(document, options), context.out
    out.print_json(document)
    connections, problem = fields.objects("connections"), fields.string("problem")
    protocol_and_port = f"{question['protocol']} {question['port']}" if question["port"] else "ping"
    for connection in connections:
        verdict = Cell("allowed:", "good") if connection.boolean("allowed") else Cell("denied:", "bad")
        ends = [_describe_end(str(question[key]), connection.string(key)) for key in ("source", "destination")]
        out.print(verdict, f"{protocol_and_port} from {ends[0]} to {ends[1]}")
        for direction in _DIRECTIONS:
            end = connection.section(direction)
            out.print(f"  {direction}:", Cell(end.string("reason"), "" if end.boolean("allowed") else "bad"))
    _print_problem(context, problem)
    is_allowed = bool(connections) and all(connection.boolean("allowed") for connection in connections)
    return exit_status(wrong=not is_allowed, complete=not problem)


def _describe_end(name: str, address: str) -> str:
    return f"{name} ({address})" if "/" in name else address


def _print_problem(context: Context, problem: str) -> None:
    if problem:
        context.out.print(Cell("the agent does not enforce all policies:", "bad"), problem)


def _fields(document: Mapping[str, object], options: Namespace) -> Fields:
    return Fields(document, context=f"the answer of podwire-agent at {options.socket}")


def _question(source: str, destination: str) -> dict[str, object]:
    """Returns the body of the request to the agent; raises UsageError."""
    host, port, protocol = destination_argument.parse(destination, ("tcp", "udp", "sctp"), _HINT)
    for name in (source, host or destination):
        namespace, _, pod = name.partition("/")
        if not is_address(name) and (not namespace or not pod or "/" in pod):
            msg = f'"{name}" is neither a pod (NAMESPACE/NAME) nor an address'
            raise UsageError(Code.INVALID_ENVIRONMENT, msg, _HINT)
    return {"source": source, "destination": host, "protocol": protocol or "icmp", "port": port}


def _arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(subcommand=None)
    add_command(commands, "list", "the policies, and the pods of this node that they select", _LIST, _list, _EXAMPLES)
    why = add_command(commands, "why", "whether the policies allow a connection, and why", _WHY, _why, _EXAMPLES)
    why.add_argument("source", metavar="SOURCE", help="a pod (NAMESPACE/NAME) or an address")
    why.add_argument(
        "destination", metavar="DESTINATION[:PORT[/udp]]", help="a pod or an address, with a port except for a ping"
    )


COMMAND = Command(
    "policy",
    "network policies: which pods they select, and whether they allow a connection",
    _DESCRIPTION,
    run_subcommand,
    _arguments,
    tuple(example for examples in _EXAMPLES.values() for example in examples),
)
