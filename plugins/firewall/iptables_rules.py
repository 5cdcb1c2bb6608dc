r"""The firewall's rules as iptables lines: builds the desired rules, parses the existing ones.

This module is pure. A rule is the line that `iptables -S` prints, which iptables-restore accepts, too.

    -A FORWARD ... -j CNI-ISOLATION-STAGE-1                      first, if any network has a policy
    -A FORWARD ... -j CNI-FORWARD
    -A CNI-FORWARD ... -j CNI-ADMIN
    -A CNI-FORWARD -d 10.22.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A CNI-FORWARD -s 10.22.0.2/32 -j ACCEPT
    -A CNI-ISOLATION-STAGE-1 -i cni0 -o cni0 ... -j DROP         isolated only
    -A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 ... -j CNI-ISOLATION-STAGE-2
    -A CNI-ISOLATION-STAGE-2 -o cni0 ... -j DROP

These are the reference plugin's rules, which do not name their owner. A further chain, to which no rule jumps, does:

    -A CNI-FORWARD-OWNERS -s 10.22.0.2/32 -m comment --comment "name: \"net\" id: \"cid\" if: \"eth0\""
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Address
from cni.conf import Attachment
from kernel.netfilter.iptables_chains import COMMENT_BYTES
from kernel.netfilter.iptables_listing import render_comment
from plugins.firewall.spec import ISOLATED, SAME_BRIDGE, FirewallSpec

TABLE = "filter"
ENTRY, FORWARD, OWNERS = "FORWARD", "CNI-FORWARD", "CNI-FORWARD-OWNERS"
STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"

_FORWARD_COMMENT = render_comment("CNI firewall plugin rules")
_ADMIN_COMMENT = render_comment("CNI firewall plugin admin overrides")
_STAGES_COMMENT = render_comment("CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)")
_POLICY_COMMENTS = {
    policy: render_comment(f"CNI firewall plugin rules (ingressPolicy: {policy})") for policy in (SAME_BRIDGE, ISOLATED)
}

FORWARD_JUMP = f"-A {ENTRY} {_FORWARD_COMMENT} -j {FORWARD}"
ISOLATION_JUMP = f"-A {ENTRY} {_STAGES_COMMENT} -j {STAGE_1}"
ENDS = {chain: f"-A {chain} {_STAGES_COMMENT} -j RETURN" for chain in (STAGE_1, STAGE_2)}

_HASH_DIGITS = 32
_STAGE_RULE = re.compile(rf"-A (?:{STAGE_1} -i|{STAGE_2} -o) (\S+) .*")
_ADDRESS_RULE = re.compile(
    rf"-A {FORWARD} (?:-s (\S+)/(?:32|128) -j ACCEPT"
    r"|-d (\S+)/(?:32|128) -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT)"
)
_RECORD = re.compile(rf"-A {OWNERS} -s (\S+)/(?:32|128) (-m comment --comment .*)")
_NAMED = re.compile(r'name: "(?P<network>[^"]+)" id: "(?P<container_id>[^"]+)" if: "(?P<ifname>.+)"')
_QUOTED = re.compile(r"\\(.)")


class Record(NamedTuple):
    """The owner of an address: `match` is the comment as iptables lists it, `line` the rule."""

    address: Address
    match: str
    line: str

    @property
    def owner(self) -> tuple[str, Attachment] | None:
        """The network and the attachment, None if the comment has hashes because the names are too long."""
        text = _QUOTED.sub(r"\1", self.match.removeprefix('-m comment --comment "').removesuffix('"'))
        named = _NAMED.fullmatch(text)
        return (named["network"], Attachment(named["container_id"], named["ifname"])) if named else None


def normalize(line: str) -> str:
    """Returns a rule as the reference plugin writes it since 1.7.0; older comments of shared rules name one policy."""
    shared = line.startswith((f"-A {ENTRY} ", f"-A {STAGE_2} ")) or line.endswith(" RETURN")
    return line.replace(_POLICY_COMMENTS[SAME_BRIDGE], _STAGES_COMMENT) if shared else line


def admin_jump(chain: str) -> str:
    """Returns the rule that jumps to the administrator's chain, before the rules of addresses."""
    return f"-A {FORWARD} {_ADMIN_COMMENT} -j {chain}"


def address_rules(address: Address) -> list[str]:
    """Returns the rules that accept packets from an address, and replies to it."""
    network = f"{address}/{address.max_prefixlen}"
    return [
        f"-A {FORWARD} -d {network} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        f"-A {FORWARD} -s {network} -j ACCEPT",
    ]


def policy_rules(policy: str, bridge: str) -> list[str]:
    """Returns the rules of a bridge with a policy, in the order of their chains."""
    comment = _POLICY_COMMENTS[policy]
    isolation = [f"-A {STAGE_1} -i {bridge} -o {bridge} {comment} -j DROP"] if policy == ISOLATED else []
    return [
        *isolation,
        f"-A {STAGE_1} -i {bridge} ! -o {bridge} {comment} -j {STAGE_2}",
        f"-A {STAGE_2} -o {bridge} {_STAGES_COMMENT} -j DROP",
    ]


def other_policy_rules(policy: str, bridge: str) -> list[str]:
    """Returns the rules that a bridge has only with the other policy."""
    other = SAME_BRIDGE if policy == ISOLATED else ISOLATED
    desired = policy_rules(policy, bridge)
    return [rule for rule in policy_rules(other, bridge) if rule not in desired]


def interface_of(line: str) -> str:
    """Returns the interface that a policy's rule matches, "" for any other rule."""
    match = _STAGE_RULE.fullmatch(line)
    return match[1] if match else ""


def address_of(line: str) -> Address | None:
    """Returns the address that a rule in CNI-FORWARD accepts, None for any other rule."""
    match = _ADDRESS_RULE.fullmatch(line)
    return ip_address(match[1] or match[2]) if match else None


def record_rule(spec: FirewallSpec, address: Address) -> str:
    """Returns the rule that records the owner of an address."""
    comment = owner_comment(spec.network, Attachment(spec.container_id, spec.ifname))
    return f"-A {OWNERS} -s {address}/{address.max_prefixlen} {comment}"


def parse_records(listing: Iterable[str]) -> list[Record]:
    """Returns the records in a listing."""
    matches = (_RECORD.fullmatch(line) for line in listing)
    return [Record(ip_address(match[1]), match[2], match[0]) for match in matches if match]


def owner_comment(network: str, attachment: Attachment) -> str:
    """Returns the comment of an attachment's records, as iptables lists it."""
    return render_comment(owner_text(network, attachment))


def owner_text(network: str, attachment: Attachment) -> str:
    """Returns the text of that comment; if the names are too long, it has hashes instead."""
    text = f'{_network(network)}id: "{attachment.container_id}" if: "{attachment.ifname}"'
    if len(text.encode(errors="surrogateescape")) > COMMENT_BYTES:
        text = f"{_hashed_network(network)}owner-sha512: {_hash(text)}"
    return text


def is_of_network(record: Record, network: str) -> bool:
    """Returns whether a record belongs to an attachment of a network."""
    starts = (render_comment(start + "-").removesuffix('-"') for start in (_network(network), _hashed_network(network)))
    return record.match.startswith(tuple(starts))


def _network(network: str) -> str:
    return f'name: "{network}" '


def _hashed_network(network: str) -> str:
    return f"name-sha512: {_hash(network)} "


def _hash(text: str) -> str:
    return hashlib.sha512(text.encode(errors="surrogateescape")).hexdigest()[:_HASH_DIGITS]
