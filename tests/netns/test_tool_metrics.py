"""`podwire metrics` on a real node: what Prometheus' own parser reads, and how the file is written."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool


def samples(text: str) -> dict[tuple[str, frozenset[str]], float]:
    """Returns the samples of a text by name and label values."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(read: Mapping[tuple[str, frozenset[str]], float], name: str, *labels: str) -> float:
    """Returns the only sample of a metric that has these values among its labels."""
    (only,) = (number for (each, values), number in read.items() if each == name and {*labels} <= values)
    return only


@pytest.fixture
def log(tool: Tool) -> Path:
    """The log of a network whose verbs are logged."""
    path = tool.directory / "verbs.log"
    tool.configure({**tool.bridge(ipMasq=True), "logFile": str(path)}, PORTMAP)
    return path


def test_metrics_describe_the_node(tool: Tool, log: Path, new_sandbox: Callable[[], Namespace]):
    """Addresses, attachments by state, leaked objects, findings and verbs agree with the node."""
    pods = new_sandbox(), new_sandbox()
    for number, pod in enumerate(pods):
        tool.succeed("add", "net", pod.name, "--container-id", f"pod{number}")
    tool.fail(1, "add", "net", pods[0].name, "--container-id", "pod2", "-i", "lo")
    read = samples(tool.succeed("metrics"))
    assert value(read, "podwire_ipam_addresses", "net", "10.22.0.1-10.22.0.254") == 253
    assert value(read, "podwire_ipam_addresses_used", "net") == 2
    assert value(read, "podwire_ipam_addresses_leaked", "net") == 0
    assert value(read, "podwire_attachments", "net", "ok") == 2
    assert value(read, "podwire_attachments", "net", "gone") == 0
    assert value(read, "podwire_verb_duration_seconds_count", "bridge", "ADD") == 3
    assert value(read, "podwire_verb_errors_total", "bridge", "ADD") == 1
    assert value(read, "podwire_log_readable", str(log)) == 1
    assert value(read, "podwire_inspection_complete") == 1
    assert not any(name == "podwire_leaked_objects" for name, _ in read)
    tool.delete_netns(pods[1])
    read = samples(tool.succeed("metrics"))
    assert value(read, "podwire_ipam_addresses_leaked", "net") == 1
    assert value(read, "podwire_attachments", "net", "gone") == 1
    assert value(read, "podwire_leaked_objects", "net", "cache") == 1
    findings = {labels for name, labels in read if name == "podwire_findings"}
    assert any("warning" in labels and "addresses" in labels for labels in findings), findings


def test_every_metric_is_documented(tool: Tool, log: Path, new_sandbox: Callable[[], Namespace]):
    """The metrics of a node with a leak and a failed verb are those of docs/metrics.md."""
    pod = new_sandbox()
    tool.succeed("add", "net", pod.name)
    tool.fail(1, "add", "net", pod.name, "--container-id", "other", "-i", "lo")
    tool.delete_netns(pod)
    (table,) = Document(DOCS / "metrics.md").tables()
    documented_kinds = {row["metric"].strip("`"): row["type"] for row in table}
    families = {
        f"{family.name}{'_total' if family.type == 'counter' else ''}": family
        for family in text_string_to_metric_families(tool.succeed("metrics"))
    }
    assert {name: family.type for name, family in families.items()} == documented_kinds
    assert all(family.documentation.endswith(".") for family in families.values())


def test_file_is_replaced_atomically(tool: Tool, log: Path, new_sandbox: Callable[[], Namespace]):
    """The file is readable for everyone and a new one each time, and the counters go on after a rotation."""
    directory = tool.directory / "textfile"
    directory.mkdir()
    path = directory / "podwire.prom"
    tool.succeed("add", "net", new_sandbox().name)
    assert tool.succeed("metrics", "--file", str(path)) == ""
    assert path.stat().st_mode & 0o777 == 0o644
    inode = path.stat().st_ino
    log.rename(f"{log}.1")
    tool.succeed("add", "net", new_sandbox().name)
    tool.succeed("metrics", "--file", str(path))
    assert path.stat().st_ino != inode
    assert value(samples(path.read_text()), "podwire_verb_duration_seconds_count", "bridge", "ADD") == 2
    assert sorted(one.name for one in directory.iterdir()) == ["podwire.prom", "podwire.prom.state"]
    before = path.read_bytes()
    (directory / "podwire.prom.state").write_text("damaged")
    assert "delete it: the counters then start again" in tool.fail(3, "metrics", "--file", str(path))
    assert path.read_bytes() == before


def test_unusable_file_is_refused(tool: Tool):
    """A name that node-exporter ignores and a directory that does not exist are refused."""
    assert "reads only *.prom" in tool.fail(2, "metrics", "--file", "/tmp/podwire.txt")
    assert "cannot write /none/podwire.prom" in tool.fail(3, "metrics", "--file", "/none/podwire.prom")
