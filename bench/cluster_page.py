"""The tables of docs/pools.md, what addresses for a whole cluster cost, and of docs/agent.md, what joining nodes cost.

One rule: pure; all figures of a page are of one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PARTS = ("pods", "fill", "etcd", "agent", "waits")  # of the page of pools
MAX_REQUESTS = 60_000  # to fill 5,000 nodes with 250 pods each

Report = Mapping[str, Any]  # the output of bench.cluster --json


def count_requests(part: Report) -> int:
    """Returns the number of all requests of a part."""
    return sum(part["requests"].values())


def pools(report: Report) -> str:
    """Returns the generated part of the page about pools."""
    about = report["about"]
    duration_s = sum(report[name]["duration_s"] for name in PARTS)
    load = max(report[name]["load"] for name in PARTS)
    kernel = ".".join(str(about["kernel"]).split(".")[:2])
    where = (
        f"Linux {kernel}, {about['cpus']} processors, {duration_s / 60:.0f} minutes; the load "
        f"was up to {load:.1f} (on a busy machine trust the minima)."
    )
    pods = [(row["case"], *(f"{figure:.2f}" for figure in _medians_and_ratios(row))) for row in report["pods"]["ms"]]
    waits = [
        (f"etcd of three members, {row['state']}", f"{row['p50_s']:.2f}", f"{row['p99_s']:.2f}", str(row["count"]))
        for row in report["waits"]["rows"]
    ]
    fill = report["fill"]
    tables = (
        _table(("a pod, in ms", "pool", "ranges", "ratio", "of minima"), pods),
        _table(
            (f"a cluster of {fill['nodes']:,} nodes with {fill['pods'] // fill['nodes']} pods each", ""),
            _cluster(report),
        ),
        _table(("wait of an ADD on a node without a free address, in seconds", "p50", "p99", "number"), waits),
    )
    return "\n\n".join((where, *tables))


def joins(part: Report) -> str:
    """Returns the generated part of the agent's page."""
    small, large = sorted(part["join_ms"], key=int)
    join, entry = ([part[key][nodes] for nodes in (small, large)] for key in ("join_ms", "entry_ms"))
    return (
        f"An agent among {int(small):,} and {int(large):,} nodes uses {join[0]:.2f} and {join[1]:.2f} ms of a "
        f"processor to look for conflicts of a node that joins, {entry[0]:.2f} and {entry[1]:.2f} ms for a further "
        f"block of a node. After {part['nodes']:,} Nodes were created at once, the last route is there "
        f"{part['late_s']:.1f} s after the last event, and the agent has used {part['agent_cpu_s']:.1f} s of a "
        f"processor (load average before: {part['load']:.1f})."
    )


def _medians_and_ratios(row: Report) -> tuple[float, ...]:
    return row["podwire"]["median"], row["reference"]["median"], row["ratio"], row["ratio_of_least"]


def _cluster(report: Report) -> list[tuple[str, str]]:
    fill, agent = report["fill"], report["agent"]
    sockets, pods = report["pods"]["sockets"], report["waits"]["requests_of_pods"]
    return [
        ("requests of a pod's ADD and DEL; sockets that they open to anything but the kernel", f"{pods}; {sockets}"),
        (
            "requests of all agents until all pods have addresses; for each pod",
            f"{count_requests(fill):,}; {count_requests(fill) / fill['pods']:.3f}",
        ),
        (
            "objects in the store, of these blocks; their size",
            f"{fill['objects']:,}, {fill['blocks']:,}; {fill['bytes'] / 1e6:.1f} MB",
        ),
        (
            f"one agent among {agent['entries']:,} entries: memory at its peak, idle",
            f"{agent['peak_mib']:.0f} MiB, {agent['idle_mib']:.0f} MiB",
        ),
        ("its start until it is ready, in seconds", f"{agent['start_s']:.1f}"),
        ("idle: share of a processor, requests", f"{agent['idle_share']:.2%}, {agent['idle_requests']}"),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = "|---" * len(head) + "|"
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join((lines[0], rule, *lines[1:]))
