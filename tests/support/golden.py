"""What the reference plugins leave behind, as values that can be compared with what ours leave behind.

One rule: what differs from run to run or from machine to machine (MACs, veth names, ifindexes, timers, numbers of
queues) is replaced or left out; everything else counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.support.binaries import ROOT
from tests.support.namespaces import Namespace
from tests.support.netstate import nft_rules

State = dict[str, Any]

CONTAINER_ID = "0123abcdef"  # of every golden state

_DIRECTORY = ROOT / "tests" / "data" / "golden"

_WORDS = (
    (re.compile(r"veth[0-9a-f]{8}"), "PORT"),
    (re.compile(r"8000\.[0-9a-f:]+"), "8000.MAC"),  # a bridge ID
    (re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}"), "MAC"),
    (re.compile(r"fe80::[0-9a-f:]+/64 scope"), "fe80::MAC/64 scope"),
    (re.compile(r"@if\d+"), "@if"),
    (re.compile(r"link-netns(id)? \S+"), "link-netns OTHER"),
    (re.compile(r" refcnt \d+"), ""),  # of a qdisc: one for each queue of its interface, and there is one for each CPU
    (re.compile(r"^ +alias .*\n", re.MULTILINE), ""),  # whose an interface is: we tell, the reference does not
    (re.compile(r" tentative"), ""),  # on the host it passes; the sandbox is tested for it elsewhere
)
# What follows from the machine, the clock or the kernel's configuration.
_NOISE = re.compile(
    r"_timer$|^num[tr]xqueues$|^g[sr]o_|^tso_|_interval$|^(min|max)mtu$|^designated_(port|cost)$|^cost$"
)


def scenarios(start: str = "") -> list[str]:
    """Returns the names of the states whose names begin so."""
    return sorted(path.stem for path in _DIRECTORY.glob(f"{start}*.json"))


def scenario(name: str) -> State:
    """Returns one state: the network's configuration and what the reference made of it."""
    found: State = json.loads((_DIRECTORY / f"{name}.json").read_text())
    return found


def links(text: str) -> dict[str, dict[str, str]]:
    """Returns the links of `ip -d link` by name, each as attribute and value; the order of attributes is lost."""
    found = {}
    for block in re.split(r"^\d+: ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = _plain(block).partition(": ")
        found[name] = _attributes(rest)
    return found


def addresses(text: str) -> dict[str, list[str]]:
    """Returns the addresses of `ip addr` by link, as lines with scope and broadcast address."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"^\d+: ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = _plain(block).partition(": ")
        found[name] = [line.strip() for line in rest.splitlines() if line.strip().startswith("inet")]
    return found


def routes(text: str) -> list[str]:
    """Returns the lines of `ip route` and `ip -6 route`."""
    return sorted(line.strip() for line in _plain(text).splitlines())


def rules(text: str) -> list[str]:
    """Returns the lines of `nft list ruleset`, indented as they are."""
    return [line for line in _plain(text).splitlines() if line.strip()]


def ruleset(namespace: Namespace) -> list[str]:
    """Returns the whole rule set of nftables in a namespace, as `rules` does."""
    return rules("\n".join(nft_rules(namespace)))


def shaping(namespace: Namespace, name: str) -> list[str]:
    """Returns what `tc` shows: all qdiscs but lo's, and the filters of what the interface `name` receives."""
    qdiscs = namespace.run("tc", "-d", "qdisc", "show").splitlines()
    filters = namespace.run("tc", "-d", "filter", "show", "dev", name, "ingress")
    return shaping_lines("\n".join((*(line for line in qdiscs if " dev lo " not in line), filters)))


def shaping_lines(text: str) -> list[str]:
    """Returns the lines that `tc` printed."""
    return [line.rstrip() for line in _plain(text).splitlines() if line.strip()]


def result(body: Mapping[str, Any]) -> State:
    """Returns an ADD's result with its MACs, the host end's name and the sandbox's path replaced."""
    interfaces = []
    for item in body["interfaces"]:
        named = item | {"mac": "MAC", "name": _plain(item["name"])}
        interfaces.append(named | ({"sandbox": "SANDBOX"} if "sandbox" in item else {}))
    return {**body, "interfaces": interfaces}


def of(namespace: Namespace) -> State:
    """Returns links, addresses and routes of a namespace."""
    return {
        "links": links(namespace.ip("-d", "link")),
        "addresses": addresses(namespace.ip("addr")),
        "routes": routes(namespace.ip("route") + namespace.ip("-6", "route")),
    }


def _plain(text: str) -> str:
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text


def _attributes(text: str) -> dict[str, str]:
    """Splits '<A,B> mtu 1500 ... link/ether ... bridge_slave state forwarding ...' into pairs."""
    flags, *words = text.split()
    found = {"flags": ",".join(sorted(flags.strip("<>").split(",")))}
    while words:
        word = words.pop(0)
        if word in ("bridge", "bridge_slave", "veth", "ifb"):
            found[word] = "yes"
        elif words:
            value = words.pop(0)
            if not _NOISE.search(word):
                found[f"port {word}" if word in found else word] = value  # a link and a port both have a state
    return found
