"""nftables' own trace of single connections: which rules evaluate their packets, and with which verdict.

A trace needs rules that set `meta nftrace`. They are in tables of this module, limited to the traced packets. The
kernel removes the tables when the socket is closed, however the process ends (NFT_TABLE_F_OWNER, Linux 5.12). An older
kernel keeps the tables of a killed process; `delete_stale` removes those of processes that do not exist any more.
"""

from __future__ import annotations

import errno
import os
import socket as stdlib_socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from _podwire import messages

from cni.address import Address
from kernel.codec_netfilter import TableMessage
from kernel.codec_tracing import TraceMessage
from kernel.errors import KernelError
from kernel.netfilter import nfqueue, nft, nft_rule
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.nft import BRIDGE, INET, Chain, Hook, NftSocket, Table
from kernel.netfilter.nft_expression import EQ
from kernel.rtnl import NLM_F_CREATE, NLM_F_DUMP, Request, Socket, wait_readable
from kernel.wire import decode

DROP, ACCEPT, CONTINUE, JUMP, GOTO, RETURN, QUEUE = 0, 1, -1, -3, -4, -5, 3  # NF_*, NFT_* (nf_tables.h)
POLICY, RETURNED, RULE = 1, 2, 3  # NFT_TRACETYPE_*
_TRACE = 10 << 8 | 17  # NFT_MSG_TRACE
_NEWTABLE, _GETTABLE, _DELTABLE = (10 << 8 | number for number in (0, 1, 2))
_GROUP = 9  # NFNLGRP_NFTRACE (linux/netfilter/nfnetlink.h)
_NETFILTER = 12
_OWNER = 2  # NFT_TABLE_F_OWNER
_META_NFTRACE, _META_PROTOCOL = 12, 1
_PREROUTING, _OUTPUT = 0, 3  # NF_INET_*, and the same numbers as NF_BR_PRE_ROUTING, NF_BR_LOCAL_OUT
_FIRST = -500  # before connection tracking's defragmentation (-400) and the tables raw (-300)
_PREFIX = "podwire_trace_"
_BUFFER_BYTES, _RECEIVE_BYTES = 1 << 20, 1 << 17
_ETH_P_ARP = 0x0806
_ARP_SENDER = 14  # offset of the sender's IPv4 address in an ARP packet
_DISCARDS = "the end of a trace would discard the packets that wait there"
_ECHO_ID = 4  # offset of an echo's ID in its ICMP header


class Tuple(NamedTuple):
    """The packets to trace: protocol number, addresses, ports; of an ICMP echo `source_port` is its ID."""

    protocol: int
    source: Address
    source_port: int
    destination: Address
    port: int

    def reversed(self) -> Tuple:
        """Returns the tuple of the answers; an echo keeps its ID."""
        if self.protocol in (1, 58):
            return Tuple(self.protocol, self.destination, self.source_port, self.source, self.port)
        return Tuple(self.protocol, self.destination, self.port, self.source, self.source_port)


class TraceEvent(NamedTuple):
    """An event of the trace: a chain's rule or policy evaluated packet `packet_id`, with a verdict.

    `kind` is POLICY, RETURNED or RULE; `verdict` is DROP, ACCEPT and so on; `target` is the chain of a jump; `mark` is
    the packet's mark.
    """

    packet_id: int
    family: int
    table: str
    chain: str
    kind: int
    handle: int
    verdict: int
    target: str = ""
    mark: int = 0

    @property
    def drops(self) -> bool:
        """Whether the packet ended here (a rule that rejects also drops)."""
        return self.verdict == DROP

    @property
    def is_of_tracer(self) -> bool:
        """Whether the event is about the rules that start the trace."""
        return self.table.startswith(_PREFIX)


class Tracer:
    """The trace of some packets in the namespace that is current when it is created. A context manager.

    Raises nft.UnavailableError, KernelError.
    """

    def __init__(self) -> None:
        self._rules = nft.open_socket()
        try:
            self._events = Socket(_NETFILTER)
            self._events.enlarge_receive_buffer(_BUFFER_BYTES)
            self._events.subscribe(_GROUP)
        except BaseException:
            self._rules.close()
            raise
        self._name = f"{_PREFIX}{os.getpid()}"
        self._tables: list[Table] = []
        self._owned = True

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the tables and closes the sockets."""
        with suppress(KernelError):
            self.stop()
        # Not in the background: a child process would keep all sockets of this process open for some time.
        self._rules.garbage = False
        self._events.close()
        self._rules.close()

    def start(self, tuples: Iterable[Tuple]) -> None:
        """Traces the packets of `tuples` from now on, also frames that are only bridged; raises KernelError.

        It refuses with EBUSY where a program reads packets from queues (NFQUEUE): when the tables are removed, the
        kernel discards all packets that wait in queues of the namespace.
        """
        self.stop()
        if queues := _list_queues():
            raise KernelError(f"trace packets while a program reads queue {queues} (NFQUEUE)", errno.EBUSY, _DISCARDS)
        desired = list(tuples)
        for family in (INET, BRIDGE):
            table = Table(family, self._name)
            try:
                self._add(table, desired)
            except KernelError as error:
                if family != BRIDGE or error.errno not in nft.ABSENT_ERRNOS:
                    raise

    def _add(self, table: Table, tuples: Sequence[Tuple]) -> None:
        requests = _chains(table, tuples)
        try:
            nft.change(self._rules, _table_request(table, owned=self._owned), *requests, recorded=False)
        except KernelError as error:
            if not self._owned or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._owned = False
            nft.change(self._rules, _table_request(table, owned=False), *requests, recorded=False)
        self._tables.append(table)

    def stop(self) -> None:
        """Removes the tables; raises KernelError."""
        while self._tables:
            table = self._tables.pop()
            with suppress(KernelError):
                nft.change(self._rules, _delete_request(table), recorded=False)

    def fileno(self) -> int:
        """Returns the descriptor that is readable when events have arrived."""
        return self._events.fileno()

    def read(self) -> list[TraceEvent]:
        """Returns the events that have arrived, without those of the trace's own rules; raises KernelError."""
        events: list[TraceEvent] = []
        with stdlib_socket.socket(fileno=os.dup(self.fileno())) as events_socket:
            while wait_readable([self.fileno()], 0):
                try:
                    data = events_socket.recv(_RECEIVE_BYTES)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise KernelError("read the trace of nftables", error.errno or 0) from error
                    continue
                events += _parse(data)
        return events


def delete_stale(socket: NftSocket) -> int:
    """Deletes the tables of traces whose process does not exist; returns their number. Raises KernelError.

    Where a program reads packets from queues (NFQUEUE), the tables stay: they have no effect on packets.
    """
    if _list_queues():
        return 0
    request = Request("list the tables", TableMessage, _GETTABLE, NLM_F_DUMP, {"family": 0}, ignore=nft.ABSENT_ERRNOS)
    number = 0
    for message in socket.dump(request):
        name = message.get_attr("NFTA_TABLE_NAME") or ""
        pid = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            with suppress(KernelError):
                nft.change(socket, _delete_request(Table(message["family"], name)), recorded=False)
                number += 1
    return number


def _list_queues() -> str:
    """Returns the queues of the namespace that a program reads, "" for none; raises KernelError."""
    try:
        return ", ".join(map(str, sorted(nfqueue.list_queues())))
    except OSError as error:
        raise KernelError("read the queues of netfilter (NFQUEUE)", error.errno or errno.EIO) from error


def _parse(data: bytes) -> Iterator[TraceEvent]:
    for number, _, _, body in messages(data):
        if number != _TRACE:
            continue
        message = decode(TraceMessage, body)
        get = message.get_attr
        verdict = get("NFTA_TRACE_VERDICT")
        code = verdict.get_attr("NFTA_VERDICT_CODE") if verdict else get("NFTA_TRACE_POLICY")
        target = (verdict and verdict.get_attr("NFTA_VERDICT_CHAIN")) or ""
        event = TraceEvent(
            get("NFTA_TRACE_ID") or 0,
            message["family"],
            get("NFTA_TRACE_TABLE") or "",
            get("NFTA_TRACE_CHAIN") or "",
            get("NFTA_TRACE_TYPE") or 0,
            get("NFTA_TRACE_RULE_HANDLE") or 0,
            CONTINUE if code is None else code,
            target,
            get("NFTA_TRACE_MARK") or 0,
        )
        if not event.is_of_tracer:
            yield event


def _table_request(table: Table, *, owned: bool) -> Request:
    attributes = [("NFTA_TABLE_NAME", table.name), ("NFTA_TABLE_FLAGS", _OWNER if owned else 0)]
    return Request(
        f"add table {table.name}", TableMessage, _NEWTABLE, NLM_F_CREATE, {"family": table.family}, attributes,
        silent=True,
    )  # fmt: skip


def _delete_request(table: Table) -> Request:
    attributes = [("NFTA_TABLE_NAME", table.name)]
    description = f"delete table {table.name}"
    return Request(description, TableMessage, _DELTABLE, 0, {"family": table.family}, attributes, silent=True)


def _chains(table: Table, tuples: Sequence[Tuple]) -> list[Request]:
    """Returns the requests for the chains, which packets pass first, and for a rule for each tuple."""
    requests = []
    hooks = (_PREROUTING,) if table.family == BRIDGE else (_PREROUTING, _OUTPUT)
    for number in hooks:
        chain = Chain(table, f"hook{number}", Hook("filter", number, _FIRST))
        requests.append(nft.chain_request(chain))
        for item in tuples:
            requests.append(nft.rule_request(chain, _match(item) + _TRACE_ON))
            if table.family == BRIDGE and item.source.version == 4:
                requests.append(nft.rule_request(chain, _arp_match(item.source) + _TRACE_ON))
    return requests


def _match(item: Tuple) -> bytes:
    version = item.source.version
    ethertype = 0x0800 if version == 4 else 0x86DD
    packet = expression.meta(_META_PROTOCOL) + expression.compare(EQ, ethertype.to_bytes(2, "big"))
    packet += expression.meta(expression.META_L4PROTO) + expression.compare(EQ, bytes([item.protocol]))
    packet += nft_rule.source(item.source) + nft_rule.destination(item.destination)
    if item.protocol in (1, 58):
        return packet + _transport_match(_ECHO_ID, item.source_port)
    return packet + _transport_match(0, item.source_port) + _transport_match(2, item.port)


def _transport_match(offset: int, value: int) -> bytes:
    load = expression.payload(expression.TRANSPORT_HEADER, offset, 2)
    return load + expression.compare(EQ, value.to_bytes(2, "big"))


def _arp_match(sender: Address) -> bytes:
    packet = expression.meta(_META_PROTOCOL) + expression.compare(EQ, _ETH_P_ARP.to_bytes(2, "big"))
    load = expression.payload(expression.NETWORK_HEADER, _ARP_SENDER, 4)
    return packet + load + expression.compare(EQ, sender.packed)


_TRACE_ON = expression.immediate_data(bytes([1])) + expression.meta_set(_META_NFTRACE)
