"""The tables of docs/pools.md, what addresses for a whole cluster cost, and of docs/agent.md, what joining nodes cost.

One rule: pure; all figures of a page are of one run, but those of the former algorithm, which no run can measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARTS = ("pods", "fill", "etcd", "agent", "waits")  # of the page of pools
MAX_REQUESTS = 60_000  # to fill 5,000 nodes with 250 pods each
MAX_RATIO = 1.05
_LARGE = 50_000
_ALL_PAIRS_MS = {"join_ms": 102, "entry_ms": 178}  # in 5,000 nodes, when each change compared all nodes with all
_MIB = 1 << 20

Report = Mapping[str, Any]  # the output of bench.cluster --json


def count_requests(part: Report) -> int:
    """Returns the number of all requests of a part."""
    return sum(part["requests"].values())


def markdown(report: Report) -> dict[str, str]:
    """Returns the generated part of the page, by the name of its marks."""
    about = report["about"]
    duration_s = sum(report[name]["duration_s"] for name in PARTS)
    loads = ", ".join(f"{report[name]['load']:.1f}" for name in PARTS)
    kernel = ".".join(str(about["kernel"]).split(".")[:2])
    lines = [
        f"Linux {kernel}, {about['cpus']} processors, {duration_s / 60:.0f} minutes; the machine's load "
        f"before its parts was {loads} (on a busy machine trust the minima).",
        "",
        *_pods(report["pods"]),
        "",
        *_cluster(report),
        "",
        *_waits(report["waits"]),
        "",
        *_on_paper(report),
    ]
    return {"cluster-cost": "\n".join(lines)}


def joins(report: Report) -> dict[str, str]:
    """Returns the generated part of the agent's page, by the name of its marks."""
    part = report["joins"]
    small, large = sorted(part["join_ms"], key=int)
    lines = [
        f"| processor time of an agent, in ms | {int(small):,} nodes | {int(large):,} nodes "
        "| before (every node compared with every other) |",
        "|---|---|---|---|",
    ]
    for key, what in (
        ("join_ms", "the conflicts of a node that joins"),
        ("entry_ms", "the conflicts of a node that claims a further block"),
    ):
        lines.append(f"| {what} | {part[key][small]:.2f} | {part[key][large]:.2f} | {_ALL_PAIRS_MS[key]} |")
    lines += [
        "",
        f"{part['nodes']:,} Nodes created at once, each with its podCIDRs a moment later, which takes the test server "
        f"{part['joining_s']:.0f} s: the last route is there {part['late_s']:.1f} s after the last event, and the "
        f"agent has used {part['agent_cpu_s']:.1f} s of a processor (load average before: {part['load']:.1f}).",
    ]
    return {"join-cost": "\n".join(lines)}


def _pods(part: Report) -> list[str]:
    lines = ["| a pod, in ms | pool | ranges | ratio | of minima |", "|---|---|---|---|---|"]
    for row in part["ms"]:
        pool, ranges = row["podwire"], row["reference"]
        ratios = " | ".join(_ratio(row[key]) for key in ("ratio", "ratio_of_least"))
        lines.append(f"| {row['case']} | {pool['median']:.2f} | {ranges['median']:.2f} | {ratios} |")
    return lines


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value <= MAX_RATIO else f"**{value:.2f}**"


def _cluster(report: Report) -> list[str]:
    fill, etcd, agent = report["fill"], report["etcd"], report["agent"]
    kinds, methods = _listed(fill["requests"]), _listed(etcd["requests"])
    sockets, pods = report["pods"]["sockets"], report["waits"]["requests_of_pods"]
    return [
        f"| a cluster of {fill['nodes']:,} nodes with {fill['pods'] // fill['nodes']} pods each | |",
        "|---|---|",
        f"| requests of a pod's ADD and DEL, counted at etcd; sockets that they open to anything but the kernel "
        f"| {pods}; {sockets} |",
        f"| requests of all managers until all pods have addresses | {count_requests(fill):,}: {kinds} |",
        f"| requests for each pod | {count_requests(fill) / fill['pods']:.3f} |",
        f"| the same of {etcd['nodes']:,} nodes in etcd, as etcd counts them | {count_requests(etcd):,}: {methods} |",
        f"| seconds of the machine for these {etcd['nodes']:,} managers and etcd | {etcd['seconds']:.0f} |",
        f"| objects in the store, of these blocks | {fill['objects']:,}, {fill['blocks']:,} |",
        f"| their bytes; in etcd's database | {fill['bytes'] / 1e6:.1f} MB; {etcd['database_bytes'] / 1e6:.1f} MB |",
        f"| one agent among {agent['entries']:,} entries: memory at its peak, idle "
        f"| {agent['peak_mib']:.0f} MiB, {agent['idle_mib']:.0f} MiB |",
        f"| its start until it is ready: seconds, of these of a processor "
        f"| {agent['start_s']:.1f}, {agent['start_cpu_s']:.1f} |",
        f"| requests of its start, with the watch of the entries | "
        f"{sum(agent['start_requests'].values())}: {_listed(agent['start_requests'])} |",
        f"| idle: share of a processor, requests | {agent['idle_share']:.2%}, {agent['idle_requests']} |",
    ]


def _listed(requests: Mapping[str, int]) -> str:
    """Returns the requests by kind, the most frequent first."""
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(requests.items(), key=lambda item: -item[1]))


def _waits(part: Report) -> list[str]:
    lines = [
        "| wait of an ADD on a node without a free address, in seconds | p50 | p99 | number |",
        "|---|---|---|---|",
    ]
    for row in part["rows"]:
        seconds = f"{row['p50_s']:.2f} | {row['p99_s']:.2f}"
        lines.append(f"| etcd of three members, {row['state']} | {seconds} | {row['count']} |")
    return lines


def _on_paper(report: Report) -> list[str]:
    """Returns what follows for a cluster of 50,000 nodes: claims grow with the nodes, lists with their square."""
    fill, agent = report["fill"], report["agent"]
    factor = _LARGE / fill["nodes"]
    kib_per_entry = 1024 * max(0.0, agent["peak_mib"] - agent["base_mib"]) / agent["entries"]
    list_mb = _LARGE * fill["entry_bytes"] / 1e6
    requests, routes = factor * count_requests(fill), factor * fill["blocks"]
    memory_mib = agent["base_mib"] + kib_per_entry * _LARGE / 1024
    return [
        f"**On paper: {_LARGE:,} nodes** with as many pods each. Requests and objects grow with the nodes: "
        f"{requests:,.0f} requests to fill the cluster (at 1,000 a second {requests / 60_000:.0f} minutes), and "
        f"{factor * fill['objects']:,.0f} objects of {factor * fill['bytes'] / 1e6:.0f} MB; etcd's default quota is "
        f"2 GB. The reads of the entries do not: each agent reads all of them when it registers and when it opens its "
        f"watch, {list_mb:.0f} MB each time, so {2 * list_mb * _LARGE / 1e6:.1f} TB if all nodes start at once: let "
        f"them join over an hour. An agent keeps them in {memory_mib:.0f} MiB ({kib_per_entry:.1f} KiB each), and its "
        f"kernel has {routes:,.0f} routes in the mode `routed`: use larger blocks there, or `segment`. This "
        f"size is not tested.",
    ]
