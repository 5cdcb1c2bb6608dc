"""The queues of interfaces and the classes of HTB, whichever program created them: which packets each one passes.

This module only reads. Numbers that a kind of queue does not have, or that are not read here, are None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from sys import byteorder
from typing import NamedTuple

from kernel.codec_traffic import QdiscMessage
from kernel.htb import QUEUE_HANDLE, RTM_GETTCLASS
from kernel.netfilter.nft_expression import parse_content
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.traffic import HTB, list_qdiscs_request, qdisc_from_answer
from kernel.wire import DecodedMessage, attribute_specs

_SPECS = attribute_specs(QdiscMessage, TCA_KIND="", TCA_OPTIONS=b"", TCA_STATS=b"")
_FIFOS = ("bfifo", "pfifo", "pfifo_head_drop")  # struct tc_fifo_qopt is one number, of bytes in the first
# The attributes of TCA_OPTIONS that begin with the rate in bytes/s: TCA_FQ_FLOW_MAX_RATE, TCA_CAKE_BASE_RATE64.
_RATES = {"fq": 7, "cake": 2}
_RED_PARMS = 1  # TCA_RED_PARMS begins with the bytes that the queue may hold
_HTB_PARMS, _HTB_INIT, _HTB_CEIL64 = 1, 2, 7  # TCA_HTB_*
_DEFAULT_AT = 8  # of defcls in struct tc_htb_glob
_CLASS = struct.Struct("=20xI12xI")  # struct tc_htb_opt: bytes/s of the ceil, level (0: the class has no subclasses)
_STATISTICS = struct.Struct("=12xII8xI")  # struct tc_stats: drops, overlimits, qlen
_MAJOR, _PRIO, _PRIO_DEFAULT = 0xFFFF0000, "prio", 2  # the band of packets without a priority, if nothing changes it


class Queue(NamedTuple):
    """A queue: `rate` is in bytes/s, `largest` the bytes of the largest packet that it accepts (0: it accepts none).

    `default` is the class that HTB gives to packets that no filter classifies, 0 if it has none; None for podwire's
    HTB, and for other kinds. `is_of_class`: it gets only packets that HTB or prio classify, as its class is not the
    default.
    """

    kind: str
    rate: int | None = None
    largest: int | None = None
    default: int | None = None
    is_of_class: bool = False


class HtbClass(NamedTuple):
    """A class of HTB that has held packets back; `rate` is the most that it passes, in bytes/s."""

    classid: int
    rate: int

    @property
    def name(self) -> str:
        """The name in tc's notation."""
        return f"{self.classid >> 16:x}:{self.classid & 0xFFFF:x}"


def list_queues(socket: Socket) -> dict[int, list[Queue]]:
    """Returns the queues of each interface, by ifindex; raises KernelError."""
    queues: dict[int, list[Queue]] = {}
    parents: dict[int, list[tuple[int, int]]] = {}
    for message in socket.dump(list_qdiscs_request()):
        queues.setdefault(message["index"], []).append(_parse_queue(message))
        parents.setdefault(message["index"], []).append((message["handle"], message["parent"]))
    return {index: _with_classes(queues[index], parents[index]) for index in queues}


def _with_classes(queues: list[Queue], numbers: list[tuple[int, int]]) -> list[Queue]:
    """Returns an interface's queues with `is_of_class`; `numbers` are the handle and the parent of each."""
    above = {handle: (queue, parent) for queue, (handle, parent) in zip(queues, numbers, strict=True)}
    above.pop(0, None)  # without a handle a queue has no classes
    above.pop(_MAJOR, None)  # the part of ROOT, and the handle of ingress

    def is_of_class(parent: int) -> bool:
        queue, next_parent = above.get(parent & _MAJOR, (None, 0))
        if queue is None:
            return False
        default = parent & _MAJOR | _PRIO_DEFAULT if queue.kind == _PRIO else queue.default
        return (default is not None and parent != default) or is_of_class(next_parent)

    return [queue._replace(is_of_class=is_of_class(parent)) for queue, (_, parent) in zip(queues, numbers, strict=True)]


def _parse_queue(message: DecodedMessage) -> Queue:
    qdisc = qdisc_from_answer(message)
    kind, options, _ = message.get_attributes(_SPECS)
    if qdisc is None or qdisc.is_shaper or qdisc.handle == QUEUE_HANDLE:
        return Queue(kind)
    if qdisc.bucket:
        return Queue(kind, qdisc.bucket.rate, min(qdisc.bucket.capacity, qdisc.bucket.limit))
    if kind in _FIFOS:
        limit = _number(options)
        return Queue(kind, largest=limit if kind == _FIFOS[0] or not limit else None)
    fields = parse_content(options) if kind in (HTB, "red", *_RATES) else {}
    if kind in _RATES:
        return Queue(kind, rate=_number(fields.get(_RATES[kind], b"")) or None)
    if kind == "red":
        return Queue(kind, largest=_number(fields.get(_RED_PARMS, b"")) or None)
    if kind == HTB:
        minor = _number(fields.get(_HTB_INIT, b"")[_DEFAULT_AT : _DEFAULT_AT + 4])
        return Queue(kind, default=message["handle"] | minor if minor else 0)
    return Queue(kind)


def list_holding_classes(socket: Socket, index: int) -> Iterator[HtbClass]:
    """Yields the innermost classes of an interface's HTB that have held packets back; raises KernelError."""
    request = Request("list the classes", QdiscMessage, RTM_GETTCLASS, NLM_F_DUMP, {"index": index})
    for message in socket.dump(request):
        kind, options, statistics = message.get_attributes(_SPECS)
        fields = parse_content(options) if kind == HTB else {}
        parms = fields.get(_HTB_PARMS, b"")
        if len(parms) < _CLASS.size or len(statistics) < _STATISTICS.size:
            continue
        ceil, level = _CLASS.unpack_from(parms)
        if not level and any(_STATISTICS.unpack_from(statistics)):
            yield HtbClass(message["handle"], _number(fields.get(_HTB_CEIL64, b"")) or ceil)


def _number(content: bytes) -> int:
    """Returns the number at the start of an attribute: 64 bits if it has no more, else 32; 0 for an empty one."""
    return int.from_bytes(content[: 8 if len(content) == 8 else 4], byteorder)
