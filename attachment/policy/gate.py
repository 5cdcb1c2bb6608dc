"""ADD's wait until podwire-agent has applied the pod's policies, and the addresses that DEL removes from the filter.

One rule: a pod of a namespace with policies starts only after the agent's answer, and one that starts without it is in
a namespace without policies.

The agent writes the file `namespaces` before it reads records, with a new generation for each new content:

    {"boot": "6f1d...", "generation": 7, "strict": false, "namespaces": ["shop"]}

ADD writes its record, reads that file, and then asks on the socket, one line of JSON each way:

    {"record": "<name of its file>", "generation": 7}
    {"generation": 7}

The agent answers when the addresses of the record are in the packet filter. An answer of an older generation than ADD
has read does not count. A file of another boot, or no file, is as one that lists every namespace.
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
from kernel import boot, system
from kernel.netfilter.nft_set import Set
from kernel.rtnl import Deadline
from process import files, record

_WAIT_S = 20.0
_AGAIN_S = 0.25  # between two questions
_MAX_BYTES = 4 << 20  # the longest name of a namespace has 63 bytes
_ANSWER_BYTES = 4096
_ABSENT, _BUSY, _OLDER = "it does not run", "it does not answer", "it has an older list of namespaces"
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
            system.current.wait_readable([], min(_AGAIN_S, deadline.remaining_s()))
            if not deadline.remaining_s():
                break
    if problem:
        awaited = f'podwire-agent has not applied the network policies of namespace "{pod.namespace}"'
        raise CniError(Code.TRY_AGAIN_LATER, f"{awaited} within {_WAIT_S:.0f} s: {problem}", _HINT)


def awaited_generation(known: Namespaces | None, namespace: str) -> int | None:
    """Returns the generation that the agent's answer must have at least, None if ADD does not wait for an answer."""
    if known is None:
        return 0
    return known.generation if known.is_strict or namespace in known.names else None


def counts(answered: int, awaited: int) -> bool:
    """Returns whether an answer of this generation counts for an ADD that awaits another one."""
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


def current_boot() -> str:
    """Returns the boot's ID as files name it."""
    return boot.get_boot_id().decode().strip()


def filter_keys(addresses: Iterable[Address]) -> list[tuple[Set, bytes]]:
    """Returns the elements that a pod's addresses may have in the agent's maps and sets: set and key."""
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
    """Asks the agent once, and waits for the answer; returns "" if it counts, else what is the matter."""
    with system.current.open_socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(system.current.state_path(table.GATE_SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):
            return _ABSENT
        except BlockingIOError:  # its queue is full
            return _BUSY
        answer = b""
        with suppress(ConnectionError):
            connection.send(request)
            while b"\n" not in answer and system.current.wait_readable([connection.fileno()], deadline.remaining_s()):
                chunk = connection.recv(_ANSWER_BYTES)
                if not chunk or len(answer) > _ANSWER_BYTES:
                    break
                answer += chunk
    return _judge(answer, generation)


def _judge(answer: bytes, generation: int) -> str:
    """Returns "" for an answer of this generation or a newer one, else what is the matter."""
    line, newline, _ = answer.partition(b"\n")
    try:
        answered = parse_fields(line).integer("generation") if newline else None
    except (ValueError, CniError):
        answered = None
    if answered is None:
        return _BUSY
    return "" if counts(answered, generation) else _OLDER
