"""Whatever a file holds, it is checked to its end: findings, never a traceback."""

import io
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire import cli, networks
from podwire.lint import directory
from podwire.main import PLUGINS
from tests.fuzz import mutation
from tests.support.binaries import ROOT

SAMPLES = sorted(
    path for path in (*ROOT.glob("conf/*.conflist"), *ROOT.glob("tests/data/netd/*/*.conf*")) if path.is_file()
)
CASES = 30  # for each sample
OURS = "defect of podwire"


def check(path, data):
    """Checks one text in every way, and demands what is so of all."""
    path.write_bytes(data)
    page = directory.lint_file(str(path), PLUGINS, ()).files[0]
    lines = data.decode("utf-8", "replace").split("\n")
    for found in page.findings:
        assert OURS not in found.text + found.hint, (found, data)
        assert 1 <= found.line <= len(lines)
        assert 1 <= found.column <= len(lines[found.line - 1]) + 1
    if networks.read_file(str(path)).network is None:
        assert any(found.severity == "error" for found in page.findings), data
    for arguments in (("--json",), ()):
        out = io.StringIO()
        status = cli.run(("lint", "--no-bin-dir", *arguments, str(path.parent)), {}, out, PLUGINS)
        assert status in (0, 1), out.getvalue()
        out.getvalue().encode()
        if arguments:
            assert json.loads(out.getvalue())["files"][0]["path"] == str(path)


def place(factory, name):
    """Returns a directory that all examples of a test share."""
    path = factory.getbasetemp() / name
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_change_of_a_sample_stops_the_check(sample, tmp_path):
    """Samples changed at random, as bytes and as JSON, are checked to the end, by fixed seeds."""
    text = sample.read_bytes()
    value = mutation.parse(text.decode())
    for number in range(CASES):
        random = Random(f"{sample.name} {number}")
        if number % 2:
            data = mutation.mutate_bytes(random, text)
        else:
            data = mutation.serialize(mutation.mutate_json(random, value, [value])).encode("utf-8", "surrogatepass")
        check(tmp_path / f"10-x{sample.suffix}", data)
        value = mutation.parse(text.decode())  # a change may make it invalid


@given(st.binary(max_size=200))
def test_any_bytes_are_checked(tmp_path_factory, data):
    """Bytes at random are one finding or more."""
    check(place(tmp_path_factory, "bytes") / "10-x.conf", data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["10.0.0.0/8", "fd00::/64"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "ipam", "name", "plugins", "ranges", "subnet", "capabilities", "args", "cni", "mtu"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(sorted(PLUGINS)))
def test_any_value_under_any_key_is_checked(tmp_path_factory, value, kind):
    """Values of every type at the keys that the checks look at are no surprise."""
    plugin = {**value, "type": kind} if isinstance(value, dict) else {"type": kind, "ipam": value, "args": value}
    listed = {"cniVersion": "1.0.0", "name": "net", "plugins": [plugin, plugin]}
    check(place(tmp_path_factory, "values") / "10-x.conflist", json.dumps(listed).encode())
