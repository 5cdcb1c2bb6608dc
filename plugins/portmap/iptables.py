"""Host ports with iptables: for each container and network a chain in table nat, and entries that lead to it.

One rule: names, rules, comments and their order are the reference's (plugins.portmap.iptables_rules), so that either
can take away what the other has made.

What it costs: ADD runs no program when netlink shows that nothing is in the way (see iptables_direct), else one or two
for each family, as for the host's first pod and with iptables-legacy, whatever the number of ports; CHECK runs none
where all rules are in iptables-nft's tables as ADD makes them, else one for each family; DEL and GC run none, except
where iptables-legacy has made table nat.

No rule names the interface: two interfaces of one container on one network share the chain, and the first one's rules
win, as with the reference. So ADD and DEL keep the rules that forward to an address of another interface of the
container (plugins.portmap.other_interfaces); the last DEL removes the chain.
GC keeps the chain while one interface is valid.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError, Code, UnchangedError, run_all
from kernel.netfilter import iptables, iptables_chains, iptables_nft, nft
from kernel.netfilter.iptables import LineSyntaxError, RefusedError, UnusableError
from kernel.netfilter.iptables_chains import TABLE
from kernel.netfilter.nft import Chain, NftSocket
from plugins.portmap import iptables_check, iptables_state, iptables_update, other_interfaces
from plugins.portmap.iptables_rules import CHAINS, DNAT, OLD_CHAINS, chain_of, shared_rules
from plugins.portmap.iptables_state import Seen, look, tidy
from plugins.portmap.spec import HostPorts
from process.values import replace

_ROUNDS = 10  # each is lost to another verb that changed what we had seen before we wrote
_CONDITIONS = {4: "conditionsV4", 6: "conditionsV6"}


def add(wanted: HostPorts) -> None:
    """Makes the rules; the container's own that are there already are replaced.

    Raises iptables.UnusableError, CniError(11) for a port that is taken or a lock that is not had, CniError(999); some
    rules may be there then, which `delete` and `delete_legacy` take away, unless it is an UnchangedError.
    """
    written = False
    before: dict[int, Seen] = {}
    try:
        for tries_left in reversed(range(_ROUNDS)):
            seen = look(wanted)
            listings = _listings(seen, before)
            before = seen
            if listings is None:
                continue
            changes = _changes(wanted, listings)
            written = True
            if _written(wanted, listings, changes, may_fail=tries_left > 0):
                if any(rule not in listing for rule in shared_rules(wanted) for listing in listings.values()):
                    tidy(wanted)
                return
        raise _restless()
    except UnusableError:  # the other backend's turn: one family may have its rules
        with suppress(CniError):
            run_all(partial(delete_legacy, wanted), partial(nft.run_steps, [lambda socket: delete(socket, wanted)]))
        raise
    except CniError as error:
        if written:
            raise
        raise UnchangedError(error.code, error.msg, error.details) from error


def check(wanted: HostPorts) -> None:
    """Checks each rule and the shared chains; raises CniError(999) naming what is missing, and as `add`."""
    questions = {version: iptables_check.questions(wanted, version) for version in wanted.families}
    before: dict[int, Seen] = {}
    for _ in range(_ROUNDS):
        seen = look(wanted, own=True)
        for version, family in seen.items():
            iptables_check.chains(wanted, version, family)
        listings = _listings(seen, before, questions)
        if listings is not None:
            break
        before = seen
    else:
        raise _restless()
    for version, listing in listings.items():
        iptables_check.rules(wanted, version, listing, seen[version])


def get_problem() -> str:
    """Returns "" when host ports of IPv4 can be served with iptables, else what is missing (IPv6 may be)."""
    return iptables.get_problem((4,))


def delete(socket: NftSocket, ports: HostPorts) -> None:
    """Deletes the container's chain and the entries that lead there, of iptables-nft; absent is success.

    Also those that the reference made before 0.7.0. Rules of another interface of the container stay; only then, which
    is rare, a program is run. Raises KernelError, CniError(11), CniError(999).
    """
    kinds = {kind.name(ports.network, ports.container_id): kind for kind in (CHAINS, OLD_CHAINS)}
    asked = [Chain(table, name) for name in kinds for table in iptables_nft.TABLES.values()]
    found = [chain for chain in nft.get_chains(socket, *asked) if chain]
    if iptables_state.forwards_elsewhere(socket, ports, found):
        others = other_interfaces.addresses(ports)
        if others and _delete_from_shared_chain(ports, others, found):
            return
    names = dict.fromkeys(chain.name for chain in found)
    run_all(*(partial(iptables_nft.delete, socket, kinds[name], name) for name in names))


def _delete_from_shared_chain(ports: HostPorts, others: Collection[Address], found: Collection[Chain]) -> bool:
    """Deletes the interface's rules and keeps those that forward to `others`; returns False if none do.

    Where the host's program cannot list the chain the rules stay until the last interface's DEL, and stderr says so.
    """
    chain = chain_of(ports)
    versions = [version for version, table in iptables_nft.TABLES.items() if Chain(table, chain) in found]
    try:
        for tries_left in reversed(range(_ROUNDS)):
            listings = iptables.list_chains(dict.fromkeys(versions, (DNAT, chain)), TABLE)
            lines = {version: iptables_update.removal(ports, others, listing) for version, listing in listings.items()}
            if not any(lines.values()):
                return False
            for version, listing in listings.items():
                lines[version] = lines[version] or iptables_chains.removal_lines({chain: CHAINS}, listing)
            try:
                iptables.apply(lines, TABLE, _deleting(ports))
                break
            except RefusedError:
                if not tries_left:
                    raise
    except (RefusedError, UnusableError) as error:
        text = (
            f"host ports of {ports.ifname} stay until the last interface of container {ports.container_id} is deleted"
        )
        print(f"portmap: {text}: {error.msg}", file=sys.stderr)
    return True


def delete_legacy(ports: HostPorts) -> None:
    """Deletes the same of iptables-legacy, which takes its lock; raises CniError(11), CniError(999)."""
    chains = {kind.name(ports.network, ports.container_id): kind for kind in (CHAINS, OLD_CHAINS)}

    def lines(version: int, listing: list[str]) -> list[str]:
        kept = iptables_update.removal(ports, _others(ports, {version: listing}), listing)
        return kept or iptables_chains.removal_lines(chains, listing)

    iptables_chains.change_legacy(TABLE, lines, _deleting(ports))


def _deleting(ports: HostPorts) -> str:
    return f"delete the host ports of container {ports.container_id}"


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the chains and entries of a network's containers that are not `valid`, of iptables-nft.

    What cannot be proven to be the network's stays, and is told of on stderr. Raises KernelError.
    """
    kept = _names(network, valid)
    run_all(*(partial(iptables_nft.gc, socket, kind, network, kept) for kind in (CHAINS, OLD_CHAINS)))


def gc_legacy(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the same of iptables-legacy; raises CniError(11), CniError(999)."""
    iptables_chains.gc_legacy((CHAINS, OLD_CHAINS), network, _names(network, valid))


def _names(network: str, valid: Iterable[Attachment]) -> frozenset[str]:
    return frozenset(kind.name(network, item.container_id) for item in valid for kind in (CHAINS, OLD_CHAINS))


def _listings(
    seen: Mapping[int, Seen], before: Mapping[int, Seen], questions: Mapping[int, list[str]] | None = None
) -> dict[int, list[str]] | None:
    """Returns what there is in each family, read by the program where netlink does not tell; None if that was changing.

    It was not when the last look saw the same as the one `before`: then RefusedError tells what is not to be listed.
    `questions` are further lines to ask the program.
    """
    chains = {version: family.chains for version, family in seen.items() if not family.clear}
    try:
        read = iptables.list_chains(
            chains, TABLE, {version: lines for version, lines in (questions or {}).items() if version in chains}
        )
    except RefusedError:
        if seen == before:
            raise
        return None
    return {version: [*family.listing, *read.get(version, [])] for version, family in seen.items()}


def _restless() -> CniError:
    hint = "see what changes them all the time: nft monitor"
    return CniError(Code.TRY_AGAIN_LATER, f"table {TABLE} of iptables kept changing while it was read", hint)


def _changes(wanted: HostPorts, listings: Mapping[int, list[str]]) -> dict[int, list[str]]:
    others = _others(wanted, listings)
    return {version: iptables_update.lines(wanted, others, version, listing) for version, listing in listings.items()}


def _written(
    wanted: HostPorts, listings: Mapping[int, list[str]], changes: Mapping[int, list[str]], *, may_fail: bool
) -> bool:
    """Writes what is not so yet; returns False when that was refused, and `may_fail`.

    It is when what was read has changed meanwhile, and when the chains that netlink told of are iptables-nft's and the
    program is iptables-legacy: that has made its table by now, so that the next look finds it.
    """
    try:
        iptables.apply(changes, TABLE, f"lead host ports to container {wanted.container_id}")
        return True
    except RefusedError as error:
        if isinstance(error, LineSyntaxError) and (cause := _wrong_words(wanted, listings, error)):
            raise cause from None
        if may_fail:
            return False
        raise


def _others(wanted: HostPorts, listings: Mapping[int, list[str]]) -> frozenset[Address]:
    """Returns the addresses of the container's other interfaces on this network; asked for only when it matters."""
    own = {address.ip for address in wanted.addresses.values()}
    if all(iptables_update.leads_to(wanted, listing) <= own for listing in listings.values()):
        return frozenset()
    return other_interfaces.addresses(wanted)


def _wrong_words(wanted: HostPorts, listings: Mapping[int, list[str]], error: LineSyntaxError) -> CniError | None:
    """Returns the error with the key that is to blame: conditions, when without them all is understood."""
    version = error.family
    if not wanted.conditions.get(version):
        return None
    tried = (
        iptables_update.lines(made, (), version, listings[version]) for made in (replace(wanted, conditions={}), wanted)
    )
    if [iptables.is_accepted(version, TABLE, lines) for lines in tried] != [True, False]:
        return None
    hint = f"write the match words of iptables, one word in each string; it said: {error.details}"
    return CniError(Code.INVALID_NETWORK_CONFIG, f'"{_CONDITIONS[version]}" are no match words: {error.msg}', hint)
