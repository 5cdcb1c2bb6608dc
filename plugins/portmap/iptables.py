"""Host ports with iptables: for each container and network a chain in table nat, and entries that jump to it.

One rule: names, rules, comments and their order are the reference's (plugins.portmap.iptables_rules), so that either
can remove the other's rules.

Cost: ADD runs no program if netlink shows that nothing conflicts (see iptables_direct). Otherwise, as for the host's
first pod and with iptables-legacy, it runs one or two for each family, whatever the number of ports. CHECK runs none if
all rules are in iptables-nft's tables in the form that ADD creates, otherwise one for each family. DEL and GC run none,
unless iptables-legacy has created table nat.

No rule names the interface: two interfaces of one container on one network share the chain, and the first one's rules
win, as with the reference. So ADD and DEL keep the rules that forward to an address of another interface of the
container (plugins.portmap.other_interfaces); the last DEL removes the chain. GC keeps it while one interface is valid.
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
from plugins.portmap.iptables_rules import CHAINS, DNAT, OLD_CHAINS, chain_name, shared_rules
from plugins.portmap.iptables_state import TableState, delete_duplicate_rules, get_states
from plugins.portmap.spec import HostPorts
from process.values import replace

_ROUNDS = 10  # each is lost to another process that changes the table between our read and our write
_CONDITIONS = {4: "conditionsV4", 6: "conditionsV6"}


def add(host_ports: HostPorts) -> None:
    """Creates the rules; replaces the container's existing ones.

    Raises iptables.UnusableError, CniError(11) for a port in use or a busy lock, CniError(999). Unless it raises an
    UnchangedError, some rules may exist then, which `delete` and `delete_legacy` remove.
    """
    may_have_written = False
    before: dict[int, TableState] = {}
    try:
        for tries_left in reversed(range(_ROUNDS)):
            states = get_states(host_ports)
            listings = _get_listings(states, before)
            before = states
            if listings is None:
                continue
            changes = _changes(host_ports, listings)
            may_have_written = True
            if _apply_changes(host_ports, listings, changes, may_fail=tries_left > 0):
                if any(rule not in listing for rule in shared_rules(host_ports) for listing in listings.values()):
                    delete_duplicate_rules(host_ports)
                return
        raise _unstable_error()
    except UnusableError:  # nftables is tried next: one family may have its rules already
        with suppress(CniError):
            run_all(
                partial(delete_legacy, host_ports), partial(nft.run_steps, [lambda socket: delete(socket, host_ports)])
            )
        raise
    except CniError as error:
        if may_have_written:
            raise
        raise UnchangedError(error.code, error.msg, error.details) from error


def check(host_ports: HostPorts) -> None:
    """Checks each rule and the shared chains; raises CniError(999) naming what is missing, and errors like `add`."""
    probes = {version: iptables_check.probe_lines(host_ports, version) for version in host_ports.families}
    before: dict[int, TableState] = {}
    for _ in range(_ROUNDS):
        states = get_states(host_ports, with_container_rules=True)
        for version, family in states.items():
            iptables_check.check_chains(host_ports, version, family)
        listings = _get_listings(states, before, probes)
        if listings is not None:
            break
        before = states
    else:
        raise _unstable_error()
    for version, listing in listings.items():
        iptables_check.check_rules(host_ports, version, listing, states[version])


def get_problem() -> str:
    """Returns "" if iptables can forward host ports of IPv4, else what is missing; IPv6 may be missing."""
    return iptables.get_problem((4,))


def delete(socket: NftSocket, host_ports: HostPorts) -> None:
    """Deletes the container's chain and the entries that jump to it from iptables-nft; absent is success.

    Includes the chains of the reference before 0.7.0. Keeps the rules of other interfaces of the container; only for
    these, which is rare, it runs a program. Raises KernelError, CniError(11), CniError(999).
    """
    kinds = {kind.name(host_ports.network, host_ports.container_id): kind for kind in (CHAINS, OLD_CHAINS)}
    possible = [Chain(table, name) for name in kinds for table in iptables_nft.TABLES.values()]
    existing = [chain for chain in nft.get_chains(socket, *possible) if chain]
    if iptables_state.has_other_targets(socket, host_ports, existing):
        others = other_interfaces.list_other_addresses(host_ports)
        if others and _delete_from_shared_chain(host_ports, others, existing):
            return
    names = dict.fromkeys(chain.name for chain in existing)
    run_all(*(partial(iptables_nft.delete, socket, kinds[name], name) for name in names))


def _delete_from_shared_chain(host_ports: HostPorts, others: Collection[Address], existing: Collection[Chain]) -> bool:
    """Deletes the interface's rules and keeps those that forward to `others`; returns False if none do.

    If the host's program cannot list the chain, prints that the rules stay until the last interface's DEL.
    """
    chain = chain_name(host_ports)
    versions = [version for version, table in iptables_nft.TABLES.items() if Chain(table, chain) in existing]
    try:
        for tries_left in reversed(range(_ROUNDS)):
            listings = iptables.list_chains(dict.fromkeys(versions, (DNAT, chain)), TABLE)
            lines = {
                version: iptables_update.lines_for_removal(host_ports, others, listing)
                for version, listing in listings.items()
            }
            if not any(lines.values()):
                return False
            for version, listing in listings.items():
                lines[version] = lines[version] or iptables_chains.removal_lines({chain: CHAINS}, listing)
            try:
                iptables.apply(lines, TABLE, _deleting(host_ports))
                break
            except RefusedError:
                if not tries_left:
                    raise
    except (RefusedError, UnusableError) as error:
        container_id = host_ports.container_id
        text = f"host ports of {host_ports.ifname} stay until the last interface of container {container_id} is deleted"
        print(f"portmap: {text}: {error.msg}", file=sys.stderr)
    return True


def delete_legacy(host_ports: HostPorts) -> None:
    """Deletes the same from iptables-legacy under its lock; raises CniError(11), CniError(999)."""
    chains = {kind.name(host_ports.network, host_ports.container_id): kind for kind in (CHAINS, OLD_CHAINS)}

    def lines(version: int, listing: list[str]) -> list[str]:
        kept = iptables_update.lines_for_removal(
            host_ports, _get_other_addresses(host_ports, {version: listing}), listing
        )
        return kept or iptables_chains.removal_lines(chains, listing)

    iptables_chains.change_legacy(TABLE, lines, _deleting(host_ports))


def _deleting(host_ports: HostPorts) -> str:
    return f"delete the host ports of container {host_ports.container_id}"


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes chains and entries of the network's containers that are not in `valid` from iptables-nft.

    Keeps, and reports on stderr, those that may be another network's. Raises KernelError.
    """
    kept = _names(network, valid)
    run_all(*(partial(iptables_nft.gc, socket, kind, network, kept) for kind in (CHAINS, OLD_CHAINS)))


def gc_legacy(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the same from iptables-legacy; raises CniError(11), CniError(999)."""
    iptables_chains.gc_legacy((CHAINS, OLD_CHAINS), network, _names(network, valid))


def _names(network: str, valid: Iterable[Attachment]) -> frozenset[str]:
    return frozenset(kind.name(network, item.container_id) for item in valid for kind in (CHAINS, OLD_CHAINS))


def _get_listings(
    states: Mapping[int, TableState], before: Mapping[int, TableState], probes: Mapping[int, list[str]] | None = None
) -> dict[int, list[str]] | None:
    """Returns the existing rules of each family, None if they changed meanwhile; may run the program.

    Raises RefusedError if the program cannot list them and nothing has changed since `before`. `probes` are further
    lines for the program.
    """
    chains = {version: family.chains for version, family in states.items() if not family.is_complete}
    try:
        read = iptables.list_chains(
            chains, TABLE, {version: lines for version, lines in (probes or {}).items() if version in chains}
        )
    except RefusedError:
        if states == before:
            raise
        return None
    return {version: [*family.listing, *read.get(version, [])] for version, family in states.items()}


def _unstable_error() -> CniError:
    hint = "see what keeps changing it: nft monitor"
    return CniError(Code.TRY_AGAIN_LATER, f"table {TABLE} of iptables kept changing while it was read", hint)


def _changes(host_ports: HostPorts, listings: Mapping[int, list[str]]) -> dict[int, list[str]]:
    others = _get_other_addresses(host_ports, listings)
    return {
        version: iptables_update.lines_for_add(host_ports, others, version, listing)
        for version, listing in listings.items()
    }


def _apply_changes(
    host_ports: HostPorts, listings: Mapping[int, list[str]], changes: Mapping[int, list[str]], *, may_fail: bool
) -> bool:
    """Applies the changes; returns False if they were refused and `may_fail`.

    They are refused if the table has changed since it was read, or if netlink showed iptables-nft's chains and the
    program is iptables-legacy: it has created its own table by now, which the next round reads.
    """
    try:
        iptables.apply(changes, TABLE, f"publish host ports of container {host_ports.container_id}")
        return True
    except RefusedError as error:
        if isinstance(error, LineSyntaxError) and (cause := _wrong_words(host_ports, listings, error)):
            raise cause from None
        if may_fail:
            return False
        raise


def _get_other_addresses(host_ports: HostPorts, listings: Mapping[int, list[str]]) -> frozenset[Address]:
    """Returns the addresses of the container's other interfaces on this network; reads them only if needed."""
    addresses = {address.ip for address in host_ports.addresses.values()}
    if all(iptables_update.dnat_addresses(host_ports, listing) <= addresses for listing in listings.values()):
        return frozenset()
    return other_interfaces.list_other_addresses(host_ports)


def _wrong_words(host_ports: HostPorts, listings: Mapping[int, list[str]], error: LineSyntaxError) -> CniError | None:
    """Returns the error of the conditions, None unless the program accepts the rules without them."""
    version = error.family
    if not host_ports.conditions.get(version):
        return None
    tried = (
        iptables_update.lines_for_add(variant, (), version, listings[version])
        for variant in (replace(host_ports, conditions={}), host_ports)
    )
    if [iptables.is_accepted(version, TABLE, lines) for lines in tried] != [True, False]:
        return None
    hint = f"write the match words of iptables, one word in each string; it said: {error.details}"
    return CniError(Code.INVALID_NETWORK_CONFIG, f'"{_CONDITIONS[version]}" are no match words: {error.msg}', hint)
