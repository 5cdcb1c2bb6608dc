"""Any content of a file leads to findings, never to a traceback."""

import io
import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire import cli, networks
from podwire.lint import directory
from podwire.main import PLUGINS
from tests.fuzz import mutation
from tests.support.binaries import ROOT

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
