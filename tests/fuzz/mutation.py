"""Random changes of bytes and JSON.

One rule: the result depends on the random generator alone, so that a number identifies a case.
"""

import copy
import json
from random import Random
from typing import Any

Pairs = list[tuple[str, Any]]

_WORDS = [
    *(b"\0", b"\n", b"\r\n", b"'", b'"', b"\\", b"/", b"..", b"../..", b"%d", b"%s", b";", b"=", b",", b" ", b"-"),
    *(b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8"),
    *(b"\\ud800", b"\\u0000", b"NaN", b"Infinity", b"null", b"true", b"1e999", b"-1", b"0", b"65536", b"4294967296"),
    *(b"10.1.2.0/24", b"fd00::/64", b"0.0.0.0/0", b"::/0", b"::ffff:1.2.3.4", b"255.255.255.255", b"fe80::1", b"1.1.0"),
    *(b"[" * 600, b"{}" * 50, b"A" * 300, b"9" * 500, b"iptables", b"nftables", b"eth0", b"-j", b"!", b"lo", b"cid"),
]
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 13, 64, 255, 4094, 65535, 65536, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 64, 10**400),
    *(0.5, 1e308, -0.0, "", " ", "x", "0", "null", "\0", "\n", "é", "\U0001f600", "..", "/", "../..", "a" * 300),
    *("10.1.2.3", "10.1.2.0/24", "10.1.2.3/24", "fd00:1:2::/64", "fd00:1:2::5", "0.0.0.0/0", "::/0", "::ffff:10.1.2.3"),
    *("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "eth0", "cni0", "h0", "lo", "tcp", "TCP", "udp", "sctp", "auto"),
    *("0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "2.0.0", "iptables", "nftables", "host-local", "bridge"),
    *([], {}, [None], [{}], [[]], [[{}]], {"x": None}, ["-s", "10.0.0.0/8"], ["ip", "saddr", "10.0.0.0/8"]),
    *([{"dst": "0.0.0.0/0"}], [1, "x", None, {}], [{"id": 5}], [{"minID": 1, "maxID": 4094}], ["10.0.0.0/8"], "fail"),
]
_TEXTS = ["NaN", "Infinity", "-Infinity", "1e999", "1E400", "01", "-", "1.", "0x1", "'x'", "[" * 700, "9" * 5000]
_TEXTS += ['"\\ud800"', '"\\u0000"']


class Text(str):
    """A text, valid JSON or not, that is written without encoding."""

    __slots__ = ()


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Returns `data` with a few changes."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        data = _mutate_once(random, data)
    return data


def _mutate_once(random: Random, data: bytes) -> bytes:
    size = len(data)
    at = random.randrange(size + 1)
    end = min(size, at + random.choice((1, 1, 2, 4, 8, 64)))
    match random.randrange(12):
        case 0 | 1 if at < size:
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 2 if at < size:
            return data[:at] + random.randbytes(1) + data[at + 1 :]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:end] + data[at:end] * random.choice((1, 2, 50)) + data[end:]
        case 5:
            return data[:at] + random.randbytes(random.choice((1, 2, 4, 16))) + data[at:]
        case 6:
            return data[:at]
        case 7:
            return data[at:]
        case 8 if at < size:
            return data[:at] + random.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * (end - at) + data[end:]
        case 9 if random.random() < 0.1:
            return data.decode("latin-1").encode(random.choice(("utf-16", "utf-16-le", "utf-8-sig")))
    return data[:at] + random.choice(_WORDS) + data[at + random.choice((0, 0, 1, 4)) :]


def parse(text: str) -> Any:
    """Parses JSON; an object becomes a list of pairs, which may contain a key twice."""
    return json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs))


def serialize(value: Any) -> str:
    """Returns the JSON text of a value of `parse`."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, tuple):
        return "{" + ",".join(f"{serialize(key)}:{serialize(item)}" for key, item in value[1]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(serialize, value)) + "]"
    if isinstance(value, dict):
        return serialize(("object", list(value.items())))
    return json.dumps(value, ensure_ascii=False)


def mutate_json(random: Random, value: Any, others: list[Any]) -> Any:
    """Returns a value with a few changes; `others` are values from which parts are copied."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 6))):
        value = _change_json_once(random, value, others)
    return value


def _change_json_once(random: Random, value: Any, others: list[Any]) -> Any:
    holder: list[Any] = [value]
    place, index = random.choice(_places(holder))
    entry = place[index]
    key, inner = entry if isinstance(entry, tuple) and entry[0] != "object" else (None, entry)

    def put(new: Any) -> None:
        place[index] = new if key is None else (key, new)

    match random.randrange(13):
        case 0 | 1 | 2:
            put(copy.deepcopy(random.choice(_VALUES)))
        case 3 if place is not holder:
            del place[index]
        case 4 | 5 if key is not None:
            keys = (key.upper(), key.lower(), key.title(), key + "s", key[:-1], "", "cniVersion", "name", "ipam")
            place[index] = (random.choice(keys), inner)
        case 6 if place is not holder:
            place.insert(
                index, entry if random.random() < 0.5 or key is None else (key, copy.deepcopy(random.choice(_VALUES)))
            )
        case 7:
            put([inner] * random.choice((1, 1, 2, 40)))
        case 8:
            put({random.choice(("x", "type", "dst", "subnet", "")): inner})
        case 9:
            put(Text(random.choice(_TEXTS)))
        case 10 if isinstance(inner, str) and not isinstance(inner, Text):
            put(mutate_bytes(random, inner.encode("utf-8", "replace")).decode("utf-8", "replace"))
        case 11:
            source, at = random.choice(_places([random.choice(others)]))
            other = copy.deepcopy(source[at])
            put(other[1] if isinstance(other, tuple) and other[0] != "object" else other)
        case 12 if isinstance(inner, int) and not isinstance(inner, bool):
            put(inner + random.choice((-1, 1, 1 << 16, -(1 << 32))))
        case _:
            put(copy.deepcopy(random.choice(_VALUES)))
    return holder[0]


def _places(holder: list[Any]) -> list[tuple[list[Any], int]]:
    """Returns the place of each value: a list and an index; entries of an object are (key, value)."""
    places = []
    todo: list[list[Any]] = [holder]
    while todo:
        container = todo.pop()
        for index, item in enumerate(container):
            places.append((container, index))
            inner = item[1] if isinstance(item, tuple) and item[0] != "object" else item
            if isinstance(inner, tuple):
                todo.append(inner[1])
            elif isinstance(inner, list):
                todo.append(inner)
    return places
