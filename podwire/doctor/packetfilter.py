"""Checks the packet filter: variants of iptables, firewalld, the cluster's networks, rules of stopped containers.

The owner of a rule is read from the rule itself; a rule that names no owner is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from attachment.masquerade import cluster_netlink
from attachment.masquerade.names import CLUSTER_CHAIN
from cni.conf import Attachment
from cni.errors import CniError, Code
from kernel.netfilter import nft, nft_owner
from kernel.netfilter.ruleset import FAMILY_NAMES
from plugins.firewall import firewalld
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode
from podwire.doctor.rules import LEGACY
from podwire.doctor.shell_command import ShellCommand
from podwire.node.programs import find_program
from podwire.node.rule_owners import PODWIRE, owner_of
from podwire.node.rules import owner_keys, read_rules
from podwire.output import plural

Owners = frozenset[tuple[str, Attachment]]  # with their networks

_GROUP = "packet filter"
_TABLES = ("filter", "nat", "mangle", "raw")
_BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")

_MIXED = Fault(
    "iptables-mixture",
    Severity.WARNING,
    "both iptables-legacy and iptables-nft have rules: each tool lists only its variant's, and a packet must pass "
    "both; one may drop what the other accepts",
)
_FIREWALLD = Fault(
    "firewalld-untold",
    Severity.NOTE,
    "firewalld is running, and no plugin of a network adds the pods to a zone: the default zone's rules may reject "
    "their packets",
)
_STALE = Fault(
    "stale-rules",
    Severity.WARNING,
    "there are rules of containers that are no longer running, or that neither the cache nor an address in use names: "
    "they may affect another pod",
)
_DORMANT = Fault(
    "table-dormant",
    Severity.PROBLEM,
    'a table with podwire\'s rules has the flag "dormant": no packet passes its rules, although all are there',
)
_EMPTY = Fault(
    "cluster-networks-empty",
    Severity.WARNING,
    'a network has "nonMasqueradeCluster", and the sets or chains for the networks of the cluster are empty: its pods '
    "reach pods of other nodes with the node's address instead of their own",
)


def _mixture(node: CheckedNode) -> Iterator[Finding]:
    legacy, modern = _iptables_tables(node, is_legacy=True), _iptables_tables(node, is_legacy=False)
    variant = os.path.basename(os.path.realpath(find_program("iptables-restore") or "none"))
    host = {"xtables-nft-multi": "nft", "xtables-legacy-multi": "legacy"}.get(variant, "")
    if legacy and modern:
        text = f"iptables-legacy has rules in {', '.join(legacy)}, iptables-nft in {', '.join(modern)}"
        # If iptables-legacy's policy drops pods' packets, only that is reported: the fix adds a rule there.
        which = f"iptables-{host}, the host's variant" if host else "one variant"
        fix = f"let all programs use {which}, and restart those that wrote the other rules"
        yield _MIXED.finding("iptables", text, f"{fix}; a reboot removes these", behind=(LEGACY,))
    else:
        text = f"iptables-restore is iptables-{host}" if host else "iptables-restore is not installed"
        yield ok_finding("mixture", "iptables", text)


def _iptables_tables(node: CheckedNode, *, is_legacy: bool) -> list[str]:
    """Returns the tables in which a variant of iptables has rules ("ip nat")."""
    ruleset = node.ruleset
    chains = (one for one in ruleset.chains if one.table in _TABLES and one.family in nft.NFPROTO.values())
    variant = (one for one in chains if bool(one.tool) == is_legacy and (is_legacy or one.name in _BUILT_IN))
    used = (one for one in variant if ruleset.rules.get(one.place) or (is_legacy and one.drops))
    return sorted({f"{FAMILY_NAMES[one.family]} {one.table}" for one in used})


def _firewalld(node: CheckedNode) -> Iterator[Finding]:
    if not firewalld.is_running():
        return
    for item in node.interfaces:
        has_plugin = any(plugin["type"] == "firewall" for plugin in item.network.plugins)
        if item.routed and not has_plugin:
            fix = f'add {{"type": "firewall"}} to "plugins" in {item.network.path}'
            if item.bridge:
                fix += f"; for the pods that run: firewall-cmd --zone=trusted --change-interface={item.bridge}"
            yield _FIREWALLD.finding(
                item.network.name, "firewalld is running, and no plugin adds the pods to a zone", fix
            )


def _stale(node: CheckedNode) -> Iterator[Finding]:
    """Compares the rules' owners with the cache, and if some are unknown, with those that `podwire gc` keeps.

    Rules of a network that is not in the cache are not reported.
    """
    names = {one.network_name for one in node.known}
    if not names or not _stale_owners(names, node.cached_owners):
        return
    for name, number in sorted(_stale_owners(names, node.owners_kept_by_gc).items()):
        text = f"there are rules of {plural(number, 'container')} no longer running, or not in the cache"
        yield _STALE.finding(name, text, node.command("gc", name))


def _stale_owners(names: set[str], running: Owners) -> dict[str, int]:
    """Returns the number of containers that have rules but are not in `running`, by network."""
    listed = read_rules()
    if listed.unseen:
        raise CniError(Code.IO_FAILURE, listed.unseen[0])
    keys = {key for network, attachment in running for key in owner_keys(network, attachment)}
    # Owner keys that are hashes begin with that of the network, as bytes or as hexadecimal digits.
    starts = {start: name for name in names for start in (nft_owner.hash_name(name), _digits(name))}
    stale: dict[str, dict[tuple[str, str], set[bytes]]] = {}
    for rule in listed.owned:
        network = rule.network or starts.get(rule.owner_key[: nft_owner.HASH_BYTES], "")
        if network in names and rule.owner_key and rule.owner_key not in keys:
            by_kind = stale.setdefault(network, {})
            by_kind.setdefault((rule.what, rule.backend), set()).add(rule.owner_key)
    # A container may have rules of several kinds, which name it differently.
    return {network: max(map(len, by_kind.values())) for network, by_kind in stale.items()}


def _dormant(node: CheckedNode) -> Iterator[Finding]:
    for family, name in sorted(node.ruleset.dormant):
        rules = [rule for place, rules in node.ruleset.rules.items() if place[:2] == (family, name) for rule in rules]
        owned = [rule for rule in rules if owner_of(rule.chain, rule) == PODWIRE]
        if owned:
            table = f"{FAMILY_NAMES[family]} {name}"
            text = (
                f"table {table} is dormant: no packet passes its rules, and {len(owned)} of {len(rules)} are podwire's"
            )
            wake = ShellCommand(f"nft add table {table}")
            advice = f"if the rules of others in it may work again, too: {wake}"
            yield _DORMANT.finding(table, text, wake if len(owned) == len(rules) else advice)


def _cluster(node: CheckedNode) -> Iterator[Finding]:
    """Reports that all sets and chains for the cluster's networks are empty."""
    names = [
        network.name
        for network in node.networks
        if any(plugin.get("ipMasq") and plugin.get("nonMasqueradeCluster") for plugin in network.plugins)
    ]
    if not names:
        return
    with nft.open_socket() as socket:
        existing = {place: bool(networks) for place, networks in cluster_netlink.list_networks(socket).items()}
    existing.update(_legacy_cluster_chains(node))
    if existing and not any(existing.values()):
        text = f"no networks of the cluster: {', '.join(existing)}"
        yield _EMPTY.finding(
            ", ".join(names),
            text,
            "start podwire-agent on this node; without it list the networks in `nonMasqueradeCIDRs`",
        )


def _legacy_cluster_chains(node: CheckedNode) -> Iterator[tuple[str, bool]]:
    """Yields the name of each such chain of iptables-legacy, and whether it accepts any network."""
    for chain in node.ruleset.chains:
        if chain.tool and chain.name == CLUSTER_CHAIN:
            rules = node.ruleset.rules.get(chain.place, ())
            yield f"chain nat {CLUSTER_CHAIN} ({chain.tool})", any(rule.words[-1] == "ACCEPT" for rule in rules)


def _digits(name: str) -> bytes:
    return nft_owner.hash_name(name).hex().encode()[: nft_owner.HASH_BYTES]


CHECKS = (
    Check(_GROUP, "mixture", "one variant of iptables has rules", _mixture, (_MIXED,)),
    Check(_GROUP, "firewalld", "firewalld is not running, or the pods are in a zone", _firewalld, (_FIREWALLD,)),
    Check(_GROUP, "dormant", "the tables with podwire's rules are in use", _dormant, (_DORMANT,)),
    Check(_GROUP, "cluster", "the networks of the cluster are known, or no network needs them", _cluster, (_EMPTY,)),
    Check(_GROUP, "stale", "all rules belong to running containers", _stale, (_STALE,)),
)
