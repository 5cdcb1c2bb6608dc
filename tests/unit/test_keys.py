"""Keys in tables and keys in code are the same: neither is believed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni import gojson
from cni.args import CmdArgs
from cni.conf import parse
from cni.errors import CniError
from cni.fields import Fields
from cni.keys import BOOLEAN, CIDR, COMMON, INTEGER, IP, LIST, OBJECT, REQUEST, STRING, Key, merged
from cni.skel import Plugin
from podwire.main import PLUGINS
from tests.support.binaries import ROOT

# A configuration that makes each parser read all that it can read; several where one key keeps another from being read.
RANGE = {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.1"}
OTHER = {"subnet": "10.2.0.0/16"}
ROUTES = [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1300, "priority": 1, "table": 100, "scope": 0}]
DNS = {"nameservers": ["10.1.0.1"], "domain": "a", "search": ["b"], "options": ["c"]}
RATES = {"ingressRate": 8, "ingressBurst": 8, "egressRate": 8, "egressBurst": 8}
MASQUERADE = {"ipMasq": True, "ipMasqBackend": "nftables", "nonMasqueradeCIDRs": ["10.0.0.0/8"]}
SETTINGS = {"sysctl": {}, "mac": "02:00:00:00:00:01", "mtu": 1, "promisc": True, "allmulti": True, "txQLen": 1}
FULL: dict[str, tuple[dict[str, Any], ...]] = {
    "bandwidth": (
        {**RATES, "maxBurst": 8, "unshapedSubnets": ["10.0.0.0/8"]},
        {"shapedSubnets": ["10.0.0.0/8"]},
        {"runtimeConfig": {"bandwidth": {**RATES, "shapedSubnets": ["10.0.0.0/8"]}}},
    ),
    "bridge": (
        {
            "ipam": {"type": "static"},
            "vlanTrunk": [{"id": 1, "minID": 2, "maxID": 3}],
            "dns": DNS,
            "runtimeConfig": {},
            **MASQUERADE,
        },
        {"bridgeNetfilter": True, "args": {"cni": {"mac": "02:00:00:00:00:01"}}},
    ),
    "firewall": ({"ingressPolicy": "open"},),
    "host-local": (
        {"ipam": {**RANGE, "ranges": [[OTHER]], "routes": ROUTES}, "args": {"cni": {"ips": ["10.1.0.6"]}}},
        {"ipam": {"routes": []}, "runtimeConfig": {"ipRanges": [[RANGE]], "ips": ["10.1.0.6"]}},
    ),
    "loopback": ({},),
    "portmap": (
        {
            "conditionsV4": ["ip", "saddr", "10.0.0.0/8"],
            "runtimeConfig": {
                "portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "tcp", "hostIP": "10.0.0.1"}]
            },
        },
    ),
    "ptp": ({"ipam": {"type": "static"}, "dns": DNS, **MASQUERADE}, {"dns": {}}, {"dns": {"options": ["c"]}}),
    "static": (
        {"ipam": {"addresses": [{"address": "10.1.0.2/16", "gateway": "10.1.0.1"}], "routes": ROUTES, "dns": DNS}},
        {"ipam": {}, "args": {"cni": {"ips": ["10.1.0.6/16"]}}},
    ),
    "tuning": (SETTINGS, {"args": {"cni": SETTINGS}}),
}
# What cni.conf reads of every request, and libcni or the delegating plugin for the others.
READ_BY_ALL = {
    "name",
    "cniVersion",
    "type",
    "plugins",
    "capabilities",
    "capabilities.ips",
    "ipam",
    "ipam.type",
    "args",
} | {"prevResult"}
# What a parser must find before it comes to the rest.
LEAST: dict[str, dict[str, Any]] = {"host-local": OTHER, "static": {}}
WRONG_TYPE = re.compile(r"must be (a |an |true or false)")
VALUES: dict[str, Any] = {
    STRING: "text",
    BOOLEAN: True,
    INTEGER: 1400,
    IP: "10.1.0.1",
    CIDR: "10.1.0.0/16",
    OBJECT: {},
    LIST: [],
    "fraction": 1.5,
}
TEXTS = {STRING, IP, CIDR}
READERS = ("string", "boolean", "integer", "ip", "cidr", "raw", "has", "nested", "section", "string_map", "strings")
READERS += ("objects", "object_lists")


def read(plugin: Plugin, own: dict[str, Any]) -> None:
    request = {"name": "net", "cniVersion": "1.0.0", "type": plugin.name, **own}
    text = gojson.dumps(request).encode()
    args = CmdArgs("ADD", "id", "", "eth0", "", (), {}, text)
    if plugin.parse:
        plugin.parse(args, parse(text))


def paths(keys: tuple[Key, ...], prefix: str = "") -> set[str]:
    found = set()
    for key in keys:
        found |= {prefix + key.name} | paths(key.keys, f"{prefix}{key.name}.")
    return found


def asked(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the paths of the keys that the plugin's parser asks for, without numbers of elements."""
    found: set[str] = set()

    def noted(reader: Any) -> Any:
        def read_and_note(self: Fields, key: str, *default: object, **limits: int) -> Any:
            found.add(re.sub(r"\[\d+\]", "", self.path(key)))
            return reader(self, key, *default, **limits)

        return read_and_note

    for name in READERS:
        monkeypatch.setattr(Fields, name, noted(getattr(Fields, name)))
    for own in FULL[plugin.name]:
        read(plugin, own)
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("name", FULL)
def test_a_plugin_asks_for_the_keys_in_its_table_and_for_no_others(name, monkeypatch):
    """What a plugin's parser reads of a request is what its table of keys has, and the other way round."""
    plugin = PLUGINS[name]
    found = asked(plugin, monkeypatch)
    listed = paths(plugin.keys)
    assert found - READ_BY_ALL <= listed
    assert listed - READ_BY_ALL <= found


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_no_key_in_the_source_is_missing_in_the_tables(name):
    """Each text by which a plugin's source reads a configuration is a key of its table or a common one."""
    plugin = PLUGINS[name]
    known = {path.rpartition(".")[2] for path in paths((*COMMON, *REQUEST, *plugin.keys))} | {"cni"}
    for path in sorted((ROOT / plugin.cmd_add.__module__.replace(".", "/")).parent.glob("*.py")):
        if path.name != "backup.py":  # reads a file of its own
            assert set(literal_keys(path)) <= known, path


def literal_keys(path: Path) -> Iterator[str]:
    """Yields the texts that a source hands to a reader of Fields."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        is_reader = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS
        if is_reader and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            yield node.args[0].value


def leaves(keys: tuple[Key, ...], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    for key in keys:
        yield (*path, key.name), key
        if OBJECT in key.kinds:
            yield from leaves(key.keys, (*path, key.name))


def typed() -> list[Any]:
    return [
        pytest.param(plugin, path, key, kind, id=f"{plugin.name}-{'.'.join(path)}-{kind}")
        for plugin in PLUGINS.values()
        for path, key in leaves(plugin.keys)
        for kind in VALUES
        if kind not in TEXTS or not TEXTS & set(key.kinds)  # what a text must be like is the parser's to say
    ]


@pytest.mark.parametrize(("owner", "path", "key", "kind"), typed())
def test_a_value_is_refused_when_and_only_when_it_is_of_another_type(owner, path, key, kind):
    """A parser refuses the types of values that the table has not, and for its type no value that it has."""
    value = VALUES[kind]
    request: dict[str, Any] = {"ipam": {"type": "static", **LEAST[owner.name]}} if owner.name in LEAST else {}
    inner = request
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    problem = ""
    try:
        read(owner, request)
    except CniError as error:
        problem = error.msg
    refused = f'"{".".join(path)}"' in problem and bool(WRONG_TYPE.search(problem))
    assert refused is (kind not in key.kinds), problem


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_choices_are_those_that_the_parser_takes(name, capsys):
    """Each word that a table allows is taken, and another is refused, or replaced and told of."""
    plugin = PLUGINS[name]
    for path, key in leaves(plugin.keys):
        for word in (*key.choices, "another") if key.choices else ():
            own: Any = word
            for part in reversed(path):
                own = {part: own}
            problem = ""
            try:
                read(plugin, {"ipMasq": True, "ipam": {"type": "host-local"}, **own})
            except CniError as error:
                problem = error.msg
            assert bool(problem or capsys.readouterr().err) is (word not in key.choices), (path, word, problem)


def test_capabilities_are_the_keys_that_a_runtime_gives():
    """Each plugin makes use of the capabilities of the conventions, and of no other."""
    assert {name: plugin.capabilities for name, plugin in PLUGINS.items() if plugin.capabilities} == {
        "bandwidth": ("bandwidth",),
        "bridge": ("mac",),
        "host-local": ("ipRanges", "ips"),
        "portmap": ("portMappings",),
        "static": ("ips",),
        "tuning": ("mac",),
    }


def test_tables_that_are_united_have_the_keys_of_both():
    """An interface plugin's configuration and its IPAM plugin's are one object, and so are their tables."""
    found = paths(merged(PLUGINS["bridge"].keys, PLUGINS["host-local"].keys))
    assert {
        "ipam.type",
        "ipam.ranges.subnet",
        "bridge",
        "runtimeConfig.mac",
        "runtimeConfig.ips",
        "args.cni.ips",
    } <= found
