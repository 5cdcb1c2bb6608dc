"""The queues of interfaces and their classes, of any program: the rate and the size of packets that each passes.

This module only reads. Numbers that a kind of queue does not have, or that are not read here, are None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from sys import byteorder
from typing import NamedTuple

from kernel.codec_traffic import QdiscMessage
from kernel.htb import RTM_GETTCLASS
from kernel.netfilter.nft_expression import parse_content
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.traffic import HTB, RTM_GETQDISC, qdisc_from_answer
from kernel.wire import attribute_specs

_SPECS = attribute_specs(QdiscMessage, TCA_KIND="", TCA_OPTIONS=b"", TCA_STATS=b"")
_FIFOS = ("bfifo", "pfifo", "pfifo_head_drop")  # struct tc_fifo_qopt is one number, of bytes in the first
# The attribute of TCA_OPTIONS that begins with the rate in bytes/s, or with the bytes that the queue may hold.
_RATES = {"fq": 7, "cake": 2}  # TCA_FQ_FLOW_MAX_RATE, TCA_CAKE_BASE_RATE64
_SIZES = {"red": 1}  # TCA_RED_PARMS
_HTB_PARMS, _HTB_INIT, _HTB_CEIL64 = 1, 2, 7  # TCA_HTB_*
_DEFAULT_AT = 8  # of defcls in struct tc_htb_glob
_CLASS = struct.Struct("=20xI12xI")  # struct tc_htb_opt: bytes/s of the ceil, level (0: a class without classes)
_STATISTICS = struct.Struct("=12xII8xI")  # struct tc_stats: drops, overlimits, qlen
_PODWIRES_QUEUE = 0x70780000  # the queue of kernel.htb's class, which passes everything


class Queue(NamedTuple):
    """A queue: `rate` is in bytes/s, `largest` the bytes of the largest packet that it accepts (0: it accepts none).

    `default` is the class of HTB's packets that no filter classifies, 0 without one; None for podwire's HTB, and for
    other kinds.
    """

    kind: str
    rate: int | None = None
    largest: int | None = None
    default: int | None = None


class Class(NamedTuple):
    """A class of HTB that has held packets back: its ID, and the most bytes/s that it passes."""

    classid: int
    rate: int

    @property
    def name(self) -> str:
        """The name in tc's notation."""
        return f"{self.classid >> 16:x}:{self.classid & 0xFFFF:x}"


def list_queues(socket: Socket) -> dict[int, list[Queue]]:
    """Returns the queues of each interface, by ifindex; raises KernelError."""
    queues: dict[int, list[Queue]] = {}
    for message in socket.dump(Request("list the qdiscs", QdiscMessage, RTM_GETQDISC, NLM_F_DUMP)):
        qdisc = qdisc_from_answer(message)
        kind, options, _ = message.get_attributes(_SPECS)
        queue = Queue(kind)
        if qdisc is None or qdisc.is_shaper or qdisc.handle == _PODWIRES_QUEUE:
            pass
        elif qdisc.bucket:
            queue = Queue(kind, qdisc.bucket.rate, min(qdisc.bucket.held, qdisc.bucket.limit))
        elif kind in _FIFOS:
            limit = _number(options)
            queue = Queue(kind, None, limit if kind == _FIFOS[0] or not limit else None)
        elif kind in (HTB, *_RATES, *_SIZES):
            fields = parse_content(options)
            rate, size = (_number(fields.get(kinds.get(kind, 0), b"")) for kinds in (_RATES, _SIZES))
            minor = _number(fields.get(_HTB_INIT, b"")[_DEFAULT_AT : _DEFAULT_AT + 4])
            default = message["handle"] | minor if minor else 0
            queue = Queue(kind, rate or None, size or None, default if kind == HTB else None)
        queues.setdefault(message["index"], []).append(queue)
    return queues


def list_holding_classes(socket: Socket, index: int) -> Iterator[Class]:
    """Yields the classes of an interface's HTB that hold packets back, or have done so; raises KernelError."""
    request = Request("list the classes", QdiscMessage, RTM_GETTCLASS, NLM_F_DUMP, {"index": index})
    for message in socket.dump(request):
        kind, options, statistics = message.get_attributes(_SPECS)
        fields = parse_content(options) if kind == HTB else {}
        parms = fields.get(_HTB_PARMS, b"")
        if len(parms) < _CLASS.size or len(statistics) < _STATISTICS.size:
            continue
        ceil, level = _CLASS.unpack_from(parms)
        if not level and any(_STATISTICS.unpack_from(statistics)):
            yield Class(message["handle"], _number(fields.get(_HTB_CEIL64, b"")) or ceil)


def _number(content: bytes) -> int:
    """Returns the number of up to 64 bits at the start of an attribute, 0 without one."""
    return int.from_bytes(content[: 8 if len(content) == 8 else 4], byteorder)
