"""Checks the packet filter: variants of iptables, firewalld, the cluster's networks, rules of stopped containers.

The owner of a rule is read from the rule itself; a rule that names no owner is ignored.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator

from attachment.masquerade import cluster_netlink
from attachment.masquerade.names import CLUSTER_CHAIN
from cni.conf import Attachment
from kernel.netfilter import iptables, nft, nft_owner
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.netfilter.ruleset import FAMILY_NAMES
from plugins.firewall import firewalld
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode
from podwire.doctor.rules import LEGACY
from podwire.doctor.shell_command import ShellCommand
from podwire.node.programs import find_program, list_legacy_rules
from podwire.node.rule_owners import PODWIRE, owner_of
from podwire.output import plural

Owners = frozenset[tuple[str, Attachment]]  # with their networks

_GROUP = "packet filter"
_TABLES = ("filter", "nat", "mangle", "raw")
_BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
# The comment that the reference plugins and podwire give to the jump into a container's chain.
_OWNER = re.compile(rb'name: "([^"\\]+)" id: "([^"\\]+)"')
_LISTED_OWNER = re.compile(r'name: \\"([^"\\]+)\\" id: \\"([^"\\]+)\\"')
_LISTED = ("-A POSTROUTING ", "-A CNI-HOSTPORT-DNAT ")
_JUMPS = tuple(
    Chain(Table(family, "nat"), name)
    for family in nft.NFPROTO.values()
    for name in ("POSTROUTING", "CNI-HOSTPORT-DNAT")
)
_MASQUERADED = Chain(Table(nft.INET, "cni_plugins_masquerade"), "masq_checks")
_HASH_DIGITS = 16

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
    legacy = list(_legacy_tables())
    modern = sorted(
        {
            f"{'ip' if chain.table.family == nft.IPV4 else 'ip6'} {chain.table.name}"
            for chain in node.chains
            if chain.table.family in nft.NFPROTO.values()
            and chain.table.name in _TABLES
            and chain.uses
            and chain.name in _BUILT_IN
        }
    )
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


def _legacy_tables() -> Iterator[str]:
    """Yields the tables in which iptables-legacy has rules ("ip nat"), as listed by its program."""
    for version in iptables.TOOLS:
        for table in _TABLES:
            if any(line.startswith("-A ") or line.endswith(" DROP") for line in list_legacy_rules(version, table)):
                yield f"{'ip' if version == 4 else 'ip6'} {table}"


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
    if not names or not _stale_owners(node, names, node.cached_owners):
        return
    for name, number in sorted(_stale_owners(node, names, node.owners_kept_by_gc).items()):
        text = f"there are rules of {plural(number, 'container')} no longer running, or not in the cache"
        yield _STALE.finding(name, text, node.command("gc", name))


def _stale_owners(node: CheckedNode, names: set[str], running: Owners) -> dict[str, int]:
    """Returns the number of containers that have rules but are not in `running`, by network."""
    jumps: dict[str, set[str]] = {}
    marks: dict[str, set[str]] = {}
    with nft.open_socket() as socket:
        _stale_jumps(socket, names, running, jumps)
        _stale_masquerading(socket, names, running, marks)
        _stale_owned(node, socket, names, running, marks)
    _stale_legacy(names, running, jumps)
    # A container may have rules of both kinds, which name it differently.
    return {name: max(len(jumps.get(name, ())), len(marks.get(name, ()))) for name in {*jumps, *marks}}


def _stale_jumps(socket: NftSocket, names: set[str], running: Owners, counts: dict[str, set[str]]) -> None:
    containers = {(network, attachment.container_id) for network, attachment in running}
    for chain in _JUMPS:
        for rule in nft.list_rules(socket, chain, 'name: "'):
            owner = _OWNER.search(rule.expressions + rule.userdata)
            if owner:
                network, container_id = (part.decode(errors="replace") for part in owner.groups())
                if network in names and (network, container_id) not in containers:
                    counts.setdefault(network, set()).add(container_id)


def _stale_legacy(names: set[str], running: Owners, counts: dict[str, set[str]]) -> None:
    """Adds the containers with rules that iptables-legacy's program lists."""
    containers = {(network, attachment.container_id) for network, attachment in running}
    for version in iptables.TOOLS:
        for line in list_legacy_rules(version, "nat"):
            owner = _LISTED_OWNER.search(line) if line.startswith(_LISTED) else None
            if owner and owner[1] in names and owner.groups() not in containers:
                counts.setdefault(owner[1], set()).add(owner[2])


def _stale_masquerading(socket: NftSocket, names: set[str], running: Owners, counts: dict[str, set[str]]) -> None:
    by_hash = {_digits(name): name for name in names}
    marks = {
        f"{_digits(network)}-{_digits(f'{attachment.ifname}:{attachment.container_id}')}"
        for network, attachment in running
    }
    for rule in nft.list_rules(socket, _MASQUERADED):
        mark = rule.comment[: 2 * _HASH_DIGITS + 1]
        network = by_hash.get(mark[:_HASH_DIGITS])
        if network and mark not in marks:
            counts.setdefault(network, set()).add(mark[_HASH_DIGITS + 1 :])


def _stale_owned(
    node: CheckedNode, socket: NftSocket, names: set[str], running: Owners, counts: dict[str, set[str]]
) -> None:
    by_hash = {nft_owner.hash_name(name): name for name in names}
    owners = {nft_owner.owner_id(network, *attachment) for network, attachment in running}
    for chain in node.chains:
        if chain.table.name == "cni_hostport":
            for rule in nft.list_rules(socket, chain):
                owner = nft_owner.parse_owner(rule.userdata)
                network = by_hash.get(owner[: nft_owner.HASH_BYTES])
                if network and owner not in owners:
                    counts.setdefault(network, set()).add(owner[nft_owner.HASH_BYTES :].hex()[:_HASH_DIGITS])


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
    existing.update(_legacy_cluster_chains())
    if existing and not any(existing.values()):
        text = f"no networks of the cluster: {', '.join(existing)}"
        yield _EMPTY.finding(
            ", ".join(names),
            text,
            "start podwire-agent on this node; without it list the networks in `nonMasqueradeCIDRs`",
        )


def _legacy_cluster_chains() -> Iterator[tuple[str, bool]]:
    """Yields the name of each such chain of iptables-legacy, and whether it accepts any network."""
    for version, tool in iptables.TOOLS.items():
        lines = list_legacy_rules(version, "nat")
        if f"-N {CLUSTER_CHAIN}" in lines:
            rules = (line for line in lines if line.startswith(f"-A {CLUSTER_CHAIN} "))
            yield f"chain nat {CLUSTER_CHAIN} ({tool}-legacy)", any(rule.endswith(" -j ACCEPT") for rule in rules)


def _digits(text: str) -> str:
    return hashlib.sha512(text.encode()).hexdigest()[:_HASH_DIGITS]


CHECKS = (
    Check(_GROUP, "mixture", "one variant of iptables has rules", _mixture, (_MIXED,)),
    Check(_GROUP, "firewalld", "firewalld is not running, or the pods are in a zone", _firewalld, (_FIREWALLD,)),
    Check(_GROUP, "dormant", "the tables with podwire's rules are in use", _dormant, (_DORMANT,)),
    Check(_GROUP, "cluster", "the networks of the cluster are known, or no network needs them", _cluster, (_EMPTY,)),
    Check(_GROUP, "stale", "all rules belong to running containers", _stale, (_STALE,)),
)
