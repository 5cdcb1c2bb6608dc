"""Checks for base chains at the hook forward, in any table, whose policy drops the pods' packets.

A chain whose rules name a network's bridge or pods is only a note: the administrator decides what it accepts.
nftables evaluates every base chain: a packet that one chain accepts can still be dropped by another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from shlex import quote

from cni.errors import CniError, Code
from cni.fields import Fields
from kernel.netfilter import iptables, nft, nft_rule
from kernel.netfilter.nft import Chain
from kernel.netfilter.nft_chains import FORWARD
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import Interface, Node
from podwire.output import plural
from process import child
from process.child import Command
from process.stderr import one_line

_GROUP = "packet filter"
_FAMILIES = {nft.IPV4: (4,), nft.IPV6: (6,), nft.INET: (4, 6)}
_NAMES = {nft.IPV4: "ip", nft.IPV6: "ip6", nft.INET: "inet"}
_LIMIT_S = 5.0
LEGACY = "iptables-legacy"  # a value of `Finding.objects`
_LOOKUP = b"lookup\0"  # a rule that looks up a set, whose elements are not read here
_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")

_DROPPED = Fault(
    "forward-drop",
    Severity.PROBLEM,
    "the policy of a chain drops forwarded packets, and no rule names the pods' bridge or addresses: pods reach only "
    "the host and their bridge. Docker, ufw and hand-written rule sets do that",
    'add {"type": "firewall"} to the network\'s plugins; for running pods: the commands in the finding',
)
_PERHAPS = Fault(
    "forward-policy",
    Severity.NOTE,
    "the policy of a chain drops forwarded packets; its rules name the pods, or look up sets: doctor does not know "
    "whether they accept the pods' packets",
    "inspect it: `nft list table FAMILY TABLE`",
)


def _policies(node: Node) -> Iterator[Finding]:
    routed = [item for item in node.interfaces if item.routed]
    if not routed:
        return
    chains = [chain for chain in node.chains if chain.hook and chain.hook.number == FORWARD]
    findings: list[Finding] = []
    for chain in chains:
        versions = _FAMILIES.get(chain.table.family, ())
        if chain.drops and versions:
            findings += _dropping(node, chain, [item for item in routed if item.versions.intersection(versions)])
    findings += _legacy(node, routed)
    yield from findings
    if not findings:
        policies = f"the policies of {plural(len(chains), 'chain')} at the hook forward, and of iptables-legacy"
        text = f"{policies}: none drops the pods' packets; rules that drop were not looked for"
        yield ok_finding("forward", "", text)


def _dropping(node: Node, chain: Chain, concerned: Iterable[Interface]) -> Iterator[Finding]:
    is_iptables = (chain.table.name, chain.name) == ("filter", "FORWARD")
    name = f"{_NAMES[chain.table.family]} {chain}"
    for item in concerned:
        if is_iptables and _has_firewall(item):
            continue
        policy = f"the policy of chain {name} ({_creator(node, chain)}) is to drop"
        if _names_pods(node, chain, item):
            table = f"{_NAMES[chain.table.family]} {chain.table.name}"
            fix = f"if pods have no connection, inspect the rules: nft list table {table}"
            yield _PERHAPS.finding(item.network.name, f"{policy}, but its rules may accept the pods' packets", fix)
        else:
            yield _DROPPED.finding(
                item.network.name, f"{policy}, and none of its rules names the pods", _accept_fix(node, chain, item)
            )


def _has_firewall(item: Interface) -> bool:
    """Returns whether the network has the plugin that accepts pods' packets in iptables' chain; CHECK verifies that."""
    return any(
        plugin["type"] == "firewall" and Fields(plugin).string("backend") != "nftables"
        for plugin in item.network.plugins
    )


def _names_pods(node: Node, chain: Chain, item: Interface) -> bool:
    """Returns whether a rule of the chain's table names the bridge or a pod's address, or looks up a set."""
    tokens = _tokens(node, item)
    chains = [other for other in node.chains if other.table == chain.table]
    with nft.open_socket() as socket:
        return any(
            nft.list_rules(socket, other, lambda message: any(token in message for token in tokens)) for other in chains
        )


def _tokens(node: Node, item: Interface) -> list[bytes]:
    pods = [one for one in node.running if one.network_name == item.network.name]
    tokens = [ip.address.ip.packed for one in pods for ip in one.typed_result.ips]
    if item.bridge:
        tokens.append(item.bridge.encode() + b"\0")
    for subnet in item.subnets:  # nft compares whole bytes without a mask
        whole, rest = divmod(subnet.prefixlen, 8)
        packed = subnet.network_address.packed
        tokens.append(nft_rule.compared_value(packed if rest else packed[:whole]))
    return [*tokens, _LOOKUP]


def _creator(node: Node, chain: Chain) -> str:
    """Returns the program that created a chain, by the other chains in its table."""
    names = {other.name for other in node.chains if other.table == chain.table}
    if "DOCKER-USER" in names:
        return "Docker's"
    if any(name.startswith("ufw") for name in names):
        return "ufw's"
    return "iptables'" if (chain.table.name, chain.name) == ("filter", "FORWARD") else "nftables"


def _accept_fix(node: Node, chain: Chain, item: Interface) -> str:
    family = _NAMES[chain.table.family]
    matches = _matches(item, _FAMILIES[chain.table.family])
    if (chain.table.name, chain.name) == ("filter", "FORWARD"):
        tool = iptables.TOOLS[6 if chain.table.family == nft.IPV6 else 4]
        into = "DOCKER-USER" if _creator(node, chain) == "Docker's" else "FORWARD"
        lasting = f'to make this permanent, add {{"type": "firewall"}} to "plugins" in {item.network.path}'
        return f"{' && '.join(f'{tool} -I {into} {match} -j ACCEPT' for match, _ in matches)} # {lasting}"
    where = f"{family} {chain.table.name} {chain.name}"
    return " && ".join(f"nft insert rule {where} {match} accept" for _, match in matches)


def _matches(item: Interface, versions: Iterable[int]) -> list[tuple[str, str]]:
    """Returns matches for the pods' packets in both directions, each in the syntax of iptables and of nftables."""
    if item.bridge:
        name = quote(item.bridge)
        return [(f"-i {name}", f"iifname {name}"), (f"-o {name}", f"oifname {name}")]
    matches: list[tuple[str, str]] = []
    for subnet in item.subnets:
        if subnet.version in versions:
            family = "ip" if subnet.version == 4 else "ip6"
            matches += [(f"-s {subnet}", f"{family} saddr {subnet}"), (f"-d {subnet}", f"{family} daddr {subnet}")]
    return matches


def _legacy(node: Node, routed: list[Interface]) -> Iterator[Finding]:
    """Checks the policies of iptables-legacy, if it has a table filter; only its program can list them."""
    for version, tool in iptables.TOOLS.items():
        program = legacy_program(version, "filter")
        if not program:
            continue
        lines = get_output_lines(program, "-S")
        if "-P FORWARD DROP" not in lines:
            continue
        for item in routed:
            matches = _matches(item, [version])
            named = any(f" {match} " in line for match, _ in matches for line in lines)
            if version not in item.versions or _has_firewall(item) or named:
                continue
            into = "DOCKER-USER" if any("DOCKER-USER" in line for line in lines) else "FORWARD"
            fix = " && ".join(f"{tool}-legacy -I {into} {match} -j ACCEPT" for match, _ in matches)
            text = f"the policy of chain FORWARD of {tool}-legacy is to drop, and none of its rules names the pods"
            yield _DROPPED.finding(item.network.name, text, fix, objects=(LEGACY,))


def find_program(name: str) -> str:
    """Returns the path of a system program, "" if it is not installed."""
    paths = (f"{directory}/{name}" for directory in _DIRECTORIES)
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def get_output_lines(program: str, *options: str) -> list[str]:
    """Runs a program and returns the lines of its output; raises CniError if it fails."""
    (outcome,) = child.run(Command((program, *options), {"LC_ALL": "C"}, capture_stderr=True), limit_s=_LIMIT_S)
    if outcome.status:
        stderr = one_line(outcome.stderr.decode("utf-8", "replace").strip())
        raise CniError(Code.IO_FAILURE, f"{' '.join((program, *options))}: {outcome.ending}: {stderr}")
    return outcome.stdout.decode("utf-8", "replace").splitlines()


def legacy_program(version: int, table: str) -> str:
    """Returns the path of iptables-legacy's program, "" if it has created no such table.

    Raises CniError if the table exists and the program is not installed: no other program lists its rules.
    """
    name = f"{iptables.TOOLS[version]}-legacy"
    if not iptables.has_legacy(version, table):
        return ""
    program = find_program(name)
    if not program:
        msg = f"{name} has rules in table {table}, but is not installed: the rules cannot be read"
        raise CniError(Code.IO_FAILURE, msg, f"install the program {name}")
    return program


CHECKS = (Check(_GROUP, "forward", "no network routes its pods through this host", _policies, (_DROPPED, _PERHAPS)),)
