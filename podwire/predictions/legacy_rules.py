"""Rules of iptables-legacy, as its program lists them: whether they match a packet, and what they do to it."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from itertools import pairwise

from cni.address import Address
from kernel.netfilter.packet import Packet
from podwire.predictions.verdicts import UNCHANGED, Match, RuleAction
from podwire.predictions.xt_rules import PARTIAL, SMALLEST_MSS

_PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "ipv6-icmp": 58, "sctp": 132, "all": 0}
_STATES = {"INVALID": 1, "ESTABLISHED": 2, "RELATED": 4, "NEW": 8, "UNTRACKED": 64}
_TYPES = {"UNICAST": 1, "LOCAL": 2, "BROADCAST": 3, "MULTICAST": 5}
_ACTIONS = {
    "ACCEPT": "accept",
    "DROP": "drop",
    "REJECT": "reject",
    "RETURN": "return",
    "MASQUERADE": "masquerade",
    "REDIRECT": "redirect",
    "NOTRACK": "untrack",
    "DNAT": "dnat",
    "SNAT": "snat",
    "QUEUE": "queue",
}
_CONTINUES = (
    "LOG",
    "MARK",
    "CONNMARK",
    "TCPMSS",
    "TTL",
    "HL",
    "CT",
    "CHECKSUM",
    "NFLOG",
    "SET",
    "TEE",
    "TOS",
    "DSCP",
    "CLASSIFY",
)


def services(words: tuple[str, ...]) -> list[tuple[int, int]]:
    """Returns the protocol with each destination port that a rule compares."""
    options = dict(pairwise(words))
    protocol = _PROTOCOLS.get(options.get("-p", ""), 0)
    texts = (options.get("--dport", ""), *options.get("--dports", "").split(","))
    ports = [int(text.partition(":")[0]) for text in texts if text.partition(":")[0].isdigit()]
    return [(number, port) for port in ports for number in ([protocol] if protocol else [6, 17])]


def evaluate(words: tuple[str, ...], packet: Packet) -> tuple[Match, RuleAction | None, object]:
    """Returns whether a rule matches, its action, None for one that lets the packet continue, and the mark it sets."""
    match = Match.YES
    options = list(_options(words))
    partial = any(name == "-m" and module in PARTIAL for name, _, module in options)
    for name, inverted, value in options:
        if name in ("-j", "-g"):
            break
        result = _condition(name, value, packet)
        if name == "-m" and value in PARTIAL:
            match = min(match, Match.SOME)
        elif result is None:
            match = min(match, Match.SOME if partial else Match.MAYBE)
        elif result == inverted:
            return Match.NO, None, UNCHANGED
    return match, *_end(options, packet)


def _options(words: tuple[str, ...]) -> Iterator[tuple[str, bool, str]]:
    inverted, index = False, 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "!":
            inverted = True
        elif word.startswith("-"):
            values = []
            while index < len(words) and not words[index].startswith("-") and words[index] != "!":
                values.append(words[index])
                index += 1
            yield word, inverted, " ".join(values)
            inverted = False


def _condition(name: str, value: str, packet: Packet) -> bool | None:
    """Returns whether a packet has what an option says, None if that is not known."""
    if name in ("-s", "-d"):
        if packet.unknown_address[:1] == name[1]:
            return None
        address = packet.source if name == "-s" else packet.destination
        return address in ip_network(value, strict=False)
    if name in ("-i", "-o"):
        interface = packet.iif if name == "-i" else packet.oif
        return interface.startswith(value[:-1]) if value.endswith("+") else interface == value
    if name == "-p":
        number = _PROTOCOLS.get(value, int(value) if value.isdigit() else -1)
        return number in (0, packet.protocol)
    if name in ("--dport", "--sport", "--dports", "--sports"):
        return _has_port(packet.port if name.startswith("--d") else packet.source_port, value)
    if name in ("--ctstate", "--state"):
        states = sum(_STATES.get(one, 0) for one in value.split(","))
        nat = (packet.status & 0x20 and "DNAT" in value) or (packet.status & 0x10 and "SNAT" in value)
        return bool(packet.state & states or nat)
    if name in ("--dst-type", "--src-type"):
        kind = packet.destination_type if name == "--dst-type" else packet.source_type
        return kind in [_TYPES.get(one, 0) for one in value.split(",")]
    if name == "--mark" and packet.mark is not None:
        mark, _, mask = value.partition("/")
        return packet.mark & int(mask or "0xffffffff", 0) == int(mark, 0)
    if name in ("-m", "--comment"):
        return True
    return None


def _has_port(port: int | None, value: str) -> bool | None:
    if port is None:
        return None
    for text in value.split(","):
        first, _, last = text.partition(":")
        if int(first or 0) <= port <= int(last or (first if ":" not in text else 65535)):
            return True
    return False


def _end(options: list[tuple[str, bool, str]], packet: Packet) -> tuple[RuleAction | None, object]:
    values = {name: value for name, _, value in options}
    if "-g" in values:
        return RuleAction("goto", values["-g"]), UNCHANGED
    target = values.get("-j", "")
    if target == "NFQUEUE":
        number = values.get("--queue-num") or values.get("--queue-balance", "0").partition(":")[0]
        return (None if "--queue-bypass" in values else RuleAction("queue", port=int(number or 0))), UNCHANGED
    if target in _ACTIONS:
        address, port = _address(values.get("--to-destination") or values.get("--to-source") or "")
        ports, _, last = values.get("--to-ports", "").partition("-")
        port = int(ports) if ports.isdigit() else port
        count = int(last or ports) - port + 1 if target == "MASQUERADE" and (last or ports).isdigit() else 0
        return RuleAction(_ACTIONS[target], "", address, port, count), UNCHANGED
    if target == "CT" and "--notrack" in values:
        return RuleAction("untrack"), UNCHANGED
    if target == "CT" and values.get("--zone", "0") != "0":
        return RuleAction("zone"), UNCHANGED
    if target == "TCPMSS" and int(values.get("--set-mss", SMALLEST_MSS)) < SMALLEST_MSS:
        return RuleAction("mss"), UNCHANGED
    if target in ("TTL", "HL"):
        value = values.get("--ttl-set") or values.get("--hl-set") or ""
        return (RuleAction("expire") if value in ("0", "1") else None), UNCHANGED
    if target == "MARK":
        return None, _mark(values.get("--set-xmark") or values.get("--set-mark") or "", packet)
    if target == "CONNMARK" and "--restore-mark" in values:
        return None, None
    if not target or target in _CONTINUES:
        return None, UNCHANGED
    return RuleAction("jump", target), UNCHANGED


def _mark(text: str, packet: Packet) -> object:
    value, _, mask = text.partition("/")
    if not value or packet.mark is None:
        return None
    return packet.mark & ~int(mask or "0xffffffff", 0) ^ int(value, 0)


def _address(text: str) -> tuple[Address | None, int]:
    """Returns address and port of "10.1.2.3:80", "[fd00::1]:80" or "10.1.2.3-10.1.2.9"."""
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = port.lstrip(":").partition("-")[0]
    try:
        address = ip_address(host.partition("-")[0]) if host else None
    except ValueError:
        address = None
    return address, int(number) if number.isdigit() else 0
