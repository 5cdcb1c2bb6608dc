"""The keys in the tables are those that the code reads: the tests derive both independently."""

import ast
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni.errors import CniError
from cni.fields import Fields
from cni.keys import BOOLEAN, CIDR, COMMON, INTEGER, IP, LIST, OBJECT, REQUEST, STRING, Key, merged
from cni.skel import Plugin
from podwire.main import PLUGINS
from tests.fuzz.cases import corpus
from tests.support.binaries import ROOT
from tests.support.errors import failure_of
from tests.support.netconf import parse

RANGE = {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.1"}
# Configurations for which each parser reads all of its keys: those of the fuzzers' corpus, and further ones.
FULL: dict[str, list[dict[str, Any]]] = {
    "dhcp": [
        {
            "ipam": {
                "provide": [{"option": "host-name", "value": "a", "fromArg": "K8S_POD_NAME"}],
                "request": [{"option": "121", "skipDefault": True}],
                "ipv4": True,
                "ipv6": "auto",
            }
        }
    ],
    "host-local": [{"ipam": RANGE}],
}
for _, case in corpus("stdin"):
    if case.env["CNI_COMMAND"] == "ADD":
        keys = json.loads(case.stdin)
        FULL.setdefault(case.plugin, []).append({name: keys[name] for name in keys.keys() - {"prevResult"}})
# Keys that cni.conf reads for every plugin, or libcni or the delegating plugin.
READ_BY_ALL = {"name", "cniVersion", "type", "plugins", "capabilities", "ipam", "ipam.type", "args", "prevResult"}
READ_BY_ALL |= {"capabilities.deviceID", "capabilities.ips"}
# Modules whose readers do not read a configuration: files that the plugin has written, dhcp's calls.
OTHER_READERS = ("backup.py", "gob.py", "grants.py", "lease.py", "lease6.py", "record.py", "rpc.py", "rpc_result.py")
# Keys without which a parser does not read the others.
REQUIRED: dict[str, dict[str, Any]] = {"host-local": {"subnet": "10.2.0.0/16"}, "static": {}}
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
READERS: tuple[str, ...] = ("string", "boolean", "integer", "ip", "cidr", "raw", "has", "nested", "section")
READERS += ("string_map", "strings", "objects", "object_lists")


def paths(keys: tuple[Key, ...], prefix: str = "") -> set[str]:
    key_paths = set()
    for key in keys:
        key_paths |= {prefix + key.name} | paths(key.keys, f"{prefix}{key.name}.")
    return key_paths


def list_read_keys(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the paths of the keys that the plugin's parser reads, without indexes of elements."""
    read_keys: set[str] = set()

    def recording(reader: Any) -> Any:
        def read_and_record(self: Fields, key: str, *default: object, **limits: int) -> Any:
            read_keys.add(re.sub(r"\[\d+\]", "", self.path(key)))
            return reader(self, key, *default, **limits)

        return read_and_record

    for name in READERS:
        monkeypatch.setattr(Fields, name, recording(getattr(Fields, name)))
    for config in FULL[plugin.name]:
        parse(plugin.name, config, CNI_ARGS="IgnoreUnknown=1;IP=10.1.2.7/24")
    monkeypatch.undo()
    return read_keys


@pytest.mark.parametrize("name", FULL)
def test_parser_reads_exactly_the_keys_of_its_table(name, monkeypatch):
    """A plugin's parser reads each key of its table, and no other key."""
    plugin = PLUGINS[name]
    read_keys = list_read_keys(plugin, monkeypatch)
    listed = paths(plugin.keys)
    assert read_keys - READ_BY_ALL <= listed
    assert listed - READ_BY_ALL <= read_keys


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_every_key_in_the_source_is_in_a_table(name):
    """Each key in a plugin's source is in its table or a common one."""
    plugin = PLUGINS[name]
    known = {path.rpartition(".")[2] for path in paths((*COMMON, *REQUEST, *plugin.keys))} | {"cni"}
    for path in sorted((ROOT / plugin.cmd_add.__module__.replace(".", "/")).parent.glob("*.py")):
        if path.name not in OTHER_READERS:
            assert set(literal_keys(path)) <= known, path


def literal_keys(path: Path) -> Iterator[str]:
    """Yields the string literals that a source passes to readers of Fields."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Call(func=ast.Attribute(attr=reader), args=[ast.Constant(value=str(key)), *_]) if (
                reader in READERS
            ):
                yield key


def leaves(keys: tuple[Key, ...], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    for key in keys:
        yield (*path, key.name), key
        if OBJECT in key.kinds:
            yield from leaves(key.keys, (*path, key.name))


LEAVES = [
    pytest.param(plugin.name, path, key, id=f"{plugin.name}-{'.'.join(path)}")
    for plugin in PLUGINS.values()
    for path, key in leaves(plugin.keys)
]


@pytest.mark.parametrize(("name", "path", "key"), LEAVES)
def test_value_is_refused_only_for_a_wrong_type(name, path, key):
    """A parser refuses a value because of its type, with code 7, exactly if the table does not have that type."""
    refused = set()
    for kind, value in VALUES.items():
        keys: dict[str, Any] = {"ipam": {"type": "static", **REQUIRED[name]}} if name in REQUIRED else {}
        inner = keys
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
        error = failure_of(partial(parse, name, keys), CniError)
        if error and f'"{".".join(path)}"' in error.msg and WRONG_TYPE.search(error.msg):
            refused.add(kind)
            assert error.code == 7
    contents = TEXTS if TEXTS & set(key.kinds) else set()  # the parser checks the content of strings
    assert refused - contents == VALUES.keys() - contents - set(key.kinds)


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_choices_are_those_that_the_parser_accepts(name, capsys):
    """A parser accepts each choice of its table, and refuses or replaces another word with a message."""
    for path, key in leaves(PLUGINS[name].keys):
        for word in (*key.choices, "another") if key.choices else ():
            config: Any = word
            for part in reversed(path):
                config = {part: config}
            keys = {"ipMasq": True, "master": "up0", "ipam": {"type": "host-local"}, **config}
            error = failure_of(partial(parse, name, keys), CniError)
            assert bool(error or capsys.readouterr().err) is (word not in key.choices), (path, word, error)


def test_merged_tables_have_the_keys_of_both():
    """The merged tables of an interface plugin and its IPAM plugin have the keys of both."""
    key_paths = paths(merged(PLUGINS["bridge"].keys, PLUGINS["host-local"].keys))
    assert {"ipam.type", "ipam.ranges.subnet", "bridge", "runtimeConfig.mac", "runtimeConfig.ips"} <= key_paths
    assert "args.cni.ips" in key_paths
