"""macspoofchk: nftables rules that drop an attachment's frames unless their source is the attachment's MAC address.

Table, chains and comments have the names that the reference plugin uses, so that each plugin can remove the rules of
the other. These names do not contain the network's name, which GC needs: podwire also stores a hash of it in the
userdata of its rules, in an item that `nft` ignores.
"""

from __future__ import annotations

import errno
import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import partial

from cni.conf import VALID_NAME, Attachment
from cni.errors import CniError, internal
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_owner, nft_rule
from kernel.netfilter.nft import Chain, Hook, NftRule, NftSocket, Table
from kernel.netfilter.nft_dry_run import dry_run
from kernel.netfilter.nft_rule import DROP, RETURN
from kernel.netfilter.owned import REPAIR_HINT
from kernel.rtnl import Request
from process.values import dataclass

_TABLE = Table(nft.BRIDGE, "nat")
_PREROUTING = Chain(_TABLE, "PREROUTING", Hook("filter", 0, -300))  # NF_BR_PRE_ROUTING, dstnat
_COMMENT, _CHAIN = "macspoofchk-", "cni-br-iface-"
_CHAIN_NAME_MAX = 127  # the longest name that nft can read
_NETWORK = 0x70  # type of podwire's item in a rule's userdata; the types of nft are small numbers


@dataclass(frozen=True)
class _Names:
    """The names of one attachment's nftables objects, all with the same `suffix`."""

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


def add_rules(network: str, container_id: str, ifname: str, host_ifname: str, mac: bytes) -> None:
    """Adds rules that drop frames from `host_ifname` unless their source is `mac`; replaces the attachment's old rules.

    Raises KernelError.
    """

    def replace_rules() -> None:
        names, jumps = _read_names_and_jumps(socket, network, container_id, ifname)
        userdata = nft_rule.comment_userdata(names.comment, (_NETWORK, _hash(network)))
        prerouting, *chains = nft.get_chains(socket, _PREROUTING, names.chain, names.mac_chain)
        requests = [nft.table_request(_TABLE), nft.chain_request(_PREROUTING)] if prerouting != _PREROUTING else []
        for chain, existing in zip((names.chain, names.mac_chain), chains, strict=True):
            requests.append(nft.flush_chain_request(chain) if existing else nft.chain_request(chain))
        requests += [nft.delete_rule_request(_PREROUTING, rule) for rule in jumps]
        requests += [
            nft.rule_request(chain, expressions, userdata)
            for chain, expressions in _desired_rules(names, host_ifname, mac)
        ]
        nft.change(socket, *requests)

    with nft.open_socket() as socket:
        nft.retry(replace_rules)


def remove_rules(socket: NftSocket, network: str, container_id: str, ifname: str) -> None:
    """Deletes the attachment's rules and chains, even if the reference plugin created them; raises KernelError.

    Missing rules and chains are no error.
    """
    _remove(socket, partial(_read_names_and_jumps, socket, network, container_id, ifname))


def check(network: str, container_id: str, ifname: str, host_ifname: str, mac: bytes) -> None:
    """Checks that the attachment's rules exist; raises KernelError, and CniError(999) for a missing one."""
    with nft.open_socket() as socket:
        names, _ = _read_names_and_jumps(socket, network, container_id, ifname)
        if nft.get_chains(socket, _PREROUTING) != [_PREROUTING]:
            raise _missing(f"chain {_PREROUTING} is missing, or not attached to the prerouting hook", host_ifname)
        chains = _PREROUTING, names.chain, names.mac_chain
        existing = {chain: iter(nft.list_rules(socket, chain, names.comment)) for chain in chains}
        for chain, expressions in _desired_rules(names, host_ifname, mac):
            if not any(nft_rule.is_same_rule(expressions, rule.expressions) for rule in existing[chain]):
                raise _missing(f"a rule is missing in chain {chain}", host_ifname)


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of the network's attachments that are not in `valid`; raises KernelError.

    Rules of the reference plugin do not contain the network's name: they stay, and stderr reports how many there are.
    """
    valid_comments = {names.comment for item in valid for names in _both_names(network, item.container_id, item.ifname)}
    unknown = 0
    for rule in nft.list_rules(socket, _PREROUTING, _COMMENT):
        if rule.comment in valid_comments or not rule.comment.startswith(_COMMENT):
            continue
        if _network_hash(rule) == _hash(network):
            _remove(socket, partial(_read_jumps, socket, _Names(rule.comment.removeprefix(_COMMENT))))
        elif not _network_hash(rule):
            unknown += 1
    nft_owner.report_unowned("bridge", unknown, f"chain {_PREROUTING}")


def get_problem() -> str:
    """Returns why this kernel cannot check source addresses, "" if it can; validates a batch without committing it."""
    try:
        with nft.open_socket() as socket:
            dry_run(socket, nft.table_request(_TABLE), nft.chain_request(_PREROUTING))
    except KernelError as error:
        if error.errno == errno.EEXIST:
            return (
                f"chain {_PREROUTING} exists with other properties, see: nft list table bridge {_TABLE.name} ({error})"
            )
        return f"this kernel has no nftables for bridges: {error}"
    return ""


def _desired_rules(names: _Names, host_ifname: str, mac: bytes) -> tuple[tuple[Chain, bytes], ...]:
    """Returns (chain, expressions) of each rule that an attachment needs, in order."""
    return (
        (_PREROUTING, nft_rule.from_interface(host_ifname) + nft_rule.jump(names.chain.name)),
        (names.chain, nft_rule.jump(names.mac_chain.name)),
        (names.mac_chain, nft_rule.ether_source(mac) + RETURN),
        (names.mac_chain, DROP),
    )


def _remove(socket: NftSocket, read_names_and_jumps: Callable[[], tuple[_Names, list[NftRule]]]) -> None:
    """Deletes the rules that jump to an attachment's chains, then the chains.

    `read_names_and_jumps` returns the attachment's names and these rules. Each try calls it again, since other
    processes change the table. A chain to which a foreign rule jumps cannot be deleted: it is flushed, and stderr
    reports that.
    """
    if not nft.delete_or_flush(partial(_delete, socket, read_names_and_jumps)):
        print(
            f"bridge: chain {read_names_and_jumps()[0].chain} stays, empty: a rule of another program jumps there",
            file=sys.stderr,
        )


def _delete(
    socket: NftSocket,
    read_names_and_jumps: Callable[[], tuple[_Names, list[NftRule]]],
    removal_request: Callable[[Chain], Request],
) -> None:
    names, jumps = read_names_and_jumps()
    chains = nft.get_chains(socket, names.chain, names.mac_chain)
    nft.change(
        socket,
        *(nft.delete_rule_request(_PREROUTING, rule) for rule in jumps),
        *(nft.flush_chain_request(chain) for chain in chains if chain),
        *(removal_request(chain) for chain in chains if chain),
    )


def _read_jumps(socket: NftSocket, names: _Names) -> tuple[_Names, list[NftRule]]:
    """Returns `names`, and the rules in PREROUTING with their comment: they jump to the attachment's chains."""
    return names, [rule for rule in nft.list_rules(socket, _PREROUTING, names.comment) if rule.comment == names.comment]


def _read_names_and_jumps(
    socket: NftSocket, network: str, container_id: str, ifname: str
) -> tuple[_Names, list[NftRule]]:
    """Returns an attachment's names, and the rules in PREROUTING that jump to its chains.

    Normally the names are the reference plugin's. As they lack the network's name, an attachment of another network may
    already use them; then the names are those with the network's hash.
    """
    reference_names, hashed_names = _both_names(network, container_id, ifname)
    # The hashed comment begins with the reference plugin's comment, so this lists the rules with either.
    rules = nft.list_rules(socket, _PREROUTING, reference_names.comment)
    is_used = any(
        rule.comment == reference_names.comment and _network_hash(rule) not in (b"", _hash(network)) for rule in rules
    )
    is_hashed = is_used or any(rule.comment == hashed_names.comment for rule in rules)
    names = hashed_names if is_hashed else reference_names
    return names, [rule for rule in rules if rule.comment == names.comment]


def _both_names(network: str, container_id: str, ifname: str) -> tuple[_Names, _Names]:
    """Returns the reference plugin's names, and the names with the network's hash."""
    names = _reference_names(container_id, ifname)
    return names, _Names(f"{names.suffix}-{_hash(network)[:8].decode()}")


def _reference_names(container_id: str, ifname: str) -> _Names:
    """Returns the names that the reference plugin uses; hashes an ID or ifname that is too long or invalid for nft."""
    if not VALID_NAME.fullmatch(ifname):
        ifname = _hash(ifname).decode()
    names = _Names(f"{container_id}-{ifname}")
    if len(names.mac_chain.name.encode()) > _CHAIN_NAME_MAX:
        names = _Names(f"{_hash(container_id).decode()}-{ifname}")
    return names


def _hash(text: str) -> bytes:
    return hashlib.sha512(text.encode()).hexdigest()[:32].encode()


def _network_hash(rule: NftRule) -> bytes:
    """Returns the hash of the network's name in a rule, b"" in a rule of the reference plugin."""
    return nft_rule.parse_userdata(rule.userdata).get(_NETWORK, b"")


def _missing(msg: str, host_ifname: str) -> CniError:
    details = f'the source MAC addresses of frames from "{host_ifname}" are not checked; {REPAIR_HINT}'
    return internal(msg, details)
