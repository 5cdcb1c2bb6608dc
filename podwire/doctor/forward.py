"""Who drops what pods send and get: chains at the hook forward whose policy is to drop, in whatever table.

One rule: of a chain whose rules speak of a network's bridge or pods nothing bad is told: what they let through is the
administrator's affair. nftables asks every chain: that one accepts a packet helps nothing against another's drop.
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
LEGACY = "iptables-legacy"  # as an object of findings
_LOOKUP = b"lookup\0"  # a rule that asks a set, whose elements are not read here
_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")

_DROPPED = Fault(
    "forward-drop",
    Severity.PROBLEM,
    "a chain drops what is forwarded unless a rule lets it through, and none names the pods' bridge or addresses: "
    "they reach the host and their bridge only. Docker, ufw and hand-made rule sets do that",
    'add {"type": "firewall"} to the network\'s plugins; for the pods that run: the commands that are told',
)
_PERHAPS = Fault(
    "forward-policy",
    Severity.NOTE,
    "a chain drops what none of its rules lets through, and has rules for the pods, or asks sets: whether they suffice "
    "cannot be told from here",
    "look at it: `nft list table FAMILY TABLE`",
)


def _policies(node: Node) -> Iterator[Finding]:
    routed = [item for item in node.interfaces if item.routed]
    if not routed:
        return
    chains = [chain for chain in node.chains if chain.hook and chain.hook.number == FORWARD]
    found: list[Finding] = []
    for chain in chains:
        versions = _FAMILIES.get(chain.table.family, ())
        if chain.drops and versions:
            found += _dropping(node, chain, [item for item in routed if item.versions.intersection(versions)])
    found += _legacy(node, routed)
    yield from found
    if not found:
        looked_at = f"the policies of {plural(len(chains), 'chain')} at the hook forward, and of iptables-legacy"
        text = f"{looked_at}: none drops the pods' packets; rules that drop were not looked for"
        yield ok_finding("forward", "", text)


def _dropping(node: Node, chain: Chain, concerned: Iterable[Interface]) -> Iterator[Finding]:
    is_iptables = (chain.table.name, chain.name) == ("filter", "FORWARD")
    name = f"{_NAMES[chain.table.family]} {chain}"
    for item in concerned:
        if is_iptables and _has_firewall(item):
            continue
        told = f"the policy of chain {name} ({_whose(node, chain)}) is to drop"
        if _speaks_of(node, chain, item):
            fix = f"if pods reach nothing: nft list table {_NAMES[chain.table.family]} {chain.table.name}"
            yield _PERHAPS.finding(item.network.name, f"{told}, and its rules may let the pods through", fix)
        else:
            yield _DROPPED.finding(
                item.network.name, f"{told}, and no rule of it is for its pods", _cure(node, chain, item)
            )


def _has_firewall(item: Interface) -> bool:
    """Tells whether the list has the plugin that lets pods pass iptables' chain; CHECK tells whether it did."""
    return any(
        plugin["type"] == "firewall" and Fields(plugin).string("backend") != "nftables"
        for plugin in item.network.plugins
    )


def _speaks_of(node: Node, chain: Chain, item: Interface) -> bool:
    """Tells whether a rule of the chain's table names the bridge or a pod's address, or asks a set."""
    tokens = _tokens(node, item)
    chains = [other for other in node.chains if other.table == chain.table]
    with nft.open_socket() as socket:
        return any(
            nft.list_rules(socket, other, lambda message: any(token in message for token in tokens)) for other in chains
        )


def _tokens(node: Node, item: Interface) -> list[bytes]:
    pods = [one for one in node.living if one.network_name == item.network.name]
    found = [ip.address.ip.packed for one in pods for ip in one.typed_result.ips]
    if item.bridge:
        found.append(item.bridge.encode() + b"\0")
    for subnet in item.subnets:  # whole bytes are compared as such, others behind a mask
        whole, rest = divmod(subnet.prefixlen, 8)
        found.append(
            nft_rule.compared_value(subnet.network_address.packed if rest else subnet.network_address.packed[:whole])
        )
    return [*found, _LOOKUP]


def _whose(node: Node, chain: Chain) -> str:
    """Names who made a chain, by what else is in its table."""
    names = {other.name for other in node.chains if other.table == chain.table}
    if "DOCKER-USER" in names:
        return "Docker's"
    if any(name.startswith("ufw") for name in names):
        return "ufw's"
    return "iptables'" if (chain.table.name, chain.name) == ("filter", "FORWARD") else "nftables"


def _cure(node: Node, chain: Chain, item: Interface) -> str:
    family = _NAMES[chain.table.family]
    ways = _ways(item, _FAMILIES[chain.table.family])
    if (chain.table.name, chain.name) == ("filter", "FORWARD"):
        tool = iptables.TOOLS[6 if chain.table.family == nft.IPV6 else 4]
        into = "DOCKER-USER" if _whose(node, chain) == "Docker's" else "FORWARD"
        lasting = f'for good: add {{"type": "firewall"}} to "plugins" in {item.network.path}'
        return f"{' && '.join(f'{tool} -I {into} {way} -j ACCEPT' for way, _ in ways)} # {lasting}"
    where = f"{family} {chain.table.name} {chain.name}"
    return " && ".join(f"nft insert rule {where} {way} accept" for _, way in ways)


def _ways(item: Interface, versions: Iterable[int]) -> list[tuple[str, str]]:
    """Returns what tells the pods' packets, both ways, in the words of iptables and of nftables."""
    if item.bridge:
        name = quote(item.bridge)
        return [(f"-i {name}", f"iifname {name}"), (f"-o {name}", f"oifname {name}")]
    found = []
    for subnet in item.subnets:
        if subnet.version in versions:
            family = "ip" if subnet.version == 4 else "ip6"
            found += [(f"-s {subnet}", f"{family} saddr {subnet}"), (f"-d {subnet}", f"{family} daddr {subnet}")]
    return found


def _legacy(node: Node, routed: list[Interface]) -> Iterator[Finding]:
    """Asks iptables-legacy, where it has made the table filter: no other way leads to its policies."""
    for version, tool in iptables.TOOLS.items():
        program = legacy_program(version, "filter")
        if not program:
            continue
        lines = listed(program, "-S")
        if "-P FORWARD DROP" not in lines:
            continue
        for item in routed:
            ways = _ways(item, [version])
            named = any(f" {way} " in line for way, _ in ways for line in lines)
            if version not in item.versions or _has_firewall(item) or named:
                continue
            into = "DOCKER-USER" if any("DOCKER-USER" in line for line in lines) else "FORWARD"
            fix = " && ".join(f"{tool}-legacy -I {into} {way} -j ACCEPT" for way, _ in ways)
            text = f"the policy of chain FORWARD of {tool}-legacy is to drop, and no rule of it is for its pods"
            yield _DROPPED.finding(item.network.name, text, fix, objects=(LEGACY,))


def found_program(name: str) -> str:
    """Returns the path of a program of the system, "" when it is not there."""
    paths = (f"{directory}/{name}" for directory in _DIRECTORIES)
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def listed(program: str, *options: str) -> list[str]:
    """Returns the lines that a program prints; raises CniError when it fails."""
    (outcome,) = child.run(Command((program, *options), {"LC_ALL": "C"}, capture_stderr=True), limit_s=_LIMIT_S)
    if outcome.status:
        said = one_line(outcome.stderr.decode("utf-8", "replace").strip())
        raise CniError(Code.IO_FAILURE, f"{' '.join((program, *options))}: {outcome.ending}: {said}")
    return outcome.stdout.decode("utf-8", "replace").splitlines()


def legacy_program(version: int, table: str) -> str:
    """Returns iptables-legacy's program where it has made a table, "" where it has not.

    Raises CniError where it has and the program is not installed: nothing else shows its rules.
    """
    name = f"{iptables.TOOLS[version]}-legacy"
    if not iptables.has_legacy(version, table):
        return ""
    program = found_program(name)
    if not program:
        msg = f"{name} made table {table} and is not installed: its rules cannot be read"
        raise CniError(Code.IO_FAILURE, msg, f"install the program {name}")
    return program


CHECKS = (Check(_GROUP, "forward", "no network routes its pods by this host", _policies, (_DROPPED, _PERHAPS)),)
