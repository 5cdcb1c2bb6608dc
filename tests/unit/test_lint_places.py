"""Positions and hints of findings, and the files that belong to a network."""

import json

import pytest

from podwire.lint import directory
from podwire.main import PLUGINS
from tests.support.binaries import ROOT
from tests.support.lint_file import BRIDGE, lint, list_findings, network

BROKEN = ROOT / "tests/data/netd/broken"


def test_positions_of_findings():
    """Each finding in a file with many mistakes has the line and the column of its key."""
    page = directory.lint_file(str(BROKEN / "10-misspelt.conflist"), PLUGINS, ()).files[0]
    assert [
        (finding.line, finding.column, finding.severity, finding.key.rpartition(".")[2]) for finding in page.findings
    ] == [
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
    ("misspelt", "expected"),
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
def test_similar_key_is_suggested(misspelt, expected, tmp_path):
    """The hint for a misspelt key suggests the similar known key."""
    page = lint(tmp_path / "10-net.conflist", network({**BRIDGE, misspelt: True}))
    assert [finding.hint for finding in page.findings if finding.key.endswith(misspelt)] == [
        f'did you mean "{expected}"?'
    ]


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("ipMasq", "True", "write true without quotes"),
        ("vlan", "12", "write 12 without quotes"),
        ("vlan", "x", "write an integer"),
        ("vlanTrunk", "1", "write it in brackets: [...]"),
        ("bridge", 5, "write it in double quotes"),
        ("disableCheck", True, 'move it beside "plugins"'),
        ("subnet", "10.1.0.0/16", 'move it into "ipam"'),
        ("cni", {}, 'move it into "args"'),
        ("colour", 1, "it is ignored"),
    ],
)
def test_hint_has_the_correction(key, value, hint, tmp_path):
    """The hint for a wrong type has the correct type, and for a misplaced key the correct place."""
    page = lint(tmp_path / "10-net.conflist", network({**BRIDGE, key: value}))
    assert [(finding.key, finding.hint) for finding in page.findings] == [(f"plugins[0].{key}", hint)]


def test_too_large_number_is_an_error(tmp_path):
    """A number that Go cannot read is an error under any key."""
    text = json.dumps(network({"type": "calico", "x": [0]})).replace("[0]", "[1e999]")
    assert [item[:2] for item in list_findings(lint(tmp_path / "10-net.conflist", text))] == [
        ("error", "plugins[0].x[0]")
    ]


def test_file_with_an_unread_suffix_is_checked(tmp_path):
    """A file that no runtime reads can be checked, with a note."""
    findings = list_findings(lint(tmp_path / "net.txt", network(BRIDGE)))
    assert [item[:2] for item in findings] == [("note", "")]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"", (1, 1)),
        (b'\xef\xbb\xbf{"name": "a"}', (1, 1)),
        (b'{\n "name": "a",\n}', (2, 13)),
        (b'{\n // why\n "name": "a"}', (2, 2)),
        (b"[" * 1000 + b"]" * 1000, (1, 1)),
        (b"[]", (1, 1)),
    ],
)
def test_file_without_an_object_is_an_error(text, position, tmp_path):
    """A file that is not a JSON object has one error, at the first invalid character."""
    findings = lint(tmp_path / "10-net.conflist", text).findings
    assert [(finding.severity, finding.line, finding.column) for finding in findings] == [("error", *position)]


def test_repeated_name_is_reported(tmp_path):
    """A repeated name, of which runtimes use the last, is reported."""
    text = '{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "loopback", "type": "loopback"}]}'
    assert [finding.key for finding in lint(tmp_path / "10-net.conflist", text).findings] == ["plugins[0].type"]


@pytest.mark.parametrize("name", ["10-net.conf", "10-net.json"])
def test_single_plugin_is_checked_like_a_list(name, tmp_path):
    """A file with the configuration of one plugin may also have the keys of a network."""
    alone = {"cniVersion": "1.0.0", "name": "net", **BRIDGE, "colour": 1}
    assert list_findings(lint(tmp_path / name, alone)) == [
        ("warning", "colour", 'unknown key "colour": bridge does not read it')
    ]
    assert [finding[:2] for finding in list_findings(lint(tmp_path / name, network(BRIDGE)))] == [("error", "type")]


def test_drop_in_plugins_are_checked(tmp_path):
    """A plugin in NAME/*.conf beside its list belongs to the list, and its findings have its own file."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/20-portmap.conf").write_text('{"type": "portmap",\n "backnd": "iptables"}')
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    first, second = directory.lint_file(str(path), PLUGINS, ()).files
    assert list_findings(first) == []
    assert [(finding.line, finding.key) for finding in second.findings] == [(1, "type"), (2, "backnd")]
    path.write_text(json.dumps(network(BRIDGE, loadOnlyInlinedPlugins=True)))
    assert len(directory.lint_file(str(path), PLUGINS, ()).files) == 1


def test_plugin_that_is_not_installed(tmp_path):
    """With a directory of plugins, a missing plugin or IPAM plugin is a warning."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bridge").touch()
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    page = directory.lint_file(str(path), PLUGINS, (str(tmp_path / "bin"),)).files[0]
    assert [finding.key for finding in page.findings] == ["plugins[0].ipam.type"]
    assert 'no plugin "host-local" in' in page.findings[0].text
