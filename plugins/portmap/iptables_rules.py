r"""The iptables rules of host ports: the desired rules, the existing rules, and the changes from these to those.

This module is pure. No change affects a rule of another container.

    -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT                     (and OUTPUT)
    -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net\" id: \"cid\"" -m multiport --dports 8080,8081
        -j CNI-DN-x                                                                     jump rule
    -A CNI-DN-x -s 10.22.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK      mark rule: hairpin
    -A CNI-DN-x -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK      mark rule: 127.0.0.1
    -A CNI-DN-x -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80        DNAT rule
    -A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ

A mark rule sets a bit of the packet mark; CNI-HOSTPORT-MASQ masquerades packets that have it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from cni.address import Address
from cni.errors import internal
from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.iptables_chains import TABLE, ChainScheme, parse_owner
from kernel.netfilter.iptables_rule import (
    ChainList,
    IptablesChange,
    IptablesRule,
    address_text,
    comment_match,
    network_text,
    quoted,
)
from plugins.portmap.conf import HostPorts, PortMapping
from plugins.portmap.port_conflicts import ForeignRule, find_position, overlapping_mapping

DNAT, SETMARK, MASQ = "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"
DNAT_CHAINS = ChainScheme(DNAT, "CNI-DN-", "dnat ", "host port")
# Chains in which the reference plugin before 0.7.0 masqueraded. ADD does not create them; DEL and GC delete them.
OLD_CHAINS = ChainScheme("CNI-HOSTPORT-SNAT", "CNI-SN-", "snat ", "host port")

_PORTS_PER_RULE = 15  # XT_MULTI_PORTS (linux/netfilter/xt_multiport.h)

_CHAIN_RULE = re.compile(
    r"(?:-s \S+ )?(?:-d (\S+) )?-p (\w+) (?:-m (?:tcp|udp|sctp) )?--dport (\d+) -j (\S+)(?: --to-destination (\S+))?"
)
_PORTS = re.compile(r"\d+(?:,\d+)*")
_COMMENT = ("-m comment", "--comment")
_JUMP_FORMS = tuple(["-p", *comment, "-m multiport", "--dports", "-j"] for comment in (_COMMENT, ()))


def chain_name(host_ports: HostPorts) -> str:
    """Returns the name of the container's chain."""
    return DNAT_CHAINS.name(host_ports.network, host_ports.container_id)


def packet_mark(host_ports: HostPorts) -> int:
    """Returns the packet mark that selects packets to masquerade."""
    return 1 << host_ports.mark_bit


def shared_chains(host_ports: HostPorts) -> tuple[str, ...]:
    """Returns the shared chains that these host ports need."""
    return (DNAT, SETMARK, MASQ) if host_ports.snat and not host_ports.external_mark_chain else (DNAT,)


def shared_rules(host_ports: HostPorts) -> list[IptablesRule]:
    """Returns the rules in the shared chains, and those of built-in chains that jump to them: one for each chain."""
    rules = [IptablesRule(chain, f"-m addrtype --dst-type LOCAL -j {DNAT}") for chain in ("PREROUTING", "OUTPUT")]
    if MASQ in shared_chains(host_ports):
        mark = f"{packet_mark(host_ports):#x}/{packet_mark(host_ports):#x}"
        rules += [
            IptablesRule(SETMARK, f"{comment_match('CNI portfwd masquerade mark')} -j MARK --set-xmark {mark}"),
            IptablesRule(MASQ, f"-m mark --mark {mark} -j MASQUERADE"),
            IptablesRule("POSTROUTING", f"{comment_match('CNI portfwd requiring masquerade')} -j {MASQ}"),
        ]
    return rules


def desired_chain_rules(
    host_ports: HostPorts, version: int
) -> list[tuple[PortMapping, list[IptablesRule], IptablesRule]]:
    """Returns the rules of the container's chain: for each mapping the mark rules and the DNAT rule."""
    chain, pod = chain_name(host_ports), host_ports.addresses[version]
    sources: list[str] = []
    if host_ports.snat and host_ports.masq_all:
        sources = [""]
    elif host_ports.snat:
        sources = [f"-s {network_text(pod.network)} " if pod.network.prefixlen else ""]
        sources += ["-s 127.0.0.1/32 "] if version == 4 else []
    ip = str(pod.ip) if version == 4 else f"[{address_text(pod.ip.packed)}]"
    mark_chain = host_ports.external_mark_chain or SETMARK
    rules = []
    for mapping in host_ports.mappings_for(version):
        destination = f"-d {network_text(ip_network(mapping.bound_ip))} " if mapping.bound_ip else ""
        match = f"{destination}-p {mapping.protocol} -m {mapping.protocol} --dport {mapping.host_port}"
        mark_rules = [IptablesRule(chain, f"{source}{match} -j {mark_chain}") for source in sources]
        dnat_rule = IptablesRule(chain, f"{match} -j DNAT --to-destination {ip}:{mapping.container_port}")
        rules.append((mapping, mark_rules, dnat_rule))
    return rules


def all_chain_rules(host_ports: HostPorts, version: int) -> list[IptablesRule]:
    """Returns the rules of the container's chain in order."""
    return [
        rule
        for _, mark_rules, dnat_rule in desired_chain_rules(host_ports, version)
        for rule in (*mark_rules, dnat_rule)
    ]


def desired_jump_rules(host_ports: HostPorts, version: int) -> list[IptablesRule]:
    """Returns the jump rules to the container's chain, by protocol, with up to 15 ports each.

    They contain the ports of all mappings, whatever the IP version, as in the reference plugin.
    """
    words = "".join(f" {quoted(word)}" for word in host_ports.conditions.get(version, ()))
    comment = comment_match(DNAT_CHAINS.comment(host_ports.network, host_ports.container_id))
    rules = []
    for protocol in sorted({mapping.protocol for mapping in host_ports.mappings}):
        ports = [str(mapping.host_port) for mapping in host_ports.mappings if mapping.protocol == protocol]
        for start in range(0, len(ports), _PORTS_PER_RULE):
            group = ",".join(ports[start : start + _PORTS_PER_RULE])
            spec = f"-p {protocol} {comment} -m multiport --dports {group}{words} -j {chain_name(host_ports)}"
            rules.append(IptablesRule(DNAT, spec))
    return rules


class ChainRule(NamedTuple):
    """An existing rule of a container's chain that has the form that ADD creates.

    `destination` is the network that the rule matches ("192.0.2.1/32"), "" for all; `to` is the destination of a DNAT
    rule ("10.22.0.2:80").
    """

    rule: IptablesRule
    destination: str
    protocol: str
    port: int
    target: str
    to: str

    @property
    def host_ip(self) -> Address | None:
        """The host address that the rule matches, None for all or for a network."""
        address, _, prefix = self.destination.partition("/")
        return ip_address(address) if prefix == ("128" if ":" in address else "32") else None

    @property
    def dnat_ip(self) -> Address | None:
        """The address in `to`, None if it cannot be parsed."""
        try:
            return ip_address(self.to.rpartition(":")[0].strip("[]"))
        except ValueError:
            return None


def parse_chain_rules(listing: ChainList, chain: str) -> list[ChainRule]:
    """Returns the rules of a container's chain that have the form that ADD creates, in order; skips other rules."""
    return [parsed for rule in listing.rules(chain) if (parsed := parse_chain_rule(rule))]


def parse_chain_rule(rule: IptablesRule) -> ChainRule | None:
    """Parses a rule of a container's chain, None if it does not have the form that ADD creates."""
    if match := _CHAIN_RULE.fullmatch(rule.spec):
        destination, protocol, port, target, to = match.groups("")
        return ChainRule(rule, destination, protocol, int(port), target, to)
    return None


class JumpRule(NamedTuple):
    """An existing rule of CNI-HOSTPORT-DNAT; `target` is the chain that it jumps to, "" if there is none.

    `protocol` and `ports` are empty if the rule matches all of them, or does not have the form that ADD creates.
    `conditional`: the rule has additional matches. `network` and `container_id` name the owner, "" if it is unknown.
    """

    rule: IptablesRule
    target: str
    protocol: str
    ports: tuple[int, ...]
    conditional: bool
    network: str
    container_id: str


def parse_jump_rules(listing: ChainList) -> list[JumpRule]:
    """Returns the rules of CNI-HOSTPORT-DNAT, in order."""
    return [parse_jump_rule(rule) for rule in listing.rules(DNAT)]


def parse_jump_rule(rule: IptablesRule) -> JumpRule:
    """Parses a rule of CNI-HOSTPORT-DNAT."""
    options = rule.options
    first_values = dict(reversed(options))
    ports = first_values.get("--dports", "")
    numbers = tuple(map(int, ports.split(","))) if _PORTS.fullmatch(ports) else ()
    conditional = not numbers or [name for name, _ in options] not in _JUMP_FORMS
    return JumpRule(
        rule, rule.target, first_values.get("-p", ""), numbers, conditional, *parse_owner(rule.comment) or ("", "")
    )


def changes_for_add(
    host_ports: HostPorts, other_addresses: Collection[Address], version: int, listing: ChainList
) -> list[IptablesChange]:
    """Returns the changes that create the missing rules of `host_ports`, each in its position.

    `listing` has the built-in chains, the shared chains, the container's chain, and the chains of containers that may
    have published the same port. `other_addresses`: the addresses of the container's other interfaces; existing rules
    that forward to them are kept, and come first in the container's chain. Raises CniError(999) if the external mark
    chain is missing or the container's chain belongs to another container; CniError(11) if a port is in use.
    """
    _refuse_foreign_chain(host_ports, listing)
    if chain := _missing_mark_chain(host_ports, version, listing):
        raise internal(
            f'"externalSetMarkChain": chain {chain} is missing in table {TABLE} of {TOOLS[version]}',
            "create that chain before the network is used, name an existing one, or leave the key out",
        )
    chains = [IptablesChange.new_chain(chain) for chain in shared_chains(host_ports) if chain not in listing.chains]
    # The rule in POSTROUTING comes before other masquerading rules.
    shared = [
        IptablesChange.insert(rule) if rule.chain == "POSTROUTING" else IptablesChange.append(rule)
        for rule in shared_rules(host_ports)
        if rule not in listing
    ]
    kept = _rules_to_keep(host_ports, other_addresses, listing)
    chain_changes = _chain_changes(host_ports, version, listing, [item.rule for item in kept])
    return chains + shared + chain_changes + _jump_rule_changes(host_ports, version, listing, replace=not kept)


def changes_to_delete_interface_rules(
    host_ports: HostPorts, other_addresses: Collection[Address], listing: ChainList
) -> list[IptablesChange]:
    """Returns the changes that delete the container's rules but keep those that forward to `other_addresses`.

    Returns [] if no rule forwards to `other_addresses`. Keeps the jump rules of ports that are still forwarded.
    """
    kept = _rules_to_keep(host_ports, other_addresses, listing)
    if not kept:
        return []
    forwarded = {(rule.protocol, rule.port) for rule in kept}
    unused = [
        IptablesChange.delete(jump_rule.rule)
        for jump_rule in parse_jump_rules(listing)
        if jump_rule.target == chain_name(host_ports)
        and forwarded.isdisjoint((jump_rule.protocol, port) for port in jump_rule.ports)
    ]
    return [
        IptablesChange.flush_chain(chain_name(host_ports)),
        *(IptablesChange.append(item.rule) for item in kept),
        *unused,
    ]


def foreign_rules(
    host_ports: HostPorts, version: int, listing: ChainList, jump_rules: Iterable[JumpRule]
) -> list[tuple[JumpRule, ForeignRule]]:
    """Returns the foreign rules for the ports of `host_ports`, in order, each with the jump rule to its chain.

    A jump rule contains the ports; the rules of its chain show which ports are forwarded, and for which host address.
    Skips jump rules of the same container on other networks. Assumes that all rules of one network have the same
    conditions, since these cannot be parsed.
    """
    has_conditions = bool(host_ports.conditions.get(version))
    ports = {mapping.host_port for mapping in host_ports.mappings_for(version)}
    rules = []
    for jump_rule in jump_rules:
        if jump_rule.container_id == host_ports.container_id or (jump_rule.ports and ports.isdisjoint(jump_rule.ports)):
            continue
        conditional = jump_rule.conditional and not (has_conditions and jump_rule.network == host_ports.network)
        owner = jump_rule.network, jump_rule.container_id, conditional
        if jump_rule.target not in listing.chains:
            rules += [(jump_rule, ForeignRule(jump_rule.protocol, port, None, *owner)) for port in jump_rule.ports]
            continue
        for rule in parse_chain_rules(listing, jump_rule.target):
            matches = jump_rule.protocol in ("", rule.protocol) and (
                not jump_rule.ports or rule.port in jump_rule.ports
            )
            if matches and rule.target == "DNAT":
                rules.append((jump_rule, ForeignRule(rule.protocol, rule.port, rule.host_ip, *owner)))
    return rules


def dnat_addresses(host_ports: HostPorts, listing: ChainList) -> set[Address]:
    """Returns the addresses to which the container's chain forwards."""
    return {rule.dnat_ip for rule in parse_chain_rules(listing, chain_name(host_ports)) if rule.dnat_ip}


def _refuse_foreign_chain(host_ports: HostPorts, listing: ChainList) -> None:
    """Raises CniError(999) if a jump rule to the container's chain names another owner.

    The chain's name is a hash of network name and container ID without a separator, so two owners can have one name.
    """
    owner = (host_ports.network, host_ports.container_id)
    for jump_rule in parse_jump_rules(listing):
        if (
            jump_rule.target == chain_name(host_ports)
            and jump_rule.container_id
            and (jump_rule.network, jump_rule.container_id) != owner
        ):
            raise internal(
                f"chain {jump_rule.target} already belongs to container {jump_rule.container_id} "
                f"of network {jump_rule.network}",
                "the chain's name is a hash of network name and container ID, joined; both owners have the same joined "
                "text: rename one of the networks",
            )


def _missing_mark_chain(host_ports: HostPorts, version: int, listing: ChainList) -> str:
    chain = host_ports.external_mark_chain
    if not chain or chain in listing.chains:
        return ""
    return chain if any(mark_rules for _, mark_rules, _ in desired_chain_rules(host_ports, version)) else ""


def _rules_to_keep(host_ports: HostPorts, other_addresses: Collection[Address], listing: ChainList) -> list[ChainRule]:
    """Returns the DNAT rules that forward to `other_addresses`, and the mark rules of the same ports."""
    existing = parse_chain_rules(listing, chain_name(host_ports))
    forwarding = [rule for rule in existing if rule.target == "DNAT" and rule.dnat_ip in other_addresses]
    ports = {(rule.protocol, rule.port, rule.destination) for rule in forwarding}
    return [
        rule
        for rule in existing
        if rule in forwarding or (rule.target != "DNAT" and (rule.protocol, rule.port, rule.destination) in ports)
    ]


def _chain_changes(
    host_ports: HostPorts, version: int, listing: ChainList, kept: Sequence[IptablesRule]
) -> list[IptablesChange]:
    chain = chain_name(host_ports)
    start = IptablesChange.flush_chain(chain) if chain in listing.chains else IptablesChange.new_chain(chain)
    return [start, *map(IptablesChange.append, dict.fromkeys((*kept, *all_chain_rules(host_ports, version))))]


def _jump_rule_changes(
    host_ports: HostPorts, version: int, listing: ChainList, *, replace: bool
) -> list[IptablesChange]:
    """Returns the changes that create the missing jump rules; with `replace`, deletes the existing ones first.

    Jump rules keep their position, unless rules of containers that are no longer running come before them.
    """
    existing = parse_jump_rules(listing)
    indexes = [index for index, jump_rule in enumerate(existing) if jump_rule.target == chain_name(host_ports)]
    earlier = existing[: indexes[0]] if indexes else existing
    earlier_foreign = foreign_rules(host_ports, version, listing, earlier)
    foreign_index = find_position(host_ports, version, [foreign for _, foreign in earlier_foreign])
    if foreign_index is None:
        insertion_index = indexes[0] if indexes else len(existing)
    else:
        # After the rules of running containers for the same packets; if there are none, at the top of the chain.
        has_running = any(
            overlapping_mapping(host_ports, version, foreign) for _, foreign in earlier_foreign[:foreign_index]
        )
        insertion_index = earlier.index(earlier_foreign[foreign_index][0]) if has_running else 0
    present = [existing[index].rule for index in indexes]
    deletions = list(map(IptablesChange.delete, present)) if replace else []
    missing = [rule for rule in desired_jump_rules(host_ports, version) if replace or rule not in present]
    if insertion_index >= len(existing) - len(deletions):
        return deletions + list(map(IptablesChange.append, missing))
    first_position = insertion_index + 1
    return deletions + [IptablesChange.insert(rule, first_position + offset) for offset, rule in enumerate(missing)]
