"""Where a finding is, what it offers, and which files belong to a network."""

import json

import pytest

from podwire.lint import directory
from podwire.main import PLUGINS
from tests.support.binaries import ROOT
from tests.support.lint_file import BRIDGE, lint, list_findings, network

BROKEN = ROOT / "tests/data/netd/broken"


def test_places_are_those_in_the_text():
    """A file full of mistakes: each is told with the line and the column where it stands."""
    page = directory.lint_file(str(BROKEN / "10-misspelt.conflist"), PLUGINS, ()).files[0]
    assert [(found.line, found.column, found.severity, found.key.rpartition(".")[2]) for found in page.findings] == [
        (4, 3, "warning", "disabelCheck"),
        (5, 3, "warning", "ipam"),
        (10, 7, "warning", "isGatway"),
        (11, 7, "error", "isDefaultGateway"),
        (12, 7, "error", "mtu"),
        (13, 7, "warning", "hairpin"),
        (14, 7, "error", "vlan"),
        (15, 7, "note", "promiscmode"),
        (16, 7, "warning", "subnet"),
        (17, 15, "warning", "nameserver"),
        (20, 22, "error", "subnet"),
        (20, 47, "warning", "gatway"),
        (21, 21, "warning", "dest"),
        (24, 42, "warning", "portmappings"),
        (24, 65, "error", "backend"),
        (25, 6, "error", "type"),
        (25, 26, "warning", "backend"),
        (26, 6, "warning", "type"),
        (27, 52, "error", "a"),
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("isGatway", "isGateway"),
        ("isdefaultgatway", "isDefaultGateway"),
        ("hairpin", "hairpinMode"),
        ("promisc", "promiscMode"),
        ("ipmask", "ipMasq"),
        ("nonMasqueradeCIDR", "nonMasqueradeCIDRs"),
        ("mac_spoofchk", "macspoofchk"),
        ("capability", "capabilities"),
    ],
)
def test_the_nearest_key_is_offered(written, meant, tmp_path):
    """A misspelt key is told with the one that is meant."""
    page = lint(tmp_path / "10-net.conflist", network({**BRIDGE, written: True}))
    assert [found.hint for found in page.findings if found.key.endswith(written)] == [f'did you mean "{meant}"?']


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("ipMasq", "True", "write true without quotes"),
        ("vlan", "12", "write 12 without quotes"),
        ("vlan", "x", "JSON types are not converted"),
        ("vlanTrunk", "1", "write it in brackets: [...]"),
        ("bridge", 5, "write it in double quotes"),
        ("disableCheck", True, 'move it beside "plugins"'),
        ("subnet", "10.1.0.0/16", 'move it into "ipam"'),
        ("cni", {}, 'move it into "args"'),
        ("colour", 1, "it is ignored"),
    ],
)
def test_a_hint_says_what_to_write(key, value, hint, tmp_path):
    """A wrong type comes with the right one, a key in the wrong place with the right place."""
    page = lint(tmp_path / "10-net.conflist", network({**BRIDGE, key: value}))
    assert [(found.key, found.hint) for found in page.findings] == [(f"plugins[0].{key}", hint)]


def test_a_number_without_end_is_an_error(tmp_path):
    """A number that Go cannot read is refused wherever it is."""
    text = json.dumps(network({"type": "calico", "x": [0]})).replace("[0]", "[1e999]")
    assert [item[:2] for item in list_findings(lint(tmp_path / "10-net.conflist", text))] == [
        ("error", "plugins[0].x[0]")
    ]


def test_a_file_of_another_name_is_checked_and_told_of(tmp_path):
    """A file that no runtime reads can be checked all the same."""
    found = list_findings(lint(tmp_path / "net.txt", network(BRIDGE)))
    assert [item[:2] for item in found] == [("note", "")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"", (1, 1)),
        (b'\xef\xbb\xbf{"name": "a"}', (1, 1)),
        (b'{\n "name": "a",\n}', (2, 13)),
        (b'{\n // why\n "name": "a"}', (2, 2)),
        (b"[" * 1000 + b"]" * 1000, (1, 1)),
        (b"[]", (1, 1)),
    ],
)
def test_what_is_no_object_is_an_error_with_a_place(text, place, tmp_path):
    """A file that is no JSON object has one error, where it stops to be one."""
    findings = lint(tmp_path / "10-net.conflist", text).findings
    assert [(found.severity, found.line, found.column) for found in findings] == [("error", *place)]


def test_a_name_that_is_there_twice_is_told(tmp_path):
    """Of two equal names the last counts, which nobody means."""
    text = '{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "loopback", "type": "loopback"}]}'
    assert [found.key for found in lint(tmp_path / "10-net.conflist", text).findings] == ["plugins[0].type"]


@pytest.mark.parametrize("name", ["10-net.conf", "10-net.json"])
def test_one_plugin_alone_is_checked_like_a_list_of_one(name, tmp_path):
    """A file with the configuration of one plugin has the network's keys beside the plugin's."""
    alone = {"cniVersion": "1.0.0", "name": "net", **BRIDGE, "colour": 1}
    assert list_findings(lint(tmp_path / name, alone)) == [
        ("warning", "colour", 'unknown key "colour": bridge does not read it')
    ]
    assert [found[:2] for found in list_findings(lint(tmp_path / name, network(BRIDGE)))] == [("error", "type")]


def test_plugins_beside_a_list_are_checked(tmp_path):
    """A plugin that stands in NAME/*.conf beside its list belongs to it, and is told of at its own place."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/20-portmap.conf").write_text('{"type": "portmap",\n "backnd": "iptables"}')
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    first, second = directory.lint_file(str(path), PLUGINS, ()).files
    assert list_findings(first) == []
    assert [(found.line, found.key) for found in second.findings] == [(1, "type"), (2, "backnd")]
    path.write_text(json.dumps(network(BRIDGE, loadOnlyInlinedPlugins=True)))
    assert len(directory.lint_file(str(path), PLUGINS, ()).files) == 1


def test_a_plugin_that_is_not_installed_is_told(tmp_path):
    """With a directory of plugins, one that is not in it is a warning, and so is an IPAM plugin."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bridge").touch()
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    page = directory.lint_file(str(path), PLUGINS, (str(tmp_path / "bin"),)).files[0]
    assert [found.key for found in page.findings] == ["plugins[0].ipam.type"]
    assert 'no plugin "host-local" in' in page.findings[0].text
