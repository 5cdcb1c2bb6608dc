"""`python -m tests.support.watching_agent URL CA TOKEN`: a process that follows the nodes, and reports what that costs.

It prints a JSON line after the first list; then, for each line that it reads, one with the present figures.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import prometheus_client

from agent.api_server import Server
from agent.kubernetes import Client
from agent.node_source import KubernetesNodes
from agent.node_watch import Changed, NodeEvent, NodeWatch, Synced

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main(url: str, ca: str, token: str) -> None:
    """Follows the nodes until stdin ends."""
    synced = threading.Event()
    counts = {"nodes": 0, "changes": 0}

    def put(event: NodeEvent) -> None:
        if isinstance(event, Synced):
            counts["nodes"] = len(event.nodes)
            synced.set()
        elif isinstance(event, Changed):
            counts["changes"] += 1

    started = time.monotonic()
    prometheus_client.Counter("podwire_changes", "Changes of nodes")  # the agent's metrics take memory, too
    imported_kib = _memory_kib("VmRSS")
    watch = NodeWatch(KubernetesNodes(Client(Server(url, Path(ca)), Path(token))), put)
    watch.start()
    synced.wait()
    first_s = time.monotonic() - started
    print(json.dumps({"first_s": first_s, "imported_kib": imported_kib, **figures(), **counts}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({**figures(), **counts}), flush=True)
    watch.stop()


def figures() -> dict[str, float]:
    """Returns the memory and the CPU time of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return {"peak_kib": _memory_kib("VmHWM"), "rss_kib": _memory_kib("VmRSS"), "cpu_s": cpu_s}


def _memory_kib(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
