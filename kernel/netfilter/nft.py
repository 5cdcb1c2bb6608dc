"""nftables without the `nft` tool: tables, chains and rules over netlink, all changes of a verb in one transaction.

Sets are in kernel.netfilter.nft_set.

In this module *_request functions build a Request and do no I/O; `change` sends requests as one transaction.

Cost on Linux 6.18: a transaction takes well under a millisecond, also with deletions. After a deletion the kernel frees
memory, and a process that closes a netfilter socket meanwhile waits for that (RCU, 10 to 15 ms). So ADD only creates
missing objects, and a child process closes a socket that was used for deletions.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from cni.errors import run_all
from kernel import system
from kernel.codec_netfilter import BatchMessage, ChainMessage, GenerationMessage, RuleMessage, TableMessage
from kernel.errors import KernelError
from kernel.netfilter.nft_expression import compatibility
from kernel.netfilter.nft_rule import comment_userdata, parse_comment, parse_destination
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes
from process import record
from process.values import dataclass, field

INET, IPV4, BRIDGE, IPV6 = 1, 2, 7, 10  # families: NFPROTO_* (linux/netfilter.h)
NFPROTO = {4: IPV4, 6: IPV6}  # by IP version; also the families of iptables-nft's tables
# linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
_NETLINK_NETFILTER = 12  # linux/netlink.h; Python has no name for it
_SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEWTABLE, _NEWCHAIN, _GETCHAIN, _DELCHAIN, _NEWRULE, _GETRULE, _DELRULE = (
    _SUBSYSTEM << 8 | number for number in (0, 3, 4, 5, 6, 7, 8)
)
_LEAVES_NO_GARBAGE = (_NEWTABLE, _NEWCHAIN, _NEWRULE, _SUBSYSTEM << 8 | 9, _SUBSYSTEM << 8 | 12)  # NEWSET, NEWSETELEM
_GETGEN = _SUBSYSTEM << 8 | 16
_NLM_F_NONREC, _NLM_F_APPEND = 0x100, 0x800
_FREED_AFTER_US = 50_000  # three times the duration on an idle machine; too short a value only costs time
_TRIES = 5  # a try fails if another process deletes a rule between read and change
_GENERATION_TRIES = 50  # a try fails if the namespace's ruleset changes between read and change, within 1 ms
ABSENT_ERRNOS = (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP)  # the latter two from a kernel without nf_tables

Returned = TypeVar("Returned")
_Details = Callable[[], str] | None
_BodyFilter = Callable[[bytes], object] | None


@dataclass(frozen=True)
class Table:
    """A table: `family` is INET or BRIDGE; the comment is set only when the table is created."""

    family: int
    name: str
    comment: str = ""


@dataclass(frozen=True)
class Hook:
    """The hook of a base chain: `kind` "nat" or "filter", `number` NF_INET_* or NF_BR_*, `priority` as nft's."""

    kind: str
    number: int
    priority: int


@dataclass(frozen=True)
class Chain:
    """A chain of a table; with a hook it is a base chain, created with policy accept.

    Set by `get_chains` only: `uses` counts the chain's rules plus the jumps to it; `drops` is True for policy drop.
    """

    table: Table
    name: str
    hook: Hook | None = None
    comment: str = ""
    uses: int = field(default=0, compare=False)
    drops: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.table.name} {self.name}"


@dataclass(frozen=True)
class NftRule:
    """An existing rule: its handle, unique in the table, and its expressions and userdata as bytes."""

    handle: int
    expressions: bytes
    userdata: bytes

    @property
    def comment(self) -> str:
        """The comment that `nft list` shows."""
        return parse_comment(self.userdata)

    def describe(self) -> str:
        """Returns the rule's port and comment as text, for log entries."""
        protocol, port, *_ = parse_destination(self.expressions)
        return " ".join([f"for {protocol} port {port}"] * bool(port) + [f'"{self.comment}"'] * bool(self.comment))


class UnavailableError(KernelError):
    """The kernel has no netfilter, so there are no rules to list or delete."""


def open_socket() -> NftSocket:
    """Opens a netfilter socket in the current namespace; raises UnavailableError, KernelError."""
    try:
        return NftSocket()
    except KernelError as error:
        if error.errno not in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            raise
        hint = "the kernel needs CONFIG_NETFILTER_NETLINK"
        raise UnavailableError("open a netfilter socket", error.errno, hint) from error


def run_steps(steps: Iterable[Callable[[NftSocket], object]]) -> None:
    """Runs all steps with one socket, also after a failure; raises all failures as one CniError.

    A second socket would wait until the kernel has freed the first one's objects. Without netfilter no step runs.
    """
    try:
        socket = open_socket()
    except UnavailableError:
        return
    with socket, record.timed_step("rules by netlink"):
        run_all(*(partial(step, socket) for step in steps))


class NftSocket(Socket):
    """A netfilter socket; `garbage` is True when the kernel has memory to free after a deletion."""

    refuses_all = True

    def __init__(self) -> None:
        super().__init__(_NETLINK_NETFILTER)
        self.garbage = False

    def close(self) -> None:
        """Closes the socket; after a deletion a child process closes it later, if one can be started.

        The child waits until the kernel has freed its memory: closing earlier would block all changes of nftables in
        this namespace until then.
        """
        garbage, self.garbage = self.garbage, False
        if not garbage:
            super().close()
            return
        try:
            readable, writable = os.pipe()
        except OSError:
            super().close()
            return
        try:
            with suppress(OSError):
                system.current.close_in_background(self.fileno(), readable, _FREED_AFTER_US)
        finally:
            os.close(readable)
            super().close()
            os.close(writable)


def change(socket: NftSocket, *requests: Request, generation: int = 0, recorded: bool = True) -> None:
    """Sends requests as one transaction; if the kernel refuses one, nothing changes. Raises KernelError for that one.

    With a `generation` (from `retry_with_generation`) it also changes nothing if the ruleset has changed since
    (ERESTART). The changes are logged, unless `recorded` is False: then the caller does so.
    """
    if not record.is_dry_run():
        send(socket, requests, generation=generation)
    if recorded and record.is_recording():
        record.note_change(*(request.describe() for request in requests))


def retry(attempt: Callable[[], Returned]) -> Returned:
    """Calls `attempt`, which reads and then changes, again while objects disappear in between (ENOENT, EBUSY).

    Returns the result of `attempt`; raises KernelError.
    """
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except KernelError as error:
            if error.errno not in (errno.ENOENT, errno.EBUSY):
                raise
    return attempt()


def retry_with_generation(socket: NftSocket, attempt: Callable[[int], Returned]) -> Returned:
    """Calls `attempt` with the ruleset's generation, for `change`, again if the ruleset changes meanwhile (ERESTART).

    After too many tries it is called with 0, without that check. Returns the result of `attempt`; raises KernelError.
    """
    request = Request("get the generation of nftables", GenerationMessage, _GETGEN, 0, {}, [], ignore=ABSENT_ERRNOS)
    for _ in range(_GENERATION_TRIES):
        (answers,) = socket.get(request)
        try:
            return attempt(answers.get_attr("NFTA_GEN_ID") or 0 if answers else 0)
        except KernelError as error:
            if error.errno != errno.ERESTART:
                raise
    return retry(lambda: attempt(0))


def delete_or_flush(delete: Callable[[Callable[[Chain], Request]], None]) -> bool:
    """Calls `delete` with the request that deletes a chain, or with the one that flushes it if a rule jumps there.

    Returns False if the chain was only flushed. As with `retry`, `delete` reads and then changes, perhaps more than
    once. Raises KernelError.
    """
    try:
        retry(partial(delete, delete_chain_request))
    except KernelError as error:
        if error.errno != errno.EBUSY:
            raise
        retry(partial(delete, flush_chain_request))
        return False
    return True


def table_request(table: Table) -> Request:
    """Builds the request that creates a table; an existing one is left expected."""
    attributes: Attributes = [("NFTA_TABLE_NAME", table.name)]
    if table.comment:
        attributes.append(("NFTA_TABLE_USERDATA", comment_userdata(table.comment)))
    return _request(f"add table {table.name}", TableMessage, _NEWTABLE, table, attributes, NLM_F_CREATE)


def chain_request(chain: Chain, *, new: bool = False) -> Request:
    """Builds the request that creates a chain; an existing one is left expected, or with `new` refused (EEXIST).

    An existing chain with another hook is always refused (EEXIST).
    """
    attributes = _named(chain)
    if chain.hook:
        hook: Attributes = [("NFTA_HOOK_HOOKNUM", chain.hook.number), ("NFTA_HOOK_PRIORITY", chain.hook.priority)]
        attributes.append(("NFTA_CHAIN_TYPE", chain.hook.kind))
        attributes.append(("NFTA_CHAIN_HOOK", {"attrs": hook}))
    if chain.comment:
        attributes.append(("NFTA_CHAIN_USERDATA", comment_userdata(chain.comment)))
    flags = NLM_F_CREATE | (NLM_F_EXCL if new else 0)
    return _request(f"add chain {chain}", ChainMessage, _NEWCHAIN, chain.table, attributes, flags)


def delete_chain_request(chain: Chain) -> Request:
    """Builds the request that deletes a chain with its rules; refused if in use (EBUSY) or absent (ENOENT)."""
    return _request(f"delete chain {chain}", ChainMessage, _DELCHAIN, chain.table, _named(chain))


def delete_empty_chain_request(chain: Chain) -> Request:
    """Builds the request that deletes a chain; refused if it has a rule (EBUSY), perhaps another process's."""
    return _request(f"delete chain {chain}", ChainMessage, _DELCHAIN, chain.table, _named(chain), _NLM_F_NONREC)


def rule_request(
    chain: Chain, expressions: bytes, userdata: bytes = b"", before: int = 0, *, first: bool = False, protocol: int = 0
) -> Request:
    """Builds the request that appends a rule, or inserts it before the rule with the handle `before` (absent: ENOENT).

    `expressions` and `userdata` come from kernel.netfilter.nft_rule. Rules inserted before the same rule keep their
    order. `first` inserts at the chain's start. The kernel checks iptables matches against `protocol` (IPPROTO_*).
    """
    attributes = [*_of(chain), ("NFTA_RULE_EXPRESSIONS", expressions)]
    if userdata:
        attributes.append(("NFTA_RULE_USERDATA", userdata))
    if before:
        attributes.append(("NFTA_RULE_POSITION", before))
    if protocol:
        attributes.append(("NFTA_RULE_COMPAT", compatibility(protocol)))
    flags = NLM_F_CREATE if before or first else NLM_F_CREATE | _NLM_F_APPEND
    description = f"add a rule to chain {chain}"
    return _request(
        description, RuleMessage, _NEWRULE, chain.table, attributes, flags, NftRule(0, expressions, userdata).describe
    )


def delete_rule_request(chain: Chain, which: NftRule | int) -> Request:
    """Builds the request that deletes a rule, as NftRule or as handle; refused if absent (ENOENT)."""
    handle, details = (which, None) if isinstance(which, int) else (which.handle, which.describe)
    attributes = [*_of(chain), ("NFTA_RULE_HANDLE", handle)]
    return _request(
        f"delete rule {handle} of chain {chain}", RuleMessage, _DELRULE, chain.table, attributes, 0, details
    )


def flush_chain_request(chain: Chain) -> Request:
    """Builds the request that deletes all rules of a chain; refused if the chain is absent (ENOENT)."""
    return _request(f"flush chain {chain}", RuleMessage, _DELRULE, chain.table, _of(chain))


def list_rules(socket: NftSocket, chain: Chain, body_filter: str | Callable[[bytes], object] = "") -> list[NftRule]:
    """Lists the rules of a chain in order, none if the chain does not exist; raises KernelError.

    `body_filter` is a text that the message must contain, or a filter on its bytes; other rules are not decoded,
    as there may be hundreds.
    """
    accepts = _contains(body_filter.encode()) if isinstance(body_filter, str) else body_filter
    request = _read_request(f"list chain {chain}", RuleMessage, _GETRULE, chain.table, _of(chain), NLM_F_DUMP, accepts)
    return [
        NftRule(
            message.need_attr("NFTA_RULE_HANDLE"),
            message.get_attr("NFTA_RULE_EXPRESSIONS") or b"",
            message.get_attr("NFTA_RULE_USERDATA") or b"",
        )
        for message in socket.dump(request, merge_key=lambda rule: rule.need_attr("NFTA_RULE_HANDLE"))
        # Kernels before 4.12 send the rules of all chains.
        if (message.get_attr("NFTA_RULE_TABLE"), message.get_attr("NFTA_RULE_CHAIN")) == (chain.table.name, chain.name)
    ]


def _contains(text: bytes) -> Callable[[bytes], bool]:
    return lambda message: text in message


def get_chains(socket: NftSocket, *chains: Chain) -> list[Chain | None]:
    """Reads chains by table and name, each with its actual hook, None for an absent one; raises KernelError."""
    answers = socket.get(*map(_look_up, chains))
    return [message and _parse_chain(chain, message) for chain, message in zip(chains, answers, strict=True)]


def _look_up(chain: Chain) -> Request:
    return _read_request(f"look up chain {chain}", ChainMessage, _GETCHAIN, chain.table, _named(chain))


def _parse_chain(chain: Chain, message: ChainMessage) -> Chain:
    """Returns the chain in a message."""
    drops = message.get_attr("NFTA_CHAIN_POLICY") == 0  # NF_DROP
    return Chain(chain.table, chain.name, _hook(message), chain.comment, message.get_attr("NFTA_CHAIN_USE") or 0, drops)


def _hook(message: ChainMessage) -> Hook | None:
    hook = message.get_attr("NFTA_CHAIN_HOOK")
    if hook is None:
        return None
    number, priority = hook.need_attr("NFTA_HOOK_HOOKNUM"), hook.need_attr("NFTA_HOOK_PRIORITY")
    return Hook(message.need_attr("NFTA_CHAIN_TYPE"), number, priority)


def _named(chain: Chain) -> Attributes:
    return [("NFTA_CHAIN_TABLE", chain.table.name), ("NFTA_CHAIN_NAME", chain.name)]


def _of(chain: Chain) -> Attributes:
    return [("NFTA_RULE_TABLE", chain.table.name), ("NFTA_RULE_CHAIN", chain.name)]


def _request(
    description: str,
    kind: type[object],
    number: int,
    table: Table,
    content: Attributes,
    flags: int = 0,
    details: _Details = None,
) -> Request:
    return Request(description, kind, number, flags, {"family": table.family}, content, silent=True, details=details)


def _read_request(
    description: str,
    kind: type[object],
    number: int,
    table: Table,
    content: Attributes,
    flags: int = 0,
    body_filter: _BodyFilter = None,
) -> Request:
    return Request(
        description, kind, number, flags, {"family": table.family}, content, ABSENT_ERRNOS, body_filter=body_filter
    )


def send(socket: NftSocket, requests: Sequence[Request], *, commit: bool = True, generation: int = 0) -> None:
    """Sends a transaction, which `change` and `nft_dry_run.dry_run` prepare; raises KernelError.

    Only its last change requests an answer: one answer per change could overflow the buffer.
    """
    if not requests:
        return
    values: dict[str, int] = {"subsystem": _SUBSYSTEM}
    end = Request("change nftables", BatchMessage, _BATCH_END, 0, values, silent=True)
    expected: Attributes = [("NFNL_BATCH_GENID", generation)] if generation else []
    begin = end._replace(type=_BATCH_BEGIN, attributes=expected)
    *others, last = requests
    socket.garbage |= any(request.type not in _LEAVES_NO_GARBAGE for request in requests)
    last = last._replace(flags=last.flags | NLM_F_ACK, silent=False)
    # The kernel validates a batch without an end, and aborts it.
    socket.send(begin, *others, last, *([end] if commit else []))
