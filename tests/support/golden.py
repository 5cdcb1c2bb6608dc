"""The golden states: the network states that the reference plugins create, for comparison with podwire's.

One rule: values that differ between runs or machines (MACs, veth names, ifindexes, timers, numbers of queues) are
replaced or removed; all others are compared.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.support.binaries import ROOT
from tests.support.namespaces import Namespace
from tests.support.netstate import nft_rules

State = dict[str, Any]

CONTAINER_ID = "0123abcdef"  # of every golden state
NEWER_ATTRIBUTES = frozenset({"allmulti"})  # of a link: Linux reports them since 6.0

_DIRECTORY = ROOT / "tests" / "data" / "golden"

_WORDS = (
    (re.compile(r"veth[0-9a-f]{8}"), "PORT"),
    (re.compile(r"8000\.[0-9a-f:]+"), "8000.MAC"),  # a bridge ID
    (re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}"), "MAC"),
    (re.compile(r"fe80::[0-9a-f:]+/64 scope"), "fe80::MAC/64 scope"),
    (re.compile(r"@if\d+"), "@if"),
    (re.compile(r"link-netns(id)? \S+"), "link-netns OTHER"),
    (re.compile(r" refcnt \d+"), ""),  # of a qdisc: one for each queue of its interface, one for each CPU
    (re.compile(r"^ +alias .*\n", re.MULTILINE), ""),  # an interface's owner, which the reference plugins do not set
    (re.compile(r" tentative"), ""),  # a temporary state on the host; other tests check the sandbox
)
# Attributes that depend on the machine, the clock or the kernel's configuration.
_NOISE = re.compile(
    r"_timer$|^num[tr]xqueues$|^g[sr]o_|^tso_|_interval$|^(min|max)mtu$|^designated_(port|cost)$|^cost$"
)


def scenarios(start: str = "") -> list[str]:
    """Returns the names of the golden states that begin with `start`."""
    return sorted(path.stem for path in _DIRECTORY.glob(f"{start}*.json"))


def scenario(name: str) -> State:
    """Returns one golden state: a network configuration and the state that the reference plugins created for it."""
    golden: State = json.loads((_DIRECTORY / f"{name}.json").read_text())
    return golden


def ruleset(namespace: Namespace) -> list[str]:
    """Returns the lines of `nft list ruleset`, with their indentation."""
    return _lines("\n".join(nft_rules(namespace)))


def shaping(namespace: Namespace, name: str) -> list[str]:
    """Returns the lines of `tc` for all qdiscs but lo's, and for the ingress filters of the interface `name`."""
    qdiscs = namespace.run("tc", "-d", "qdisc", "show").splitlines()
    filters = namespace.run("tc", "-d", "filter", "show", "dev", name, "ingress")
    lines = (*(line for line in qdiscs if " dev lo " not in line), filters)
    return [line.rstrip() for line in _lines("\n".join(lines))]


def result(body: Mapping[str, Any]) -> State:
    """Returns an ADD's result, in which the MACs, the host veth's name and the sandbox's path are replaced."""
    interfaces = []
    for item in body["interfaces"]:
        replaced = item | {"mac": "MAC", "name": _plain(item["name"])}
        interfaces.append(replaced | ({"sandbox": "SANDBOX"} if "sandbox" in item else {}))
    return {**body, "interfaces": interfaces}


def of(namespace: Namespace) -> State:
    """Returns links, each as a dictionary of attributes, addresses by link, and routes of a namespace."""
    addresses = {name: rest.splitlines() for name, rest in _blocks(namespace.ip("addr")).items()}
    return {
        "links": {name: _attributes(rest) for name, rest in _blocks(namespace.ip("-d", "link")).items()},
        "addresses": {
            name: [line.strip() for line in lines if line.strip().startswith("inet")]
            for name, lines in addresses.items()
        },
        "routes": sorted(map(str.strip, _lines(namespace.ip("route") + namespace.ip("-6", "route")))),
    }


def _blocks(text: str) -> dict[str, str]:
    """Returns the output of ip for each link."""
    blocks = (_plain(block).partition(": ") for block in re.split(r"^\d+: ", text, flags=re.MULTILINE)[1:])
    return {name: rest for name, _, rest in blocks}


def _lines(text: str) -> list[str]:
    return [line for line in _plain(text).splitlines() if line.strip()]


def _plain(text: str) -> str:
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text


def _attributes(text: str) -> dict[str, str]:
    """Splits '<A,B> mtu 1500 ... link/ether ... bridge_slave state forwarding ...' into pairs."""
    flags, *words = text.split()
    pairs = {"flags": ",".join(sorted(flags.strip("<>").split(",")))}
    while words:
        word = words.pop(0)
        if word in ("bridge", "bridge_slave", "veth", "ifb", "macvlan", "multi_queue", "tun"):
            pairs[word] = "yes"
        elif words:
            value = words.pop(0)
            if not _NOISE.search(word):
                pairs[f"port {word}" if word in pairs else word] = value  # a link and a port both have a state
    return pairs
