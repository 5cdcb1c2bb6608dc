"""The iptables backend: for each container and network a chain in table nat, and jump rules to that chain.

Names, rules, comments and their order equal those of the reference plugin, so that each plugin can remove the rules of
the other. plugins.portmap.iptables_rules builds them.

Cost in processes (iptables-restore, ip6tables-restore), whatever the number of ports:
- ADD: one or two for each IP version in three cases: for the first pod of the host, if an existing rule may conflict,
  or with iptables-legacy; otherwise none (kernel.netfilter.iptables).
- CHECK: none if all rules are in iptables-nft in the form that ADD creates; otherwise one for each IP version.
- DEL and GC: none, unless iptables-legacy has created table nat.

The rules do not name the interface. If a container has two interfaces on one network, both use the same chain, and the
rules of the first interface win, as with the reference plugin. ADD and DEL keep the rules that forward to an address of
the container's other interface (plugins.portmap.other_interfaces). The last DEL deletes the chain; GC keeps it while
one of the interfaces is valid.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError, Code, UnchangedError, invalid_conf, run_all
from kernel.netfilter import iptables, iptables_chains, iptables_nft, nft
from kernel.netfilter.iptables_chains import TABLE, ChainScheme
from kernel.netfilter.iptables_program import LineSyntaxError, RefusedError, UnusableError
from kernel.netfilter.iptables_rule import ChainList, IptablesChange
from kernel.netfilter.nft import Chain, NftSocket
from plugins.portmap import iptables_check, iptables_rules, iptables_state, other_interfaces
from plugins.portmap.conf import CONDITION_KEYS, HostPorts
from plugins.portmap.iptables_rules import DNAT, DNAT_CHAINS, OLD_CHAINS, chain_name, shared_rules
from plugins.portmap.iptables_state import TableState, delete_duplicate_rules, get_states
from process.values import replace

_ROUNDS = 10  # a round fails if another process changes the table between the read and the write


def add(host_ports: HostPorts) -> None:
    """Creates the container's rules; replaces existing ones.

    Raises UnusableError and UnchangedError, which leave nothing to remove. Raises CniError(11) for a port in
    use or a busy lock, and CniError(999): then the caller removes the rules with `delete` and `delete_legacy`.
    """
    may_have_written = False
    try:
        for tries_left in reversed(range(_ROUNDS)):
            listings = _get_listings(host_ports)
            changes = _compute_changes(host_ports, listings)
            may_have_written = True
            if _apply_changes(host_ports, listings, changes, may_fail=tries_left > 0):
                if any(rule not in listing for rule in shared_rules(host_ports) for listing in listings.values()):
                    delete_duplicate_rules(host_ports)
                return
    except UnusableError:  # the caller tries nftables next; the rules of one IP version may exist already
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
    """Checks the rules and the shared chains; raises CniError(999) for the first missing one.

    Raises ShadowedError if a rule of another container comes first, and the errors of `add`.
    """
    for version, listing in _get_listings(host_ports, with_container_rules=True).items():
        iptables_check.check_rules(host_ports, version, listing)


def get_problem() -> str:
    """Returns "" if iptables can publish host ports for IPv4, else the problem; ignores problems with IPv6."""
    return iptables.get_problem((4,))


def delete(socket: NftSocket, host_ports: HostPorts) -> None:
    """Deletes the container's chain and the jump rules to it from iptables-nft; an absent chain is success.

    Deletes the chains of the reference plugin before 0.7.0, too. Keeps the rules of the container's other interfaces;
    only a container with such rules costs processes. Raises KernelError, CniError(11), CniError(999).
    """
    schemes = _chain_schemes(host_ports)
    possible = [Chain(table, name) for name in schemes for table in iptables_nft.TABLES.values()]
    existing = [chain for chain in nft.get_chains(socket, *possible) if chain]
    if iptables_state.forwards_elsewhere(socket, host_ports, existing):
        other_addresses = other_interfaces.list_other_addresses(host_ports)
        if other_addresses and _delete_interface_rules(host_ports, other_addresses, existing):
            return
    names = dict.fromkeys(chain.name for chain in existing)
    run_all(*(partial(iptables_nft.delete, socket, schemes[name], name) for name in names))


def _delete_interface_rules(
    host_ports: HostPorts, other_addresses: Collection[Address], existing: Collection[Chain]
) -> bool:
    """Deletes the rules of this interface from the container's chain; keeps those that forward to `other_addresses`.

    Returns False, and changes nothing, if no rule forwards to `other_addresses`. If iptables-restore cannot list or
    change the chain, prints to stderr that all rules stay until DEL of the container's last interface.
    """
    chain = chain_name(host_ports)
    versions = [version for version, table in iptables_nft.TABLES.items() if Chain(table, chain) in existing]
    try:
        for tries_left in reversed(range(_ROUNDS)):
            listings = iptables.list_chains(dict.fromkeys(versions, (DNAT, chain)), TABLE)
            changes = {
                version: iptables_rules.changes_to_delete_interface_rules(host_ports, other_addresses, listing)
                for version, listing in listings.items()
            }
            if not any(changes.values()):
                return False
            for version, listing in listings.items():
                changes[version] = changes[version] or iptables_chains.compute_deletions({chain: DNAT_CHAINS}, listing)
            try:
                iptables.apply(changes, TABLE, _delete_description(host_ports))
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
    """Deletes from iptables-legacy the chains and rules that `delete` deletes from iptables-nft.

    Raises CniError(11), CniError(999).
    """
    schemes = _chain_schemes(host_ports)

    def plan(version: int, listing: ChainList) -> list[IptablesChange]:
        changes = iptables_rules.changes_to_delete_interface_rules(
            host_ports, _get_other_addresses(host_ports, {version: listing}), listing
        )
        return changes or iptables_chains.compute_deletions(schemes, listing)

    iptables_chains.change_legacy(TABLE, plan, _delete_description(host_ports))


def _delete_description(host_ports: HostPorts) -> str:
    return f"delete the host ports of container {host_ports.container_id}"


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes from iptables-nft the chains of this network's containers that are not in `valid`, and the jump rules.

    Keeps rules that may belong to another network, and reports their number on stderr. Raises KernelError.
    """
    valid_chains = _chain_names(network, valid)
    run_all(*(partial(iptables_nft.gc, socket, scheme, network, valid_chains) for scheme in (DNAT_CHAINS, OLD_CHAINS)))


def gc_legacy(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes from iptables-legacy the chains and rules that `gc` deletes from iptables-nft.

    Raises CniError(11), CniError(999).
    """
    iptables_chains.gc_legacy((DNAT_CHAINS, OLD_CHAINS), network, _chain_names(network, valid))


def _chain_schemes(host_ports: HostPorts) -> dict[str, ChainScheme]:
    """Returns the container's chains, today's and that of old reference plugins, by name."""
    return {scheme.name(host_ports.network, host_ports.container_id): scheme for scheme in (DNAT_CHAINS, OLD_CHAINS)}


def _chain_names(network: str, valid: Iterable[Attachment]) -> frozenset[str]:
    return frozenset(scheme.name(network, item.container_id) for item in valid for scheme in (DNAT_CHAINS, OLD_CHAINS))


def _get_listings(host_ports: HostPorts, *, with_container_rules: bool = False) -> dict[int, ChainList]:
    """Returns the existing rules of each IP version; for CHECK `with_container_rules`.

    Runs iptables-restore for each IP version whose rules netlink cannot list in full. That fails if another process
    has deleted a chain meanwhile: then this reads the state again. Raises RefusedError if the state is still the same.
    """
    versions = host_ports.ip_versions if with_container_rules else ()
    rules = {version: iptables_check.rules_to_check(host_ports, version) for version in versions}
    previous: dict[int, TableState] = {}
    for _ in range(_ROUNDS):
        states = get_states(host_ports, with_container_rules=with_container_rules)
        if with_container_rules:
            for version, state in states.items():
                if not state.is_unknown:
                    iptables_check.check_chains(host_ports, version, state.listing)
        chains = {version: state.chains for version, state in states.items() if not state.is_sufficient}
        try:
            listed_by_program = iptables.list_chains(chains, TABLE, rules)
        except RefusedError:
            if states == previous:
                raise
            previous = states
            continue
        return {
            version: state.listing | listed_by_program.get(version, ChainList()) for version, state in states.items()
        }
    hint = "nft monitor shows which process keeps changing it"
    raise CniError(Code.TRY_AGAIN_LATER, f"table {TABLE} of iptables changed each time while it was read", hint)


def _compute_changes(host_ports: HostPorts, listings: Mapping[int, ChainList]) -> dict[int, list[IptablesChange]]:
    other_addresses = _get_other_addresses(host_ports, listings)
    return {
        version: iptables_rules.changes_for_add(host_ports, other_addresses, version, listing)
        for version, listing in listings.items()
    }


def _apply_changes(
    host_ports: HostPorts,
    listings: Mapping[int, ChainList],
    changes: Mapping[int, list[IptablesChange]],
    *,
    may_fail: bool,
) -> bool:
    """Applies the changes; with `may_fail`, returns False if iptables-restore refuses them.

    It refuses changes that do not fit the table. Either another process has changed the table since it was read, or
    the changes were computed from iptables-nft's table, but iptables-restore is iptables-legacy. In the second case
    the attempt has created iptables-legacy's table, and the next round reads it.
    """
    try:
        iptables.apply(changes, TABLE, f"publish host ports of container {host_ports.container_id}")
        return True
    except RefusedError as error:
        if isinstance(error, LineSyntaxError) and (cause := _conditions_error(host_ports, listings, error)):
            raise cause from None
        if may_fail:
            return False
        raise


def _get_other_addresses(host_ports: HostPorts, listings: Mapping[int, ChainList]) -> frozenset[Address]:
    """Returns the addresses of the container's other interfaces; none if all rules forward to this interface."""
    addresses = {address.ip for address in host_ports.addresses.values()}
    if all(iptables_rules.dnat_addresses(host_ports, listing) <= addresses for listing in listings.values()):
        return frozenset()
    return other_interfaces.list_other_addresses(host_ports)


def _conditions_error(
    host_ports: HostPorts, listings: Mapping[int, ChainList], error: LineSyntaxError
) -> CniError | None:
    """Returns an error that names the conditions if iptables-restore accepts the rules without them, else None."""
    version = error.family
    if not host_ports.conditions.get(version):
        return None
    attempts = (
        iptables_rules.changes_for_add(variant, (), version, listings[version])
        for variant in (replace(host_ports, conditions={}), host_ports)
    )
    if [iptables.is_accepted(version, TABLE, changes) for changes in attempts] != [True, False]:
        return None
    hint = f"write matches as on the command line of iptables, one word in each string; it printed: {error.details}"
    return invalid_conf(f'"{CONDITION_KEYS[version]}" is refused by iptables: {error.msg}', hint)
