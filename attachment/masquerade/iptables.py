r"""Masquerading with iptables: for each container and network a chain in table nat, and jumps to it from POSTROUTING.

This module uses the reference plugins' names, rules and comments, so that either can delete the other's rules.

    -A POSTROUTING -s 10.22.0.2/32 -m comment --comment "name: \"net\" id: \"cid\"" -j CNI-2bbe0c48b91a7d1b8a6753a8
    -A CNI-2bbe0c48b91a7d1b8a6753a8 -d 10.22.0.0/16 ... -j ACCEPT
    -A CNI-2bbe0c48b91a7d1b8a6753a8 ! -d 224.0.0.0/4 ... -j MASQUERADE

With `nonMasqueradeCluster` a jump to PODWIRE-CLUSTER precedes the last rule. ADD creates that chain, empty, and
podwire-agent fills it with a rule like "-d 10.244.0.0/16 -j ACCEPT" for each network of the cluster.

No rule names the interface: two interfaces of one container on one network share the chain, and only the address in a
jump shows to which of them it belongs. So ADD creates missing rules and leaves every other jump alone, and DEL keeps
the jumps from addresses of the container's other interfaces.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from attachment.masquerade.names import CLUSTER_CHAIN, ENTRY, MASQUERADE_CHAINS, chain_name
from attachment.masquerade.spec import Masquerade
from cni.address import Cidr, as_network
from kernel.netfilter import iptables, iptables_chains, nft
from kernel.netfilter.iptables_accept import accept_rule
from kernel.netfilter.iptables_chains import TABLE, compute_deletions, missing_error
from kernel.netfilter.iptables_expressions import match_rules
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule, comment_match, network_text
from kernel.netfilter.nft import Chain, NftSocket, Table

_MULTICAST = {4: "224.0.0.0/4", 6: "ff00::/8"}


def add(spec: Masquerade) -> None:
    """Creates the missing parts of the chain, and the missing jumps of `spec.addresses`; writes nothing if none is.

    Raises UnusableError, CniError(11), CniError(999); one family may then have its rules, and the rollback
    deletes them.
    """
    chain = chain_name(spec.network, spec.container_id)

    def missing(family: int, listing: ChainList) -> list[IptablesChange]:
        desired, existing = _rules(spec, family), listing.rules(chain)
        names = [CLUSTER_CHAIN, chain] if spec.cluster else [chain]
        changes = [IptablesChange.new_chain(name) for name in names if name not in listing.chains]
        exceptions = [rule for rule in desired.exceptions if rule not in _before(desired.masquerade, existing)]
        if desired.masquerade in existing:  # exceptions precede it
            changes += map(IptablesChange.insert, reversed(exceptions))
        else:
            changes += map(IptablesChange.append, (*exceptions, desired.masquerade))
        return changes + [IptablesChange.append(jump) for jump in desired.jumps if jump not in listing]

    description = f"add masquerade rules to chain {chain}"
    shared = CLUSTER_CHAIN if spec.cluster else ""
    iptables_chains.change(_families(spec), MASQUERADE_CHAINS, chain, missing, description, shared)


def delete_legacy(spec: Masquerade, other_addresses: Collection[Cidr] = ()) -> None:
    """Deletes the attachment's jumps of iptables-legacy, and the chain with the last jump; absence is success.

    `other_addresses` are those of the container's other interfaces: their jumps stay. All other jumps are deleted,
    whatever `spec.addresses` are: such an address is this interface's, or was before the container was restarted
    without DEL. Raises CniError(11), CniError(999).
    """
    chain = chain_name(spec.network, spec.container_id)
    # The source of a jump is the address, before 0.7 its subnet.
    kept = tuple(
        f"-s {network_text(network)} " for item in other_addresses for network in (as_network(item.ip), item.network)
    )

    def plan(family: int, listing: ChainList) -> list[IptablesChange]:
        return compute_deletions({chain: MASQUERADE_CHAINS}, listing, lambda jump: jump.spec.startswith(kept))

    iptables_chains.change_legacy(TABLE, plan, f"delete masquerade rules of chain {chain}")


def check(spec: Masquerade) -> None:
    """Checks that chain, rules and jumps exist; raises CniError(999) with the first missing one, and as `add`."""
    if _exists_in_nft(spec):
        return
    chain = chain_name(spec.network, spec.container_id)
    for family, listing in iptables.read(_families(spec), TABLE, [ENTRY, chain]).items():
        if chain not in listing.chains:
            raise missing_error("masquerade", f"chain {chain}", family)
        desired, existing = _rules(spec, family), listing.rules(chain)
        effective = _before(desired.masquerade, existing)
        absent = [rule for rule in desired.exceptions if rule not in effective]
        absent += [rule for rule in (desired.masquerade, *desired.jumps) if rule not in listing]
        if absent:
            raise missing_error("masquerade", f"rule {absent[0]}", family)


def get_problem() -> str:
    """Returns why iptables cannot masquerade IPv4, "" if it can; a host may be without IPv6."""
    return iptables.get_problem((4,))


def _exists_in_nft(spec: Masquerade) -> bool:
    """Returns whether iptables-nft's tables have all rules in the form that `add` writes; runs no program.

    False if a rule has another form: then `check` needs the program.
    """
    families = _families(spec)

    def exist(socket: NftSocket, usable: list[int]) -> dict[int, bool]:
        return {family: _family_exists(socket, spec, family) for family in usable}

    existing = iptables.read_by_netlink(families, TABLE, exist)
    return all(existing.get(family) for family in families)


def _family_exists(socket: NftSocket, spec: Masquerade, family: int) -> bool:
    table, chain = Table(iptables.NFPROTO[family], TABLE), chain_name(spec.network, spec.container_id)
    exceptions, masquerade, jumps = _rules(spec, family)
    existing = match_rules(family, [*exceptions, masquerade], nft.list_rules(socket, Chain(table, chain))) or []
    entries = match_rules(family, jumps, nft.list_rules(socket, Chain(table, ENTRY), chain + "\0")) or []
    return existing[-1:] == [masquerade] and set(exceptions) == set(existing[:-1]) and set(jumps) == set(entries)


class _Rules(NamedTuple):
    """The rules of an attachment: for traffic that is not masqueraded, the one that masquerades, and the jumps."""

    exceptions: list[IptablesRule]
    masquerade: IptablesRule
    jumps: list[IptablesRule]


def _rules(spec: Masquerade, family: int) -> _Rules:
    chain = chain_name(spec.network, spec.container_id)
    comment = comment_match(MASQUERADE_CHAINS.comment(spec.network, spec.container_id))
    addresses = [item for item in spec.addresses if item.version == family]
    exempt = [*(item.network for item in addresses), *(item for item in spec.exempt if item.version == family)]
    exceptions = [accept_rule(chain, network, comment) for network in exempt]
    exceptions += [IptablesRule(chain, f"{comment} -j {CLUSTER_CHAIN}")] if spec.cluster else []
    masquerade = IptablesRule(chain, f"! -d {_MULTICAST[family]} {comment} -j MASQUERADE")
    jumps = [IptablesRule(ENTRY, f"-s {network_text(as_network(item.ip))} {comment} -j {chain}") for item in addresses]
    return _Rules(list(dict.fromkeys(exceptions)), masquerade, list(dict.fromkeys(jumps)))


def _families(spec: Masquerade) -> list[int]:
    return sorted({item.version for item in spec.addresses})


def _before(rule: IptablesRule, existing: Sequence[IptablesRule]) -> Sequence[IptablesRule]:
    """Returns the rules before `rule`, all if it is missing: after it, an exception has no effect."""
    return existing[: existing.index(rule)] if rule in existing else existing
