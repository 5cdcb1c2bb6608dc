"""Masquerading with nftables, in the table of the reference plugins.

This module uses their chains, comments and hashes, so that either can delete the other's rules. A verb makes all its
changes in one transaction, and ADD keeps correct rules, since deletions are slow.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network

from attachment.masquerade.spec import Masquerade
from cni.conf import Attachment
from cni.errors import CniError
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, Hook, NftRule, NftSocket, Table
from kernel.netfilter.nft_dry_run import dry_run
from kernel.netfilter.nft_rule import RETURN
from kernel.netfilter.nft_set import ADDRESS, Set, set_request
from kernel.netfilter.owned import MASQUERADE, NFTABLES, OwnedRule, repairable_error
from kernel.rtnl import Request

TABLE = Table(
    nft.INET, "cni_plugins_masquerade", "Masquerading for plugins from github.com/containernetworking/plugins"
)
_CHECKS = Chain(
    TABLE, "masq_checks", comment="Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"
)
_POSTROUTING = Chain(TABLE, "postrouting", Hook("nat", 4, 100))  # NF_INET_POST_ROUTING, srcnat
CLUSTER_SETS = {
    version: Set(
        TABLE, f"podwire_cluster_{version}", (part,), "networks of the cluster, kept by podwire-agent", interval=True
    )
    for version, part in ADDRESS.items()
}
_MULTICAST = (IPv4Network("224.0.0.0/4"), IPv6Network("ff00::/8"))
_ENTRY = (
    *(nft_rule.of_version(network.version) + nft_rule.destination(network) + RETURN for network in _MULTICAST),
    nft_rule.goto(_CHECKS.name),
)
_NAMED = re.compile(
    r"(?P<mark>[0-9a-f]{16}-[0-9a-f]{16}), net: (?P<network>[^,]*), if: (?P<ifname>.*), id: (?P<container_id>[^,]*)"
)
_DELETIONS_MAX = 1000  # rules in one transaction: 2,800 fill a socket's send buffer
_REQUIREMENT = "masquerading with nftables needs a kernel that can do NAT in tables of family inet: Linux 5.2 or later"


def add(spec: Masquerade) -> None:
    """Masquerades an attachment; replaces the rules that it already has.

    Raises KernelError, and CniError(999) with a hint if the kernel does not support it.
    """
    with nft.open_socket() as socket:
        try:
            nft.retry(lambda: _add(socket, spec))
        except KernelError as error:
            raise CniError(error.code, error.msg, _problem(socket, *_set_requests(spec)) or error.details) from error


def delete(socket: NftSocket, spec: Masquerade) -> None:
    """Deletes the rules whose comment names the attachment; absence is success. Raises KernelError."""
    nft.retry(lambda: _delete(socket, _list_attachment_rules(socket, spec)))


def check(spec: Masquerade) -> None:
    """Checks that the attachment's rules exist; raises CniError(999) with the first missing one, KernelError."""
    with nft.open_socket() as socket:
        problem = _entry_problem(socket)
        if problem:
            raise repairable_error(problem)
        existing = iter(_list_attachment_rules(socket, spec))
        for text, expressions in _rules(spec):
            if not any(nft_rule.is_same_rule(expressions, rule.expressions) for rule in existing):
                raise repairable_error(f"rule {text} is missing in chain {_CHECKS}")


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid`; raises KernelError."""
    kept = {_prefix(network, item.container_id, item.ifname) for item in valid}
    network_prefix = _hash(network) + "-"

    def delete_stale_rules() -> None:
        stale = []
        for rule in nft.list_rules(socket, _CHECKS, network_prefix):
            prefix = rule.comment.partition(",")[0]
            if prefix.startswith(network_prefix) and prefix not in kept:
                stale.append(rule)
        _delete(socket, stale)

    nft.retry(delete_stale_rules)


def list_owned_rules(socket: NftSocket) -> list[OwnedRule]:
    """Lists the owners of the rules, each with its `owner_key`; raises KernelError."""
    existing = []
    for rule in nft.list_rules(socket, _CHECKS):
        comment = rule.comment
        named = _NAMED.fullmatch(comment) if len(comment.encode()) < nft_rule.COMMENT_MAX else None
        names = (named["network"], named["container_id"], named["ifname"]) if named else ("", "", "")
        existing.append(OwnedRule(MASQUERADE, NFTABLES, f"chain {_CHECKS}", comment.partition(",")[0].encode(), *names))
    return existing


def owner_key(network: str, container_id: str, ifname: str) -> bytes:
    """Returns the start of the comments of an attachment's rules."""
    return _prefix(network, container_id, ifname).encode()


def get_problem() -> str:
    """Returns why this kernel cannot masquerade with nftables, "" if it can; tries it without committing the change."""
    try:
        with nft.open_socket() as socket:
            return _problem(socket)
    except nft.UnavailableError as error:
        return str(error)


def _add(socket: NftSocket, spec: Masquerade) -> None:
    requests: list[Request] = []
    (entry,) = nft.get_chains(socket, _POSTROUTING)
    # The number of rules is enough here, since other programs add none to this chain; CHECK compares each rule.
    if entry != _POSTROUTING or entry.uses != len(_ENTRY):
        requests += [nft.table_request(TABLE), nft.chain_request(_CHECKS), nft.chain_request(_POSTROUTING)]
        # Flushed even if it was empty: another ADD may have filled it since.
        requests.append(nft.flush_chain_request(_POSTROUTING))
        requests += [nft.rule_request(_POSTROUTING, expressions) for expressions in _ENTRY]
    requests += _set_requests(spec)
    requests += map(_delete_request, _list_attachment_rules(socket, spec))
    userdata = nft_rule.comment_userdata(_comment(spec))
    requests += [nft.rule_request(_CHECKS, expressions, userdata) for _, expressions in _rules(spec)]
    nft.change(socket, *requests)


def _set_requests(spec: Masquerade) -> list[Request]:
    """Builds the requests that create the cluster's sets, which are filled by podwire-agent; existing ones stay."""
    versions = {address.version for address in spec.addresses} if spec.cluster else set()
    return [set_request(CLUSTER_SETS[version]) for version in sorted(versions)]


def _entry_problem(socket: NftSocket) -> str:
    """Returns why packets do not reach the chain of the attachments' rules, "" if they do."""
    (existing,) = nft.get_chains(socket, _POSTROUTING)
    if existing != _POSTROUTING:
        return f"chain {_POSTROUTING} is {'not called for NAT' if existing else 'missing'}"
    rules = nft.list_rules(socket, _POSTROUTING)
    same = len(rules) == len(_ENTRY) and all(
        nft_rule.is_same_rule(desired, rule.expressions) for desired, rule in zip(_ENTRY, rules, strict=True)
    )
    return "" if same else f"chain {_POSTROUTING} does not have exactly the rules that jump to {_CHECKS.name}"


def _delete(socket: NftSocket, rules: Sequence[NftRule]) -> None:
    for start in range(0, len(rules), _DELETIONS_MAX):
        nft.change(socket, *map(_delete_request, rules[start : start + _DELETIONS_MAX]))


def _delete_request(rule: NftRule) -> Request:
    return nft.delete_rule_request(_CHECKS, rule)


def _list_attachment_rules(socket: NftSocket, spec: Masquerade) -> list[NftRule]:
    prefix = _prefix(spec.network, spec.container_id, spec.ifname)
    return [rule for rule in nft.list_rules(socket, _CHECKS, prefix) if rule.comment.startswith(prefix)]


def _rules(spec: Masquerade) -> list[tuple[str, bytes]]:
    """Returns the attachment's rules in order, as text for messages and as expressions."""
    rules = []
    for address in spec.addresses:
        ip = "ip" if address.version == 4 else "ip6"
        start = nft_rule.of_version(address.version) + nft_rule.source(address.ip)
        for network in spec.exempt:
            if network.version == address.version:
                text = f'"{ip} saddr {address.ip} {ip} daddr {network} return"'
                rules.append((text, start + nft_rule.destination(network) + RETURN))
        if spec.cluster:
            name = CLUSTER_SETS[address.version].name
            text = f'"{ip} saddr {address.ip} {ip} daddr @{name} return"'
            rules.append((text, start + nft_rule.destination_in(address.version, name) + RETURN))
        text = f'"{ip} saddr {address.ip} {ip} daddr != {address.network} masquerade"'
        destination = nft_rule.destination(address.network, positive=False)
        rules.append((text, start + destination + nft_rule.masquerade()))
    return rules


def _problem(socket: NftSocket, *set_requests: Request) -> str:
    """Returns why ADD would fail, "" if it would not; the kernel validates ADD's requests without committing them."""
    rule = nft.rule_request(_CHECKS, nft_rule.masquerade())
    try:
        chains = nft.chain_request(_CHECKS), nft.chain_request(_POSTROUTING)
        dry_run(socket, nft.table_request(TABLE), *chains, *set_requests, rule)
    except KernelError as error:
        if error.errno == errno.EPERM:
            return str(error)
        if error.errno == errno.EEXIST:
            return f"another program created it with other properties: nft list table inet {TABLE.name} ({error})"
        return f"{_REQUIREMENT} ({error})"
    return ""


def _hash(text: str) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-512 sum, as in the reference plugins' comments."""
    return hashlib.sha512(text.encode()).hexdigest()[:16]


def _prefix(network: str, container_id: str, ifname: str) -> str:
    return f"{_hash(network)}-{_hash(f'{ifname}:{container_id}')}"


def _comment(spec: Masquerade) -> str:
    """Returns the comment that names an attachment, without double quotes: nft comments cannot contain them."""
    prefix = _prefix(spec.network, spec.container_id, spec.ifname)
    return f"{prefix}, net: {spec.network}, if: {spec.ifname}, id: {spec.container_id}".replace('"', "")
