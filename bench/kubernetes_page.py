"""The table of docs/performance.md with the figures of a cluster.

One rule: pure; all figures are of one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.page import shown

Report = Mapping[str, Any]  # the output of bench.kubernetes --json


def markdown(report: Report) -> str:
    """Returns the table of all sides, and the figures that do not depend on the plugins."""
    sides: Sequence[str] = report["about"]["sides"]
    columns = [_column(report["bursts"][side], report["streams"][side]) for side in sides]
    lines = [f"| | {' | '.join(sides)} |", "|---" * (1 + len(sides)) + "|"]
    lines += [f"| {title} | {' | '.join(column[title] for column in columns)} |" for title in columns[0]]
    return "\n".join((*lines, "", _common(report)))


def _column(bursts: Mapping[Any, Any], streams: Sequence[Sequence[float]]) -> dict[str, str]:
    """Returns the cells of a side, by the title of the row."""
    cells = {}
    for count, burst in bursts.items():
        answers = [second for one in burst for second in one["first_answer_s"]]
        cells[f"{_pods(count)}: first answer, s"] = f"{_percentile(answers, 50):.2f}, {_percentile(answers, 99):.2f}"
    for count, burst in bursts.items():
        calls = (shown(statistics.median(one["calls_ms"][verb] for one in burst)) for verb in ("ADD", "DEL"))
        cells[f"{_pods(count)}: ADD, DEL, ms"] = ", ".join(calls)
    return {**cells, "same node: Gbit/s, µs": _stream(streams)}


def _common(report: Report) -> str:
    about, agents = report["about"], report["agent"]
    rss, pss, share = (statistics.median(one[key] for one in agents) for key in ("Rss", "Pss", "idle_share"))
    direct, vxlan = (_stream(report["streams"][name]) for name in ("direct", "vxlan"))
    kernel = ".".join(str(about["kernel"]).split(".")[:2])
    return (
        f"Between nodes: {direct} directly, {vxlan} by VXLAN. An agent: {rss:.0f} MiB (PSS {pss:.0f}), {share:.2%} "
        f"of a processor when idle. From `kubectl apply` until all nodes are ready: {report['ready_s']:.0f} s. "
        f"Linux {kernel}, {about['cpus']} processors; load before: {about['load']:.1f}."
    )


def _pods(count: int | str) -> str:
    return "1 pod" if int(count) == 1 else f"{count} pods"


def _stream(streams: Sequence[Sequence[float]]) -> str:
    """Returns the medians of throughput and round trip."""
    return ", ".join(shown(statistics.median(column)) for column in zip(*streams, strict=True))


def _percentile(values: Sequence[float], percent: int) -> float:
    """Returns the least of the values that at least so many percent of them do not exceed."""
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]
