"""macspoofchk: frames of an attachment that come with another MAC than its own are dropped, by nftables.

One rule: table, chains and comments are the reference's, so that either removes the other's; in a rule's userdata
stands also which network it belongs to, where `nft` does not look, since the reference's names do not tell and GC must.
"""

from __future__ import annotations

import errno
import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import partial

from cni.conf import VALID_NAME, Attachment
from cni.errors import CniError, Code
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_owner, nft_rule
from kernel.netfilter.nft import Chain, Hook, NftSocket, Rule, Table
from kernel.netfilter.nft_rule import DROP, RETURN
from kernel.netfilter.owned import REPAIR_HINT
from kernel.rtnl import Request
from process.values import dataclass

_TABLE = Table(nft.BRIDGE, "nat")
_PREROUTING = Chain(_TABLE, "PREROUTING", Hook("filter", 0, -300))  # NF_BR_PRE_ROUTING, dstnat
_COMMENT, _CHAIN = "macspoofchk-", "cni-br-iface-"
_CHAIN_NAME_MAX = 127  # what nft can read
_NETWORK = 0x70  # type of our item in a rule's userdata; nft's own are small numbers


@dataclass(frozen=True)
class _Names:
    """The names of one attachment's objects; `suffix` is what they have in common."""

    suffix: str

    @property
    def comment(self) -> str:
        return _COMMENT + self.suffix

    @property
    def chain(self) -> Chain:
        return Chain(_TABLE, _CHAIN + self.suffix)

    @property
    def mac_chain(self) -> Chain:
        return Chain(_TABLE, f"{_CHAIN}{self.suffix}-mac")


def protect(network: str, container_id: str, ifname: str, host_ifname: str, mac: bytes) -> None:
    """Drops what comes from `host_ifname` with another source than `mac`; replaces what the attachment had before.

    Raises KernelError.
    """

    def attempt() -> None:
        names, rules = _current(socket, network, container_id, ifname)
        userdata = nft_rule.comment_userdata(names.comment, (_NETWORK, _hash(network)))
        made = nft.get_chains(socket, _PREROUTING, names.chain, names.mac_chain)
        requests = [nft.table_request(_TABLE), nft.chain_request(_PREROUTING)] if made[0] != _PREROUTING else []
        for own, found in zip((names.chain, names.mac_chain), made[1:], strict=True):
            requests.append(nft.flush_chain_request(own) if found else nft.chain_request(own))
        requests += [nft.delete_rule_request(_PREROUTING, rule) for rule in rules]
        requests += [
            nft.rule_request(own, expressions, userdata) for own, expressions in _wanted(names, host_ifname, mac)
        ]
        nft.change(socket, *requests)

    with nft.open_socket() as socket:
        nft.retry(attempt)


def unprotect(socket: NftSocket, network: str, container_id: str, ifname: str) -> None:
    """Takes away what `protect` or the reference made for an attachment; absent is success. Raises KernelError."""
    _take_away(socket, partial(_current, socket, network, container_id, ifname))


def check(network: str, container_id: str, ifname: str, host_ifname: str, mac: bytes) -> None:
    """Checks that the attachment is protected; raises CniError(999) for what is missing, KernelError."""
    with nft.open_socket() as socket:
        names, _ = _current(socket, network, container_id, ifname)
        if nft.get_chains(socket, _PREROUTING) != [_PREROUTING]:
            raise _missing(f"chain {_PREROUTING} is missing, or not called for what enters bridges", host_ifname)
        present = {
            own: iter(nft.list_rules(socket, own, names.comment)) for own in (_PREROUTING, names.chain, names.mac_chain)
        }
        for own, expressions in _wanted(names, host_ifname, mac):
            if not any(nft_rule.is_same_rule(expressions, rule.expressions) for rule in present[own]):
                raise _missing(f"a rule is missing in chain {own}", host_ifname)


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Takes away what `protect` made for the network's attachments that are not `valid`.

    Rules that the reference made name no network; they stay, and are counted on stderr. Raises KernelError.
    """
    kept = {names.comment for item in valid for names in _both_names(network, item.container_id, item.ifname)}
    unknown = 0
    for rule in nft.list_rules(socket, _PREROUTING, _COMMENT):
        if rule.comment in kept or not rule.comment.startswith(_COMMENT):
            continue
        if _network(rule) == _hash(network):
            _take_away(socket, partial(_present, socket, _Names(rule.comment.removeprefix(_COMMENT))))
        elif not _network(rule):
            unknown += 1
    nft_owner.report_unowned("bridge", unknown, f"chain {_PREROUTING}")


def problem() -> str:
    """Tells what the kernel lacks for this, "" when nothing; tries it and leaves nothing behind."""
    try:
        with nft.open_socket() as socket:
            nft.dry_run(socket, nft.table_request(_TABLE), nft.chain_request(_PREROUTING))
    except KernelError as error:
        if error.errno == errno.EEXIST:
            return f"somebody has made it otherwise: nft list table bridge {_TABLE.name} ({error})"
        return f"this kernel has no nftables for bridges: {error}"
    return ""


def _wanted(names: _Names, host_ifname: str, mac: bytes) -> tuple[tuple[Chain, bytes], ...]:
    """Returns the rules of an attachment, each with its chain, in order."""
    return (
        (_PREROUTING, nft_rule.from_interface(host_ifname) + nft_rule.jump(names.chain.name)),
        (names.chain, nft_rule.jump(names.mac_chain.name)),
        (names.mac_chain, nft_rule.ether_source(mac) + RETURN),
        (names.mac_chain, DROP),
    )


def _take_away(socket: NftSocket, current: Callable[[], tuple[_Names, list[Rule]]]) -> None:
    """Deletes an attachment's chains and, before them, what jumps there.

    Chains to which a rule of somebody else jumps cannot be deleted: they stay, empty, and that is told on stderr.
    """
    if not nft.delete_or_flush(partial(_delete, socket, current)):
        print(f"bridge: chain {current()[0].chain} stays, empty: a rule that is not ours jumps there", file=sys.stderr)


def _delete(
    socket: NftSocket, current: Callable[[], tuple[_Names, list[Rule]]], end: Callable[[Chain], Request]
) -> None:
    names, rules = current()
    chains = nft.get_chains(socket, names.chain, names.mac_chain)
    nft.change(
        socket,
        *(nft.delete_rule_request(_PREROUTING, rule) for rule in rules),
        *(nft.flush_chain_request(own) for own in chains if own),
        *(end(own) for own in chains if own),
    )


def _present(socket: NftSocket, names: _Names) -> tuple[_Names, list[Rule]]:
    """Returns the names with the rules in PREROUTING that have their comment."""
    return names, [rule for rule in nft.list_rules(socket, _PREROUTING, names.comment) if rule.comment == names.comment]


def _current(socket: NftSocket, network: str, container_id: str, ifname: str) -> tuple[_Names, list[Rule]]:
    """Returns the names that an attachment has, or may take, with their rules in PREROUTING.

    They are the reference's; since those name no network, another one may have them already.
    """
    common, own = _both_names(network, container_id, ifname)
    rules = nft.list_rules(socket, _PREROUTING, common.comment)  # with which the other comment begins
    taken = any(rule.comment == common.comment and _network(rule) not in (b"", _hash(network)) for rule in rules)
    names = own if taken or any(rule.comment == own.comment for rule in rules) else common
    return names, [rule for rule in rules if rule.comment == names.comment]


def _both_names(network: str, container_id: str, ifname: str) -> tuple[_Names, _Names]:
    """Returns the reference's names, and those for when another network has an attachment with these."""
    common = _names(container_id, ifname)
    return common, _Names(f"{common.suffix}-{_hash(network)[:8].decode()}")


def _names(container_id: str, ifname: str) -> _Names:
    """Returns the reference's names; a hash takes the place of what makes them too long for nft, or no names to it."""
    if not VALID_NAME.fullmatch(ifname):
        ifname = _hash(ifname).decode()
    names = _Names(f"{container_id}-{ifname}")
    if len(names.mac_chain.name.encode()) > _CHAIN_NAME_MAX:
        names = _Names(f"{_hash(container_id).decode()}-{ifname}")
    return names


def _hash(text: str) -> bytes:
    return hashlib.sha512(text.encode()).hexdigest()[:32].encode()


def _network(rule: Rule) -> bytes:
    return nft_rule.parse_userdata(rule.userdata).get(_NETWORK, b"")


def _missing(what: str, host_ifname: str) -> CniError:
    details = f'frames from "{host_ifname}" are not checked for their source; {REPAIR_HINT}'
    return CniError(Code.INTERNAL, what, details)
