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

import re
from collections.abc import Collection, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from attachment.masquerade.names import CLUSTER_CHAIN, ENTRY, MASQUERADE_CHAINS, chain_name
from attachment.masquerade.spec import Masquerade
from cni.address import Cidr, Network, as_network
from kernel.errors import KernelError
from kernel.netfilter import iptables, iptables_chains, nft
from kernel.netfilter.iptables_chains import TABLE, missing_error, quoted
from kernel.netfilter.iptables_direct import match_lines
from kernel.netfilter.nft import Chain, NftSocket, Table
from process.values import dataclass

_MULTICAST: dict[int, Network] = {4: IPv4Network("224.0.0.0/4"), 6: IPv6Network("ff00::/8")}

_RULE = re.compile(
    r"-A (?P<chain>\S+)(?: -s (?P<source>\S+))?(?:(?P<inverted> !)? -d (?P<destination>\S+))?"
    r'(?: -m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+))? -j (?P<target>\S+)'
)


def add(spec: Masquerade) -> None:
    """Creates the missing parts of the chain, and the missing jumps of `spec.addresses`; writes nothing if none is.

    Raises iptables.UnusableError, CniError(11), CniError(999); one family may then have its rules, and the rollback
    deletes them.
    """
    chain = chain_name(spec.network, spec.container_id)

    def missing(family: int, listing: list[str]) -> list[str]:
        existing = _parse(listing)
        exceptions, masquerade, jumps = _rules(spec, family)
        comment = _comment(spec)
        names = [CLUSTER_CHAIN, chain] if spec.cluster else [chain]
        lines = [f"-N {name}" for name in names if f"-N {name}" not in listing]
        absent = [rule for rule in exceptions if rule not in _before(masquerade, existing)]
        if masquerade in existing:  # exceptions precede it
            lines += [rule.line("-I", comment) for rule in reversed(absent)]
        else:
            lines += [rule.line("-A", comment) for rule in (*absent, masquerade)]
        return lines + [rule.line("-A", comment) for rule in jumps if rule not in existing]

    description = f"add masquerade rules to chain {chain}"
    shared = CLUSTER_CHAIN if spec.cluster else ""
    iptables_chains.change(_families(spec), MASQUERADE_CHAINS, chain, missing, description, shared)


def delete_legacy(spec: Masquerade, others: Collection[Cidr] = ()) -> None:
    """Deletes the attachment's jumps of iptables-legacy, and the chain with the last jump; absence is success.

    `others` are the addresses of the container's other interfaces: their jumps stay. All other jumps are deleted,
    whatever `spec.addresses` are: such an address is this interface's, or was before the container was restarted
    without DEL. Raises CniError(11), CniError(999).
    """
    chain = chain_name(spec.network, spec.container_id)
    kept = _sources(others)
    description = f"delete masquerade rules of chain {chain}"
    iptables_chains.delete_legacy({chain: MASQUERADE_CHAINS}, description, stays=lambda jump: _source(jump) in kept)


def check(spec: Masquerade) -> None:
    """Checks that chain, rules and jumps exist; raises CniError(999) with the first missing one, and as `add`."""
    if _exists_in_nft(spec):
        return
    chain = chain_name(spec.network, spec.container_id)
    for family, listing in iptables.read(_families(spec), TABLE, [ENTRY, chain]).items():
        if f"-N {chain}" not in listing:
            raise missing_error("masquerade", f"chain {chain}", family)
        existing = _parse(listing)
        exceptions, masquerade, jumps = _rules(spec, family)
        effective = set(_before(masquerade, existing))
        absent = [rule for rule in exceptions if rule not in effective]
        absent += [rule for rule in (masquerade, *jumps) if rule not in existing]
        if absent:
            comment = _comment(spec)
            raise missing_error("masquerade", f"rule {absent[0].line('-A', comment)}", family)


def gc_legacy(network: str, kept: Collection[str]) -> None:
    """Deletes the jumps and chains of iptables-legacy that are the network's and not in `kept`; raises CniError.

    Rules that are not provably the network's stay, and are reported on stderr.
    """
    iptables_chains.gc_legacy([MASQUERADE_CHAINS], network, frozenset(kept))


def get_problem() -> str:
    """Returns why iptables cannot masquerade IPv4, "" if it can; a host may be without IPv6."""
    return iptables.get_problem((4,))


def _exists_in_nft(spec: Masquerade) -> bool:
    """Returns whether iptables-nft's tables have all rules in the form that `add` writes; runs no program.

    False if a rule has another form: then `check` needs the program.
    """
    families = _families(spec)
    if any(iptables.has_legacy(family, TABLE) for family in families):
        return False
    try:
        with nft.open_socket() as socket:
            return all(_family_exists(socket, spec, family) for family in families)
    except KernelError:
        return False


def _family_exists(socket: NftSocket, spec: Masquerade, family: int) -> bool:
    table, chain = Table(iptables.NFPROTO[family], TABLE), chain_name(spec.network, spec.container_id)
    comment = _comment(spec)
    exceptions, masquerade, jumps = _rules(spec, family)
    first, (last, *entries) = (
        [rule.line("-A", comment) for rule in rules] for rules in (exceptions, (masquerade, *jumps))
    )
    existing = match_lines(family, [*first, last], nft.list_rules(socket, Chain(table, chain))) or []
    existing_entries = match_lines(family, entries, nft.list_rules(socket, Chain(table, ENTRY), chain + "\0")) or []
    return existing[-1:] == [last] and set(first) == set(existing[:-1]) and set(entries) == set(existing_entries)


@dataclass(frozen=True)
class _Rule:
    """A rule without its comment; a network is None if it contains every address."""

    chain: str
    target: str
    source: Network | None = None
    destination: Network | None = None
    inverted: bool = False

    def line(self, command: str, comment: str) -> str:
        """Returns the rule as iptables lists it, with `command` ("-A", "-I") in front."""
        source = f" -s {self.source}" if self.source else ""
        destination = f"{' !' if self.inverted else ''} -d {self.destination}" if self.destination else ""
        return f"{command} {self.chain}{source}{destination} -m comment --comment {comment} -j {self.target}"


def _rules(spec: Masquerade, family: int) -> tuple[list[_Rule], _Rule, list[_Rule]]:
    """Returns the chain's rules for traffic that is not masqueraded, the one that masquerades, and the jumps."""
    chain = chain_name(spec.network, spec.container_id)
    addresses = [item for item in spec.addresses if item.version == family]
    exempt = [*(item.network for item in addresses), *(item for item in spec.exempt if item.version == family)]
    exceptions = [_Rule(chain, "ACCEPT", destination=network if network.prefixlen else None) for network in exempt]
    exceptions += [_Rule(chain, CLUSTER_CHAIN)] if spec.cluster else []
    masquerade = _Rule(chain, "MASQUERADE", destination=_MULTICAST[family], inverted=True)
    jumps = [_Rule(ENTRY, chain, source=as_network(item.ip)) for item in addresses]
    return list(dict.fromkeys(exceptions)), masquerade, list(dict.fromkeys(jumps))


def _families(spec: Masquerade) -> list[int]:
    return sorted({item.version for item in spec.addresses})


def _comment(spec: Masquerade) -> str:
    """Returns the comment of all rules as iptables quotes it, truncated to xt_comment's limit."""
    return quoted(MASQUERADE_CHAINS.comment(spec.network, spec.container_id))


def _parse(listing: list[str]) -> list[_Rule]:
    """Returns the listed rules that have the form of `_Rule`."""
    existing = []
    for line in listing:
        if match := _RULE.fullmatch(line):
            source, destination = _network(match["source"]), _network(match["destination"])
            existing.append(_Rule(match["chain"], match["target"], source, destination, bool(match["inverted"])))
    return existing


def _before(rule: _Rule, existing: list[_Rule]) -> list[_Rule]:
    """Returns the rules before `rule`, all if it is missing: after it, an exception has no effect."""
    return existing[: existing.index(rule)] if rule in existing else existing


def _sources(addresses: Iterable[Cidr]) -> set[Network | None]:
    """Returns the networks that a jump may have as its source for an address: the address, before 0.7 its subnet."""
    return {network for item in addresses for network in (as_network(item.ip), item.network)}


def _source(line: str) -> Network | None:
    words = line.split()
    return _network(words[words.index("-s") + 1]) if "-s" in words else None


def _network(text: str | None) -> Network | None:
    try:
        return ip_network(text) if text else None
    except ValueError:  # iptables can match on bits that are no prefix
        return None
