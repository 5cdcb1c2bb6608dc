"""The metrics: Prometheus' text format and conventions, the counts of the log, the alert rules."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics import Metrics
from cni.errors import CniError
from podwire import logs
from podwire.layers import Layer
from podwire.metrics import exposition, verb_counts
from podwire.metrics.exposition import COUNTER, GAUGE, MetricFamily, Sample
from podwire.metrics.verb_counts import VerbCounts
from podwire.node.records import Directories
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, Document

RULES = ROOT / "deploy" / "prometheus" / "podwire-rules.yaml"


def line(command: str = "ADD", ms: float = 3.0, code: int = 0) -> str:
    error = {"error": {"code": code, "msg": "m"}} if code else {}
    return json.dumps({"plugin": "bridge", "command": command, "ms": ms, **error}) + "\n"


def values(counts: VerbCounts) -> dict[tuple[str, ...], float]:
    """Returns the samples of the counts that are not 0, by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition.render(counts.families()))
        for sample in family.samples
        if sample.value
    }


def counted(counts: VerbCounts, command: str = "ADD") -> float:
    return values(counts).get(("podwire_verb_duration_seconds_count", "bridge", command), 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with one verb."""
    path = tmp_path / "verbs.log"
    path.write_text(line())
    return path


def test_parser_reads_hostile_labels():
    """Quotes, backslashes, line ends and bytes that are no UTF-8 in a label are read back by Prometheus' parser."""
    name = 'a"b\\n\n\\\udcff}'
    text = exposition.render([MetricFamily("m", GAUGE, "A\nmeaning.", (Sample({"network": name, "b": ""}, 2.5),))])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"network": name.replace("\udcff", "?"), "b": ""}
    assert family.samples[0].value == 2.5


def test_family_without_samples_is_left_out():
    """A metric without samples is not printed, and large numbers are printed in full."""
    text = exposition.render(
        [MetricFamily("a", COUNTER, "A.", ()), MetricFamily("b", GAUGE, "B.", (Sample({}, 2**64),))]
    )
    assert text == "# HELP b B.\n# TYPE b gauge\nb 18446744073709551616\n"


def test_log_becomes_a_histogram(log: Path):
    """Durations are counted up to each bound and summed in seconds, errors by their code."""
    log.write_text(line(ms=5) + line(ms=700) + line(ms=20000, code=11) + line("DEL", 1) + "no JSON\n[]\n{}\n")
    counts = VerbCounts()
    counts.read_log(str(log))
    bucket = "podwire_verb_duration_seconds_bucket"
    read = values(counts)
    assert [read.get((bucket, "bridge", "ADD", bound)) for bound in ("0.005", "0.5", "1.0", "10.0", "+Inf")] == [
        1, 1, 2, 2, 3,
    ]  # fmt: skip
    assert read["podwire_verb_duration_seconds_sum", "bridge", "ADD"] == pytest.approx(20.705)
    assert read["podwire_verb_errors_total", "bridge", "ADD", "11"] == 1
    assert counted(counts, "DEL") == 1


def test_verbs_are_counted_once(log: Path):
    """A second reading counts only new whole lines, also after the counts were stored and loaded."""
    counts = VerbCounts()
    counts.read_log(str(log))
    with log.open("a") as file:
        file.write(line() + line()[:20])
    counts.read_log(str(log))
    assert counted(counts) == 2
    state = log.parent / "state"
    state.write_text(json.dumps(counts.to_json()))
    counts = verb_counts.load(str(state))
    with log.open("a") as file:
        file.write(line()[20:])
    counts.read_log(str(log))
    assert counted(counts) == 3


def test_rotated_log_is_read_to_its_end(log: Path):
    """After a rotation the rest of the renamed log and the whole new log are counted."""
    counts = VerbCounts()
    counts.read_log(str(log))
    with log.open("a") as file:
        file.write(line("DEL"))
    os.rename(log, f"{log}.1")
    log.write_text(line() + line())
    counts.read_log(str(log))
    assert (counted(counts), counted(counts, "DEL")) == (3, 1)


def test_pipe_in_place_of_the_rotated_log_is_an_error(log: Path):
    """A pipe that has got the inode of the deleted log does not stop the metrics."""
    os.mkfifo(f"{log}.1")
    counts = VerbCounts(positions={str(log): (os.stat(f"{log}.1").st_ino, 0)})
    with pytest.raises(OSError, match="Illegal seek"):
        counts.read_log(str(log))


def test_log_of_the_environment_and_of_networks_is_listed(log: Path, tmp_path: Path):
    """The counted logs are those with which a runtime can switch the log on: PODWIRE_LOG and the key logFile."""
    other = tmp_path / "other.log"
    other.write_text(line())
    network = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "logFile": str(other)}]}
    (tmp_path / "net.conflist").write_text(json.dumps(network))
    paths = logs.list_files({"PODWIRE_LOG": str(log)}, Directories(str(tmp_path), (Layer(str(tmp_path / "cni")),)))
    assert paths[:2] == [str(log), str(other)]


def test_log_in_a_missing_directory_is_listed(tmp_path: Path):
    """A log that no verb can write is unreadable, not unused; one that no verb has written yet is not listed."""
    missing, unused = str(tmp_path / "missing" / "verbs.log"), str(tmp_path / "verbs.log")
    directories = Directories(str(tmp_path), (Layer(str(tmp_path / "cni")),))
    listed = [logs.list_files({"PODWIRE_LOG": path}, directories) for path in (missing, unused)]
    assert [missing in listed[0], unused in listed[1]] == [True, False]


def test_truncated_log_is_read_from_its_start(log: Path):
    """After a truncation (copytruncate) the log is counted from its start."""
    log.write_text(line() * 3)
    counts = VerbCounts()
    counts.read_log(str(log))
    log.write_text(line())
    counts.read_log(str(log))
    assert counted(counts) == 4


@pytest.mark.parametrize("content", ["", "[]", '{"format": 0}', '{"format": 1, "durations": [1]}', '{"format": 1}'])
def test_damaged_state_is_an_error(tmp_path: Path, content: str):
    """A state file with another content is an error with its fix, and is not overwritten silently."""
    (tmp_path / "state").write_text(content)
    with pytest.raises(CniError, match=r"cannot read the state .*/state") as raised:
        verb_counts.load(str(tmp_path / "state"))
    assert "delete it" in raised.value.details


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    listed: list[dict[str, Any]] = group["rules"]
    return listed


def documented() -> dict[str, str]:
    """Returns the type of each metric in docs/metrics.md."""
    (table,) = Document(DOCS / "metrics.md").tables()
    return {row["metric"].strip("`"): row["type"] for row in table}


def test_rules_use_documented_metrics():
    """Each alert rule has a severity, a summary and a description, and names only metrics that exist."""
    known = documented().keys() | metrics_of_the_agent() | {"podwire_verb_duration_seconds_bucket"}
    names = set()
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        names |= set(re.findall(r"podwire_\w+", rule["expr"]))
        assert rule["alert"].startswith("Podwire")
    assert names
    assert names - known == set()


def metrics_of_the_agent() -> set[str]:
    """Returns the names of the agent's metrics as Prometheus stores them, without those of the process."""
    metrics = Metrics("1")
    metrics.add_policies()
    families = text_string_to_metric_families(metrics.render().decode())
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return {name for name in names if name.startswith("podwire_") and not name.endswith("_created")}


def test_page_of_the_agent_lists_its_metrics():
    """The page of the agent lists each of its metrics, and no other."""
    (table,) = (rows for rows in Document(DOCS / "agent.md").tables() if "metric" in rows[0])
    assert {name for row in table for name in re.findall(r"podwire_\w+", row["metric"])} == metrics_of_the_agent()


def test_expressions_of_the_page_are_those_of_rules():
    """Each expression in docs/metrics.md is a rule's, or the beginning of one."""
    (block,) = Document(DOCS / "metrics.md").blocks("promql")
    expressions = [rule["expr"] for rule in rules()]
    assert [line for line in block.splitlines() if not any(each.startswith(line) for each in expressions)] == []
