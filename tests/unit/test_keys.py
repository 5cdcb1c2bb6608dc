"""The keys in the tables are those that the code reads: the tests derive both independently."""

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

# Configurations for which each parser reads all of its keys; several if one key excludes another.
RANGE = {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.1"}
OTHER = {"subnet": "10.2.0.0/16"}
ROUTES = [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1300, "priority": 1, "table": 100, "scope": 0}]
DNS = {"nameservers": ["10.1.0.1"], "domain": "a", "search": ["b"], "options": ["c"]}
RATES = {"ingressRate": 8, "ingressBurst": 8, "egressRate": 8, "egressBurst": 8}
MASQUERADE = {
    "ipMasq": True,
    "ipMasqBackend": "nftables",
    "nonMasqueradeCIDRs": ["10.0.0.0/8"],
    "nonMasqueradeCluster": True,
}
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
    "dhcp": (
        {
            "ipam": {
                "provide": [{"option": "host-name", "value": "a", "fromArg": "K8S_POD_NAME"}],
                "request": [{"option": "121", "skipDefault": True}],
                "ipv4": True,
                "ipv6": "auto",
            }
        },
    ),
    "dummy": ({"ipam": {"type": "static"}},),
    "firewall": ({"ingressPolicy": "open"},),
    "host-device": (
        {
            "device": "eth1",
            "hwaddr": "02:00:00:00:00:01",
            "kernelpath": "/sys/devices/pci0000:00/0000:00:03.0",
            "pciBusID": "0000:00:03.0",
            "dataDir": "/run/devices",
            "runtimeConfig": {"deviceID": "0000:00:03.0"},
            "ipam": {"type": "static"},
            "dns": DNS,
        },
        {"capabilities": {"deviceID": True}, "dns": {}},
    ),
    "host-local": (
        {"ipam": {**RANGE, "ranges": [[OTHER]], "routes": ROUTES}, "args": {"cni": {"ips": ["10.1.0.6"]}}},
        {"ipam": {"routes": []}, "runtimeConfig": {"ipRanges": [[RANGE]], "ips": ["10.1.0.6"]}},
    ),
    "ipvlan": ({"mode": "l3", "dns": DNS},),
    "loopback": ({},),
    "macvlan": (
        {"mac": "02:00:00:00:00:01", "ipam": {"type": "static"}, "dns": DNS, "runtimeConfig": {}},
        {"dns": {"options": ["c"]}},
    ),
    "portmap": (
        {
            "conditionsV4": ["ip", "saddr", "10.0.0.0/8"],
            "runtimeConfig": {
                "portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "tcp", "hostIP": "10.0.0.1"}]
            },
        },
    ),
    "ptp": ({"ipam": {"type": "static"}, "dns": DNS, **MASQUERADE}, {"dns": {}}, {"dns": {"options": ["c"]}}),
    "sbr": ({"table": 5000, "gateways": ["10.1.0.1", "fd00::1"], "addSourceHints": True},),
    "static": (
        {"ipam": {"addresses": [{"address": "10.1.0.2/16", "gateway": "10.1.0.1"}], "routes": ROUTES, "dns": DNS}},
        {"ipam": {}, "args": {"cni": {"ips": ["10.1.0.6/16"]}}},
    ),
    "tap": (
        {"mac": "02:00:00:00:00:01", "ipam": {"type": "static"}, "dns": DNS, "runtimeConfig": {}},
        {"dns": {"options": ["c"]}},
    ),
    "tuning": (SETTINGS, {"args": {"cni": SETTINGS}}),
    "vlan": ({"master": "up0", "ingressQosMap": ["1:5"], "egressQosMap": ["5:1"], "dns": DNS},),
    "vrf": ({"vrfname": "blue", "table": 1001},),
}
# Keys that cni.conf reads for every plugin, or libcni or the delegating plugin.
READ_BY_ALL = {
    "name",
    "cniVersion",
    "type",
    "plugins",
    "capabilities",
    "capabilities.deviceID",
    "capabilities.ips",
    "ipam",
    "ipam.type",
    "args",
} | {"prevResult"}
# Modules whose readers do not read a configuration: files that the plugin has written, dhcp's calls.
OTHER_READERS = ("backup.py", "gob.py", "grants.py", "lease.py", "lease6.py", "record.py", "rpc.py", "rpc_result.py")
# Keys without which a parser does not read the others.
REQUIRED: dict[str, dict[str, Any]] = {"host-local": OTHER, "static": {}}
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
READERS: tuple[str, ...] = (
    "string",
    "boolean",
    "integer",
    "ip",
    "cidr",
    "raw",
    "has",
    "nested",
    "section",
    "string_map",
    "strings",
)
READERS += ("objects", "object_lists")


def parse_config(plugin: Plugin, config: dict[str, Any]) -> None:
    request = {"name": "net", "cniVersion": "1.0.0", "type": plugin.name, **config}
    text = gojson.dumps(request).encode()
    args = CmdArgs("ADD", "id", "", "eth0", "", (), {}, text)
    if plugin.parse:
        plugin.parse(args, parse(text))


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
        parse_config(plugin, config)
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


def typed() -> list[Any]:
    return [
        pytest.param(plugin, path, key, kind, id=f"{plugin.name}-{'.'.join(path)}-{kind}")
        for plugin in PLUGINS.values()
        for path, key in leaves(plugin.keys)
        for kind in VALUES
        if kind not in TEXTS or not TEXTS & set(key.kinds)  # the parser checks the content of strings
    ]


@pytest.mark.parametrize(("owner", "path", "key", "kind"), typed())
def test_value_is_refused_only_for_a_wrong_type(owner, path, key, kind):
    """A parser refuses a value because of its type exactly if the table does not have that type."""
    value = VALUES[kind]
    request: dict[str, Any] = {"ipam": {"type": "static", **REQUIRED[owner.name]}} if owner.name in REQUIRED else {}
    inner = request
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    problem = ""
    try:
        parse_config(owner, request)
    except CniError as error:
        problem = error.msg
    refused = f'"{".".join(path)}"' in problem and bool(WRONG_TYPE.search(problem))
    assert refused is (kind not in key.kinds), problem


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_choices_are_those_that_the_parser_accepts(name, capsys):
    """A parser accepts each choice of its table, and refuses or replaces another word with a message."""
    plugin = PLUGINS[name]
    for path, key in leaves(plugin.keys):
        for word in (*key.choices, "another") if key.choices else ():
            config: Any = word
            for part in reversed(path):
                config = {part: config}
            problem = ""
            try:
                parse_config(plugin, {"ipMasq": True, "master": "up0", "ipam": {"type": "host-local"}, **config})
            except CniError as error:
                problem = error.msg
            assert bool(problem or capsys.readouterr().err) is (word not in key.choices), (path, word, problem)


def test_capabilities_of_the_plugins():
    """The plugins use the capabilities of the CNI conventions, and no others."""
    assert {name: plugin.capabilities for name, plugin in PLUGINS.items() if plugin.capabilities} == {
        "bandwidth": ("bandwidth",),
        "bridge": ("mac",),
        "host-device": ("deviceID",),
        "host-local": ("ipRanges", "ips"),
        "macvlan": ("mac",),
        "portmap": ("portMappings",),
        "static": ("ips",),
        "tap": ("mac",),
        "tuning": ("mac",),
    }


def test_merged_tables_have_the_keys_of_both():
    """The merged tables of an interface plugin and its IPAM plugin have the keys of both."""
    key_paths = paths(merged(PLUGINS["bridge"].keys, PLUGINS["host-local"].keys))
    assert {
        "ipam.type",
        "ipam.ranges.subnet",
        "bridge",
        "runtimeConfig.mac",
        "runtimeConfig.ips",
        "args.cni.ips",
    } <= key_paths
