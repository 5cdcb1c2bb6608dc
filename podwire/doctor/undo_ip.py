"""The undo of the commands of iproute2: `ip route`, `rule`, `address`, `neigh`, `link`, and `bridge`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from ipaddress import ip_network

from podwire.doctor.undo_parts import UndoPart, read_lines, read_objects

_Prefix = tuple[str, ...]
_TYPES = ("unicast", "local", "broadcast", "blackhole", "unreachable", "prohibit", "throw")
# What `ip route` prints and does not read.
_UNREAD = re.compile(r"\s(linkdown|dead|offload|rt_offload|rt_trap|trap|error -?\d+|expires \d+sec)\b|\\")
_STATES = ("disabled", "listening", "learning", "forwarding", "blocking")


def build_ip(prefix: _Prefix, words: list[str]) -> UndoPart | None:
    """Returns what is compared for a command of `ip`, None if it is unknown."""
    family = words[1] if words[1].startswith("-") else ""
    kind, verb, *rest = words[2 if family else 1 :]
    ip = ("ip", family) if family else ("ip",)
    builders: dict[str, Callable[[], UndoPart]] = {
        "route": lambda: _route(prefix, ip, rest),
        "rule": lambda: _rule(prefix, ip, rest),
        "address": lambda: _address(prefix, rest[rest.index("dev") + 1]),
        "neigh": lambda: _neighbour(prefix, rest),
        "link": lambda: _link(prefix, rest),
    }
    known = kind in builders and verb in ("add", "del", "replace", "set") and (kind == "link") == (verb == "set")
    return builders[kind]() if known else None


def build_bridge(prefix: _Prefix, words: list[str]) -> UndoPart | None:
    """Returns what is compared for a command of `bridge`, None if it is unknown."""
    device = words[words.index("dev") + 1]
    if words[1:3] == ["link", "set"]:
        return _port(prefix, device, words[5::2])
    if words[1] == "vlan":
        return _vlan(prefix, device)
    if words[1:3] == ["fdb", "del"]:
        return _forwarding(prefix, device, words[3], words[6:])
    return None


def _differences(before: list[str], after: list[str], start: str) -> list[str]:
    """Returns the commands that delete what was added, and add what was deleted; `start` is "ip route" or "ip rule"."""
    added = [f"{start} del {line}" for line in after if line not in before]
    return added + [f"{start} add {line}" for line in before if line not in after]


def _route(prefix: _Prefix, ip: tuple[str, ...], rest: list[str]) -> UndoPart:
    table = rest[rest.index("table") + 1] if "table" in rest else "main"
    destination = _destination(rest, ip)

    def read() -> list[str]:
        lines = (_clean(line) for line in read_lines(prefix, ip[0], *ip[1:], "-o", "route", "show", "table", table))
        return [_in_table(line, table) for line in lines if _destination(line.split(), ip) == destination]

    start = shlex.join([*prefix, *ip, "route"])
    return UndoPart(
        (*prefix, *ip, "route", table, destination), read, lambda before, after: _differences(before, after, start)
    )


def _in_table(line: str, table: str) -> str:
    """Returns a route with its table, which `ip route` reads only before the next hops."""
    route, hop, hops = line.partition(" nexthop ")
    return f"{route} table {table}{hop}{hops}"


def _clean(line: str) -> str:
    line = _UNREAD.sub(" ", line)
    line = re.sub(r"\bnhid (\d+)( via \S+)?( dev \S+)?", r"nhid \1", line)
    return " ".join(line.split())


def _destination(words: list[str], ip: tuple[str, ...]) -> str:
    first = next(word for word in words if word not in _TYPES)
    everything = "::/0" if "-6" in ip else "0.0.0.0/0"
    return str(ip_network(everything if first == "default" else first, strict=False))


def _rule(prefix: _Prefix, ip: tuple[str, ...], rest: list[str]) -> UndoPart:
    priority = rest[rest.index("priority") + 1]

    def read() -> list[str]:
        lines = (line.partition(":") for line in read_lines(prefix, ip[0], *ip[1:], "rule", "show"))
        rules = [words for number, _, words in lines if number == priority]
        return [f"priority {priority} {' '.join(words.replace('[detached]', '').split())}" for words in rules]

    start = shlex.join([*prefix, *ip, "rule"])
    return UndoPart((*prefix, *ip, "rule", priority), read, lambda before, after: _differences(before, after, start))


def _address(prefix: _Prefix, device: str) -> UndoPart:
    """Compares the addresses of an interface, and its routes: the kernel deletes those that need an address."""

    def read() -> list[str]:
        lines = [line.split() for line in read_lines(prefix, "ip", "-o", "address", "show", "dev", device)]
        addresses = [_address_words(words) for words in lines if words[2] in ("inet", "inet6")]
        routes = []
        for family in ("-4", "-6"):
            listed = read_lines(prefix, "ip", family, "-o", "route", "show", "table", "all", "dev", device)
            routes += [f"{family} {_clean(line)} dev {device}" for line in listed if "proto kernel" not in line]
        return addresses + [line for line in routes if line.split()[1] not in ("local", "multicast", "anycast")]

    def revert(before: list[str], after: list[str]) -> list[str]:
        start = shlex.join([*prefix, "ip"])
        (old, old6, old_routes), (new, new6, new_routes) = map(_sorted_out, (before, after))
        # Of IPv4 also the order is restored: the kernel sends from the first address of a subnet.
        same = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(old), len(new)) if same is None else same
        added = [*reversed(new[same:]), *(line for line in new6 if line not in old6)]
        deleted = [*old[same:], *(line for line in old6 if line not in new6)]
        commands = [_route_command(start, "del", line) for line in new_routes if line not in old_routes]
        commands += [f"{start} address del {line.split()[0]} dev {device}" for line in added]
        commands += [f"{start} address add {line} dev {device}" for line in deleted]
        return commands + [_route_command(start, "replace", line) for line in old_routes]

    return UndoPart((*prefix, "address", device), read, revert)


def _address_words(words: list[str]) -> str:
    peer = f" peer {words[5]}" if words[4] == "peer" else ""
    broadcast = f" brd {words[words.index('brd') + 1]}" if "brd" in words else ""
    return f"{words[3]}{peer}{broadcast}{' nodad' if words[2] == 'inet6' else ''}"


def _sorted_out(lines: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns the IPv4 addresses, the IPv6 addresses and the routes."""
    routes = [line for line in lines if line.startswith("-")]
    addresses = [line for line in lines if not line.startswith("-")]
    return [line for line in addresses if ":" not in line], [line for line in addresses if ":" in line], routes


def _route_command(start: str, verb: str, line: str) -> str:
    family, _, words = line.partition(" ")
    return f"{start} {family} route {verb} {words}"


def _neighbour(prefix: _Prefix, rest: list[str]) -> UndoPart:
    is_proxy = rest[0] == "proxy"
    address, device = rest[1 if is_proxy else 0], rest[rest.index("dev") + 1]

    def read() -> list[str]:
        if is_proxy:
            lines = read_lines(prefix, "ip", "neigh", "show", "proxy", "dev", device)
            return [f"proxy {address}" for line in lines if line.split()[0] == address]
        lines = read_lines(prefix, "ip", "neigh", "show", "to", address, "dev", device, "nud", "permanent")
        return [f"{address} lladdr {_after(line.split(), 'lladdr')} nud permanent" for line in lines]

    def revert(before: list[str], after: list[str]) -> list[str]:
        return [shlex.join([*prefix, "ip", "neigh", "replace", *line.split(), "dev", device]) for line in before]

    return UndoPart((*prefix, "neigh", address, device), read, revert)


def _after(words: list[str], word: str) -> str:
    return words[words.index(word) + 1]


def _link(prefix: _Prefix, rest: list[str]) -> UndoPart:
    device = rest[1] if rest[0] == "dev" else rest[0]

    def read() -> list[str]:
        return _link_settings(read_objects(prefix, "ip", "-d", "link", "show", "dev", device)[0])

    def revert(before: list[str], after: list[str]) -> list[str]:
        start = shlex.join([*prefix, "ip", "link", "set", device])
        return [f"{start} {line}" for line in before if line not in after]

    return UndoPart((*prefix, "link", device), read, revert)


def _link_settings(link: dict[str, object]) -> list[str]:
    """Returns the settings of an interface as the words that set them, in the order in which they can be set."""
    flags, info = link.get("flags"), link.get("linkinfo")
    names = flags if isinstance(flags, list) else []
    of_kind, of_port = ((info.get(key) if isinstance(info, dict) else None) for key in ("info_data", "info_slave_data"))
    master = link.get("master")
    settings = [
        f"master {master}" if master else "nomaster",
        f"mtu {link.get('mtu')}",
        f"address {link.get('address')}",
    ]
    settings += ["arp off" if "NOARP" in names else "arp on", "up" if "UP" in names else "down"]
    if isinstance(of_kind, dict) and "stp_state" in of_kind:
        settings.append(f"type bridge stp_state {int(of_kind['stp_state'])}")
    if isinstance(of_port, dict):
        switches = [f"{flag} {'on' if of_port[flag] else 'off'}" for flag in ("hairpin", "isolated") if flag in of_port]
        settings.append(f"type bridge_slave {' '.join(switches)}")
    return settings


def _port(prefix: _Prefix, device: str, names: list[str]) -> UndoPart:
    def read() -> list[str]:
        port = read_objects(prefix, "bridge", "-d", "link", "show", "dev", device)[0]
        words = []
        for name in names:
            value = port[name] if name in port else port.get(f"{name}_mode")
            number = _STATES.index(str(value)) if name == "state" else None
            words.append(f"{name} {number if number is not None else 'on' if value else 'off'}")
        return words

    def revert(before: list[str], after: list[str]) -> list[str]:
        return [f"{shlex.join([*prefix, 'bridge', 'link', 'set', 'dev', device])} {' '.join(before)}"]

    return UndoPart((*prefix, "port", device, *names), read, revert)


def _vlan(prefix: _Prefix, device: str) -> UndoPart:
    def read() -> list[str]:
        ports = read_objects(prefix, "bridge", "vlan", "show", "dev", device)
        entries = [entry for port in ports for entry in _dicts(port.get("vlans"))]
        return [f"{entry.get('vlan')} {_vlan_flags(entry.get('flags'))}".strip() for entry in entries]

    def revert(before: list[str], after: list[str]) -> list[str]:
        start = shlex.join([*prefix, "bridge", "vlan"])
        vids = [line.split()[0] for line in before]
        added = [line.split()[0] for line in after if line.split()[0] not in vids]
        commands = [f"{start} del dev {device} vid {vid}" for vid in added]
        return commands + [f"{start} add dev {device} vid {line}" for line in before if line not in after]

    return UndoPart((*prefix, "vlan", device), read, revert)


def _vlan_flags(flags: object) -> str:
    names = flags if isinstance(flags, list) else []
    return " ".join(word for flag, word in (("PVID", "pvid"), ("Egress Untagged", "untagged")) if flag in names)


def _forwarding(prefix: _Prefix, device: str, mac: str, rest: list[str]) -> UndoPart:
    """Compares an entry of a forwarding database; the kernel learns one that was not set by itself."""

    def read() -> list[str]:
        entries = read_objects(prefix, "bridge", "fdb", "show", "dev", device)
        mine = [entry for entry in entries if entry.get("mac") == mac and ("master" in entry) == ("master" in rest)]
        return [str(entry["state"]) for entry in mine if entry.get("state") in ("permanent", "static")]

    def revert(before: list[str], after: list[str]) -> list[str]:
        start = shlex.join([*prefix, "bridge", "fdb", "replace", mac, "dev", device, *rest])
        return [f"{start} {state}" for state in before if state not in after]

    return UndoPart((*prefix, "fdb", device, mac, *rest), read, revert)


def _dicts(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
