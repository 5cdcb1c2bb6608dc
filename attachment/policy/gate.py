"""Waits in ADD until podwire-agent has applied the pod's policies; lists the elements that DEL removes from the filter.

One rule: a pod of a namespace with policies starts only after the agent's answer.

The agent writes the file `namespaces` before it reads records; each new content has a higher generation:

    {"boot": "6f1d...", "generation": 7, "strict": false, "namespaces": ["shop"]}

ADD writes its record, reads that file, and then asks on the socket, one line of JSON each way:

    {"record": "<name of its file>", "generation": 7}
    {"generation": 7}

The agent answers when the addresses of the record are in the packet filter. ADD asks again if the answer has a lower
generation than the file that it has read. If there is no file of this boot, ADD waits in every namespace.
"""

from __future__ import annotations

import socket as stdlib_socket
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from attachment.policy import table
from attachment.policy.records import PodRecord, parse_fields
from cni import gojson
from cni.address import Address
from cni.errors import CniError, Code
from kernel import system
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Deadline
from process import files, record

_WAIT_S = 20.0
_RETRY_S = 0.25
_MAX_BYTES = 4 << 20  # 60,000 namespaces, whose names have up to 63 bytes
_ANSWER_BYTES = 4096
_NOT_RUNNING, _NO_ANSWER, _OLD_ANSWER = "it does not run", "it does not answer", "it has an older list of namespaces"
_HINT = (
    "pods of namespaces with network policies start only when the agent has applied them: start podwire-agent with "
    f"--network-policy on this node, or read its log; it listens on {table.GATE_SOCKET}"
)


class Namespaces(NamedTuple):
    """The content of the agent's file."""

    generation: int
    is_strict: bool
    names: frozenset[str]


def wait(pod: PodRecord) -> None:
    """Waits until the agent has applied the policies of a pod, if its namespace has any; raises CniError(11)."""
    generation = awaited_generation(read_namespaces(pod.boot), pod.namespace)
    if generation is None:
        return
    deadline = Deadline(_WAIT_S)
    request = gojson.dumps({"record": pod.file_name, "generation": generation}).encode() + b"\n"
    with record.timed_step("wait for podwire-agent"):
        while problem := _ask(request, generation, deadline):
            system.current.wait_readable([], min(_RETRY_S, deadline.remaining_s()))
            if not deadline.remaining_s():
                break
    if problem:
        awaited = f'podwire-agent has not applied the network policies of namespace "{pod.namespace}"'
        raise CniError(Code.TRY_AGAIN_LATER, f"{awaited} within {_WAIT_S:.0f} s: {problem}", _HINT)


def awaited_generation(known: Namespaces | None, namespace: str) -> int | None:
    """Returns the lowest generation that ADD accepts in the agent's answer, None if ADD does not wait for one."""
    if known is None:
        return 0
    return known.generation if known.is_strict or namespace in known.names else None


def is_accepted(answered: int, awaited: int) -> bool:
    """Returns whether an ADD that awaits a generation accepts an answer of generation `answered`."""
    return answered >= awaited


def read_namespaces(boot_id: str) -> Namespaces | None:
    """Returns the content of the agent's file; None if it is absent, of another boot, or damaged."""
    try:
        fields = parse_fields(files.read(system.current.state_path(table.NAMESPACES_FILE), _MAX_BYTES))
        if fields.string("boot") != boot_id:
            return None
        names = frozenset(fields.strings("namespaces"))
        return Namespaces(fields.integer("generation") or 0, fields.boolean("strict"), names)
    except (OSError, ValueError, CniError):
        return None


def filter_keys(addresses: Iterable[Address]) -> list[tuple[Set, bytes]]:
    """Returns the elements that a pod's addresses may have in the agent's maps and sets, each as set and key."""
    return [
        (element_sets[address.version], key)
        for address in addresses
        for element_sets, key in (
            (table.EGRESS, address.packed),
            (table.INGRESS, address.packed),
            (table.SELF, address.packed * 2),
        )
    ]


def _ask(request: bytes, generation: int, deadline: Deadline) -> str:
    """Sends the request once, and waits for the answer; returns "" if ADD accepts it, else the problem."""
    with system.current.open_socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(system.current.state_path(table.GATE_SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):
            return _NOT_RUNNING
        except BlockingIOError:  # its backlog is full
            return _NO_ANSWER
        answer = b""
        with suppress(ConnectionError):
            connection.send(request)
            while b"\n" not in answer and system.current.wait_readable([connection.fileno()], deadline.remaining_s()):
                chunk = connection.recv(_ANSWER_BYTES)
                if not chunk or len(answer) > _ANSWER_BYTES:
                    break
                answer += chunk
    return _find_problem(answer, generation)


def _find_problem(answer: bytes, generation: int) -> str:
    """Returns "" if the answer has this generation or a higher one, else the problem."""
    line, newline, _ = answer.partition(b"\n")
    try:
        answered = parse_fields(line).integer("generation") if newline else None
    except (ValueError, CniError):
        answered = None
    if answered is None:
        return _NO_ANSWER
    return "" if is_accepted(answered, generation) else _OLD_ANSWER
