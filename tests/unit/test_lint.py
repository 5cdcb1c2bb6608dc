"""`podwire lint` of one file: mistakes have severity, key, position and hint; any content leads to findings only."""

import io
import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire import cli, networks
from podwire.lint import directory
from podwire.lint.source import SourceFile
from podwire.main import PLUGINS
from tests.fuzz import mutation
from tests.support.binaries import ROOT

IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]]}
BRIDGE = {"type": "bridge", "isGateway": True, "ipam": IPAM}
MISTAKES = tomllib.loads((ROOT / "tests" / "data" / "lint.toml").read_text())


def network(*plugins: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Returns a network's list."""
    return {"cniVersion": "1.0.0", "name": "net", **keys, "plugins": list(plugins)}


def content(case: dict[str, Any]) -> Any:
    """Returns the file of a mistake; lint.toml explains the keys."""
    first = {**BRIDGE, "ipam": IPAM | case.get("ipam", {}), **case.get("bridge", {})}
    plugins = case.get("plugins", [first, *([case["next"]] if "next" in case else [])])
    return case.get("text") or network(*plugins, **case.get("net", {}))


def lint(path: Path, text: str | bytes | dict[str, Any]) -> SourceFile:
    """Writes a file and checks it."""
    data = json.dumps(text) if isinstance(text, dict) else text
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return directory.lint_file(str(path), PLUGINS, ()).files[0]


def list_findings(page: SourceFile) -> list[str]:
    """Returns the severity, key and text of each finding."""
    return [f"{finding.severity} {finding.key}: {finding.text}" for finding in page.findings]


@pytest.mark.every_case
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_key(mistake, tmp_path):
    """The findings of lint are exactly those of tests/data/lint.toml, with the hints there."""
    case = MISTAKES[mistake]
    page, expected = lint(tmp_path / "10-net.conflist", content(case)), case.get("findings", [])
    findings = list_findings(page)
    assert "hints" not in case or [one.hint for one in page.findings] == case["hints"]
    assert len(findings) == len(expected), findings
    for finding, (place, part) in zip(findings, (one.split(": ", 1) for one in expected), strict=True):
        assert finding.startswith(f"{place}: "), findings
        assert part in finding.partition(": ")[2], findings


def test_positions_of_findings():
    """Each finding in a file with many mistakes has the line and the column of its key."""
    broken = ROOT / "tests" / "data" / "netd" / "broken"
    page = directory.lint_file(str(broken / "10-misspelt.conflist"), PLUGINS, ()).files[0]
    printed = [f"{one.line}:{one.column}: {one.severity}: {one.key.rpartition('.')[2]}" for one in page.findings]
    assert printed == (broken / "positions.txt").read_text().splitlines()


def test_file_with_an_unread_suffix_is_checked(tmp_path):
    """A file that no runtime reads can be checked, with a note."""
    (finding,) = list_findings(lint(tmp_path / "net.txt", network(BRIDGE)))
    assert finding.startswith("note : ")


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


@pytest.mark.parametrize("name", ["10-net.conf", "10-net.json"])
def test_single_plugin_is_checked_like_a_list(name, tmp_path):
    """A file with the configuration of one plugin may also have the keys of a network."""
    single = {"cniVersion": "1.0.0", "name": "net", **BRIDGE, "colour": 1}
    assert list_findings(lint(tmp_path / name, single)) == [
        'warning colour: unknown key "colour": bridge does not read it'
    ]
    (finding,) = list_findings(lint(tmp_path / name, network(BRIDGE)))
    assert finding.startswith("error type: ")


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
    """With a directory of plugins, a missing plugin or IPAM plugin is a warning, also of those that flannel runs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bridge").touch()
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    page = directory.lint_file(str(path), PLUGINS, (str(tmp_path / "bin"),)).files[0]
    assert [finding.key for finding in page.findings] == ["plugins[0].ipam.type"]
    assert 'no plugin "host-local" in' in page.findings[0].text
    path.write_text(json.dumps(network({"type": "flannel", "delegate": {"mtu": 1400}})))
    page = directory.lint_file(str(path), PLUGINS, (str(tmp_path),)).files[0]
    assert {finding.text.split('"')[1] for finding in page.findings} == {"flannel", "bridge", "host-local"}


SAMPLES = sorted(
    path for path in (*ROOT.glob("conf/*.conflist"), *ROOT.glob("tests/data/netd/*/*.conf*")) if path.is_file()
)
DEFECT = "defect of podwire"


def check(path, data):
    """Checks a text in every way, and asserts what every result must satisfy."""
    path.write_bytes(data)
    page = directory.lint_file(str(path), PLUGINS, ()).files[0]
    lines = data.decode("utf-8", "replace").split("\n")
    for finding in page.findings:
        assert DEFECT not in finding.text + finding.hint, (finding, data)
        assert 1 <= finding.line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
    if networks.read_file(str(path)).network is None:
        assert any(finding.severity == "error" for finding in page.findings), data
    for arguments in (("--json",), ()):
        out = io.StringIO()
        status = cli.run(("lint", "--no-bin-dir", *arguments, str(path.parent)), {}, out, PLUGINS)
        assert status in (0, 1), out.getvalue()
        out.getvalue().encode()
        if arguments:
            assert json.loads(out.getvalue())["files"][0]["path"] == str(path)


def shared_directory(factory, name):
    """Returns a directory that all examples of a test use."""
    path = factory.getbasetemp() / name
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_changed_samples_are_checked(sample, tmp_path, request):
    """Each sample with a random change, as bytes or as JSON, is checked without an exception; at night with 300."""
    text = sample.read_bytes()
    for number in range(300) if request.config.getoption("--nightly") else [SAMPLES.index(sample)]:
        random = Random(f"{sample.name} {number}")
        value = mutation.parse(text.decode())  # again: a change may make it invalid
        if number % 2:
            data = mutation.mutate_bytes(random, text)
        else:
            data = mutation.serialize(mutation.mutate_json(random, value, [value])).encode("utf-8", "surrogatepass")
        check(tmp_path / f"10-x{sample.suffix}", data)


@settings(max_examples=10)
@given(st.binary(max_size=200))
def test_random_bytes_are_checked(tmp_path_factory, data):
    """Random bytes lead to at least one finding."""
    check(shared_directory(tmp_path_factory, "bytes") / "10-x.conf", data)


KEYS = ["type", "ipam", "name", "plugins", "ranges", "subnet", "capabilities", "args", "cni", "mtu"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["10.0.0.0/8", "fd00::/64"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=20)
@given(JSON, st.sampled_from(sorted(PLUGINS)))
def test_random_values_are_checked(tmp_path_factory, value, kind):
    """Values of every type under the keys that the checks read are checked without an exception."""
    plugin = {**value, "type": kind} if isinstance(value, dict) else {"type": kind, "ipam": value, "args": value}
    listed = {"cniVersion": "1.0.0", "name": "net", "plugins": [plugin, plugin]}
    check(shared_directory(tmp_path_factory, "values") / "10-x.conflist", json.dumps(listed).encode())
