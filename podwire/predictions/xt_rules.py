"""The extensions of iptables in rules of nftables: matches and targets, by their C structs (linux/netfilter/xt_*.h)."""

from __future__ import annotations

import struct
from ipaddress import ip_address
from sys import byteorder

from kernel.device import Device
from kernel.netfilter.packet import ICMP, ICMPV6, TRANSPORT, Packet
from podwire.predictions.verdicts import UNCHANGED, Match, RuleAction

# Matches of some of a connection's packets: at random, above a rate, by content or by time.
PARTIAL = frozenset(
    (
        *(
            "limit",
            "hashlimit",
            "statistic",
            "connlimit",
            "connbytes",
            "recent",
            "quota",
            "string",
            "u32",
            "bpf",
            "time",
        ),
        *("length", "dscp", "tos", "tcpmss", "rateest", "ecn", "ttl", "hl"),
    )
)
SMALLEST_MSS = 500
_ANY_ICMP = 255
_PORTS = struct.Struct("=HHHH")
_CONNTRACK = struct.Struct("=HHHH")  # match_flags, invert_flags, state_mask, status_mask
_CONNTRACK_AT = 146
_MARK, _ADDRTYPE = struct.Struct("=IIB"), struct.Struct("=HHI")
_MULTIPORT = struct.Struct("=BB15H15BB")
_DEVGROUP = struct.Struct("=5I")  # flags, then group and mask of the input and of the output interface
_POLICY_AT, _POLICY_IN, _POLICY_NONE = 304, 1, 4  # flags of struct xt_policy_info
_PHYSDEV_AT, _IS_BRIDGED = 64, 4  # invert, then bitmask, of struct xt_physdev_info
_STATE, _STATUS = 1, 1 << 6
_NEW_BIT = 1 << 3  # XT_CONNTRACK_STATE_BIT(IP_CT_NEW)
_SNAT_BIT, _DNAT_BIT, _UNTRACKED_BIT = 1 << 6, 1 << 7, 1 << 8
_RANGE2 = struct.Struct("=I16s16s")
_RANGE = struct.Struct("=II4s4sHH")


def services(name: str, info: bytes) -> tuple[int, list[int]]:
    """Returns the protocol (0: any) and the destination ports that a match compares."""
    protocol = {"tcp": 6, "udp": 17}.get(name, 0)
    if protocol and len(info) >= _PORTS.size:
        _, _, first, last = _PORTS.unpack_from(info)
        return protocol, [first] if (first, last) != (0, 0xFFFF) else []
    if name == "multiport" and len(info) >= _MULTIPORT.size:
        flags, count, *rest = _MULTIPORT.unpack_from(info)
        return 0, list(rest[:count]) if flags else []
    return 0, []


def match(name: str, revision: int, info: bytes, packet: Packet) -> Match:
    """Returns whether a match accepts a packet."""
    if name in PARTIAL:
        return Match.SOME
    result: bool | None = None
    if name == "comment":
        result = True
    elif name in ("tcp", "udp") and len(info) >= _PORTS.size:
        result = _ports(name, info, packet)
    elif name == "conntrack" and revision == 3 and len(info) >= _CONNTRACK_AT + _CONNTRACK.size:
        result = _conntrack(info, packet)
    elif name == "mark" and len(info) >= _MARK.size and packet.mark is not None:
        mark, mask, invert = _MARK.unpack_from(info)
        result = (packet.mark & mask == mark) != bool(invert)
    elif name == "addrtype" and revision == 1 and len(info) >= _ADDRTYPE.size:
        result = _address_types(info, packet)
    elif name in ("icmp", "icmp6") and len(info) >= 4:
        result = _icmp(info, packet)
    elif name == "mac" and len(info) >= 9 and packet.source_mac:
        result = (info[:6] == packet.source_mac) != bool(info[8])
    elif name == "multiport" and len(info) >= _MULTIPORT.size:
        result = _multiport(info, packet)
    elif name == "policy" and len(info) >= _POLICY_AT + 2:
        flags = int.from_bytes(info[_POLICY_AT : _POLICY_AT + 2], byteorder)
        result = bool(flags & _POLICY_NONE) if flags & _POLICY_IN else None  # the packet did not come by IPsec
    elif name == "physdev" and len(info) > _PHYSDEV_AT + 1 and info[_PHYSDEV_AT + 1] == _IS_BRIDGED:
        result = (bool(packet.iif) and packet.iif == packet.oif) != bool(info[_PHYSDEV_AT] & _IS_BRIDGED)
    return Match.MAYBE if result is None else Match.YES if result else Match.NO


def match_groups(info: bytes, iif: Device | None, oif: Device | None) -> Match:
    """Returns whether a match of devgroup accepts a packet with these interfaces; None is an unknown one."""
    if len(info) < _DEVGROUP.size:
        return Match.MAYBE
    flags, iif_group, iif_mask, oif_group, oif_mask = _DEVGROUP.unpack_from(info)
    # The bit that compares an interface, and the bit that inverts the result: XT_DEVGROUP_MATCH_* and _INVERT_*.
    sides = ((iif, iif_group, iif_mask, 1, 2), (oif, oif_group, oif_mask, 4, 8))
    result = Match.YES
    for device, group, mask, compares, inverts in sides:
        if not flags & compares:
            continue
        if device is None:
            result = Match.MAYBE
        elif (device.group & mask == group & mask) == bool(flags & inverts):
            return Match.NO
    return result


def _ports(name: str, info: bytes, packet: Packet) -> bool | None:
    if packet.protocol != {"tcp": 6, "udp": 17}[name]:
        return False
    first, last, to_first, to_last = _PORTS.unpack_from(info)
    inverted = info[11] if name == "tcp" else info[8]
    decided = True
    for port, low, high, flag in ((packet.source_port, first, last, 1), (packet.port, to_first, to_last, 2)):
        if (low, high) == (0, 0xFFFF) and not inverted & flag:
            continue
        if port is None:
            decided = False
        elif (low <= port <= high) == bool(inverted & flag):
            return False
    if name == "tcp" and info[9]:
        flags = 0x02 if packet.state == 8 else 0x10
        if (flags & info[9] == info[10]) == bool(inverted & 4):
            return False
    return True if decided else None


def _conntrack(info: bytes, packet: Packet) -> bool | None:
    flags, inverted, states, statuses = _CONNTRACK.unpack_from(info, _CONNTRACK_AT)
    decided = not flags & ~(_STATE | _STATUS)
    if flags & _STATE:
        bits = _UNTRACKED_BIT if packet.state == 64 else packet.state
        status = packet.connection_status
        bits |= (_SNAT_BIT if status & 0x10 else 0) | (_DNAT_BIT if status & 0x20 else 0)
        if bool(bits & states) == bool(inverted & _STATE):
            return False
    if flags & _STATUS and bool(packet.connection_status & statuses) == bool(inverted & _STATUS):
        return False
    return True if decided else None


def is_of_answers(info: bytes) -> bool:
    """Returns whether a match of conntrack accepts only packets of established, related or DNATed connections."""
    if len(info) < _CONNTRACK_AT + _CONNTRACK.size:
        return False
    compared, inverted, states, _ = _CONNTRACK.unpack_from(info, _CONNTRACK_AT)
    return not inverted and not compared & ~(_STATE | _STATUS) and not states & _NEW_BIT


def _address_types(info: bytes, packet: Packet) -> bool | None:
    source, destination, flags = _ADDRTYPE.unpack_from(info)
    for mask, kind, flag in ((source, packet.source_type, 1), (destination, packet.destination_type, 2)):
        if mask and bool(mask >> kind & 1) == bool(flags & flag):
            return False
    return None if flags & ~3 else True


def _icmp(info: bytes, packet: Packet) -> bool | None:
    kind = packet.payload(TRANSPORT, 0, 2)
    if packet.protocol not in (ICMP, ICMPV6) or kind is None:
        return False
    is_code = info[1] <= kind[1] <= info[2]
    return (info[0] == _ANY_ICMP or (info[0] == kind[0] and is_code)) != bool(info[3])


def _multiport(info: bytes, packet: Packet) -> bool | None:
    flags, count, *rest = _MULTIPORT.unpack_from(info)
    numbers, ranges, inverted = rest[:count], rest[15 : 15 + count], rest[30]
    ports = {0: (packet.source_port,), 1: (packet.port,)}.get(flags, (packet.source_port, packet.port))
    if any(port is None for port in ports):
        return None
    index, matching = 0, False
    while index < count:
        last = numbers[index + 1] if ranges[index] and index + 1 < count else numbers[index]
        matching |= any(port is not None and numbers[index] <= port <= last for port in ports)
        index += 2 if ranges[index] else 1
    return matching != bool(inverted)


def target(name: str, revision: int, info: bytes, packet: Packet) -> tuple[RuleAction | None, object]:
    """Returns the action of a target, None for one that lets the packet continue, and the mark that it sets."""
    mark: object = UNCHANGED
    if name in ("DNAT", "SNAT", "NETMAP"):
        is_source = name == "SNAT" or (name == "NETMAP" and packet.oif != "" and not packet.iif)  # at POSTROUTING
        action = _translation("snat" if is_source else "dnat", revision, info)
        return action._replace(ports=_port_count(info) if is_source else 0), mark
    if name == "REDIRECT":
        return RuleAction("redirect", port=_translation("dnat", 2 if len(info) >= 40 else 0, info).port), mark
    if name == "MASQUERADE":
        return RuleAction("masquerade", ports=_port_count(info)), mark
    simple = {"REJECT": "reject"}
    simple |= {"NOTRACK": "untrack", "DROP": "drop", "TARPIT": "drop"}
    if name in simple:
        return RuleAction(simple[name]), mark
    if name == "NFQUEUE" and len(info) >= 2:
        queue, _, flags = struct.unpack_from("=HHH", info.ljust(6, b"\0"))
        return None if revision >= 2 and flags & 1 else RuleAction("queue", port=queue), mark
    if name == "CT" and len(info) >= 4:
        flags, zone = struct.unpack_from("=HH", info)
        return RuleAction("untrack") if flags & 1 else RuleAction("zone") if zone else None, mark
    if name == "TCPMSS" and len(info) >= 2 and struct.unpack_from("=H", info)[0] < SMALLEST_MSS:
        return RuleAction("mss"), mark
    if name == "TTL" or name == "HL":
        return (RuleAction("expire"), mark) if len(info) >= 2 and info[0] == 0 and info[1] <= 1 else (None, mark)
    if name == "MARK" and revision == 2 and len(info) >= 8:
        value, mask = struct.unpack_from("=II", info)
        mark = None if packet.mark is None else packet.mark & ~mask ^ value
    elif name == "CONNMARK" and len(info) >= 9 and info[8] != 0:  # it restores the connection's mark
        mark = None
    return None, mark


def _port_count(info: bytes) -> int:
    """Returns the number of ports of a range (nf_nat_range, or that of old IPv4 targets), 0 if it has none."""
    flags_at, ports_at = (0, 36) if len(info) >= _RANGE2.size + 4 else (4, 16)
    ports = info[ports_at : ports_at + 4]
    if len(ports) < 4 or not info[flags_at] & 2:  # NF_NAT_RANGE_PROTO_SPECIFIED
        return 0
    return int.from_bytes(ports[2:], "big") - int.from_bytes(ports[:2], "big") + 1


def _translation(kind: str, revision: int, info: bytes) -> RuleAction:
    if revision >= 2 and len(info) >= _RANGE2.size + 4:
        flags, address, _ = _RANGE2.unpack_from(info)
        data = address if any(address[4:]) else address[:4]
        port = int.from_bytes(info[36:38], "big") if flags & 2 else 0
        return RuleAction(kind, address=ip_address(data) if flags & 1 else None, port=port)
    if revision == 1 and len(info) >= _RANGE2.size + 4:  # IPv6
        flags, address, _ = _RANGE2.unpack_from(info)
        return RuleAction(kind, address=ip_address(address) if flags & 1 else None)
    if len(info) >= _RANGE.size:
        _, flags, data, _, port, _ = _RANGE.unpack_from(info)
        number = int.from_bytes(port.to_bytes(2, "little"), "big") if flags & 2 else 0
        return RuleAction(kind, address=ip_address(data) if flags & 1 else None, port=number)
    return RuleAction(kind)
