"""`make bench-kubernetes`: podwire beside the reference plugins in one cluster: starts of pods, streams, the agent.

One rule: both use the same network, nodes and routes; only the executables in /opt/cni/bin are replaced, between pods.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench import kubernetes_page
from bench.kubernetes_streams import Arrivals, Stream, measure_stream
from bench.page import inserted
from bench.versions import reference_version
from tests.kubernetes import images
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.modes import Object, backend
from tests.kubernetes.node import METRICS, Node
from tests.support import binaries
from tests.support.machine import BIN_DIR, eventually
from tests.support.namespaces import Namespace

_PAGE = binaries.ROOT / "docs" / "performance.md"
_REFERENCES = binaries.ROOT / "build" / "reference"
_PLUGINS = ("bandwidth", "bridge", "host-local", "loopback", "portmap")  # of the network, and containerd's
_MTU = 1450  # as "auto" computes it beside the tunnel; the reference plugins know only numbers
_STREAMS, _BURST = "stream", "burst"  # the labels of pods
_PODS = "/api/v1/namespaces/default/pods"
_WITHIN_S, _QUIET_S = 600, 2
_TICKS = os.sysconf("SC_CLK_TCK")
# containerd measures the call of all plugins of a network for a pod.
_OPERATIONS = re.compile(
    r'^containerd_cri_network_plugin_operations_duration_seconds_seconds_sum\{operation_type="(\w+)"\} (\S+)$', re.M
)
# DEL errors are not counted: kubelet may stop a pod twice at once, and a reference plugin's second DEL fails then.
_ERRORS = re.compile(r'^containerd_cri_network_plugin_operations_errors_\w+\{operation_type="set_up_pod"\}', re.M)
_VERBS = {"set_up_pod": "ADD", "tear_down_pod": "DEL"}


class Size(NamedTuple):
    """The size of a run: rounds for each number of pods at once, rounds of streams, seconds of idling."""

    rounds: Mapping[int, int] = {1: 7, 10: 2, 100: 1}
    streams: int = 3
    idle_s: float = 20.0


TINY = Size({1: 1, 3: 1}, 1, 1.0)
Pod = tuple[Namespace, str]  # with its address


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the table, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes", description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a short run, to see that all of it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument("--write", action="store_true", help="write the table of docs/performance.md")
    options = parser.parse_args(argv)
    if options.write and options.tiny:
        parser.error("--write needs a full run, without --tiny")
    report = measure(TINY if options.tiny else Size())
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    text = kubernetes_page.markdown(report)
    print(text)
    if options.write:
        _PAGE.write_text(inserted(_PAGE.read_text(), {"kubernetes": text}))
    return 0


def measure(size: Size) -> dict[str, Any]:
    """Starts a cluster, measures all in it, and returns the report."""
    references = [(_REFERENCES / link).resolve() for link in ("debian", "newest")]
    sides = {"podwire": binaries.directory(), **{f"reference {reference_version(one)}": one for one in references}}
    load, started = os.getloadavg()[0], time.monotonic()
    with _Cluster(Path(tempfile.gettempdir())).running() as cluster:
        bench = _Bench(cluster, sides)
        report = {"ready_s": cluster.ready_s, "streams": bench.measure_streams(size.streams)}
        report["bursts"] = bench.measure_bursts(size.rounds)
        report["agent"] = bench.measure_agents(size.idle_s)
    about = {"kernel": platform.release(), "cpus": len(os.sched_getaffinity(0)), "size": size._asdict()}
    about |= {"sides": list(sides), "load": load, "duration_s": time.monotonic() - started}
    return {"about": about, **report}


class _Cluster(Cluster):
    """A cluster whose network every side accepts; `ready_s` is the time from the installation until it is ready."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.mode = replace(self.mode, change=_network)
        self.ready_s = 0.0

    def install(self) -> None:
        """Installs podwire and waits until all nodes are ready."""
        started = time.monotonic()
        super().install()
        self.ready_s = time.monotonic() - started


def _network(network: Object) -> Object:
    """Returns the network of deploy/ with the backend and the kind of MTU that all plugins have."""
    first, *rest = backend("iptables")(network)["plugins"]
    return {**network, "plugins": [{**first, "mtu": _MTU}, *rest]}


class _Bench:
    """Pods in the cluster: those of streams exist during all measurements, those of bursts come and go."""

    def __init__(self, cluster: Cluster, sides: Mapping[str, Path]) -> None:
        self._cluster, self._sides, self._numbers = cluster, list(sides), itertools.count()
        self._client, self._used = cluster.control.server.client("admin"), ""
        for node, (number, directory) in itertools.product(cluster.nodes, enumerate(sides.values())):
            copy = f"{BIN_DIR.parent}/{number}"
            node.run("mkdir", copy)
            node.run("cp", "--archive", *(str(directory / name) for name in _PLUGINS), copy)
        self._pairs = {side: self._create_pods(side, [0, 0]) for side in sides}
        self._others = self._create_pods(self._sides[0], [1, 2])
        self._arrivals = Arrivals(*self._pairs[self._sides[0]][0])

    def measure_streams(self, rounds: int) -> dict[str, list[Stream]]:
        """Measures streams between pods: of each side on one node; from node 1 to the others, with podwire's pods."""
        (source, _), (direct, vxlan) = self._pairs[self._sides[0]], self._others
        pairs = {**self._pairs, "direct": [source, direct], "vxlan": [source, vxlan]}
        streams: dict[str, list[Stream]] = {name: [] for name in pairs}
        for name, (first, (target, address)) in list(pairs.items()) * rounds:
            streams[name].append(measure_stream(first[0], target, address))
        self._cluster.step("streams between pods are measured")
        return streams

    def measure_bursts(self, rounds: Mapping[int, int]) -> dict[str, dict[int, list[Any]]]:
        """Starts and deletes pods, of all sides alternately; returns the bursts by side and number of pods at once."""
        bursts: dict[str, dict[int, list[Any]]] = {side: {count: [] for count in rounds} for side in self._sides}
        for side in self._sides:
            self._burst(side, 1)  # reads the executables from the disk
        for count, times in rounds.items():
            for _, side in itertools.product(range(times), self._sides):
                bursts[side][count].append(self._burst(side, count))
            self._cluster.step(f"pods at once: {count}, measured {times} times with the plugins of each side")
        return bursts

    def measure_agents(self, idle_s: float) -> list[dict[str, float]]:
        """Measures the memory of the agent of each node, in MiB, and its share of a processor while no pod changes."""
        pids = {node: node.run("pgrep", "--full", "podwire-agent").split()[0] for node in self._cluster.nodes}
        before = {node: _processor_s(node, pid) for node, pid in pids.items()}
        time.sleep(idle_s)
        return [
            {
                "idle_share": (_processor_s(node, pid) - before[node]) / idle_s,
                **{field: _memory_mib(node, pid, field) for field in ("Rss", "Pss")},
            }
            for node, pid in pids.items()
        ]

    def _burst(self, side: str, count: int) -> dict[str, Any]:
        """Creates pods, waits until each has its first answer, and deletes them.

        Returns the seconds from each pod's creation to its first answer, and the milliseconds of CNI per pod, by verb.
        """
        self._use(side)
        names = [f"{_BURST}-{next(self._numbers)}" for _ in range(count)]
        before = self._calls()
        send = f"until echo $HOSTNAME | nc {self._arrivals.address} {Arrivals.PORT}; do :; done; exec sleep infinity"
        created = {name: self._create(name, _BURST, ["sh", "-c", send]) for name in names}
        assert eventually(lambda: created.keys() <= self._arrivals.at.keys(), within_s=_WITHIN_S), "pods do not start"
        self._cluster.control.kubectl("delete", "pods", f"--selector=app={_BURST}")
        after = self._wait_for_last_call()
        return {
            "first_answer_s": [self._arrivals.at[name] - at for name, at in created.items()],
            "calls_ms": {verb: 1000 * (after[verb] - before[verb]) / count for verb in after},
        }

    def _use(self, side: str) -> None:
        """Replaces the executables of all nodes by those of a side, each atomically; hard links stay hard links."""
        if side != self._used:
            files = [f"{BIN_DIR.parent}/{self._sides.index(side)}/{name}" for name in _PLUGINS]
            for node in self._cluster.nodes:
                node.run("ln", "--force", *files, str(BIN_DIR))
            self._used = side

    def _create_pods(self, side: str, nodes: Sequence[int]) -> list[Pod]:
        """Creates a pod of a side on each of these nodes, and returns them when they run."""
        self._use(side)
        placed = {f"{_STREAMS}-{next(self._numbers)}": self._cluster.nodes[number] for number in nodes}
        for name, node in placed.items():
            self._create(name, _STREAMS, ["sleep", "infinity"], node.name)
        addresses: dict[str, str] = {}

        def have_addresses() -> bool:
            pods = self._cluster.control.objects("pods", f"--selector=app={_STREAMS}")
            addresses.update({one["metadata"]["name"]: one["status"].get("podIP", "") for one in pods})
            return all(addresses[name] for name in placed)

        assert eventually(have_addresses, within_s=_WITHIN_S), "pods do not start"
        return [(node.network_of(addresses[name]), addresses[name]) for name, node in placed.items()]

    def _create(self, name: str, label: str, command: Sequence[str], node: str = "") -> float:
        """Creates a pod, on a node or where the scheduler puts it; returns the time of the request."""
        container = {"name": "box", "image": images.BUSYBOX, "command": command}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
        spec |= {"nodeName": node} if node else {}
        at = time.monotonic()
        meta = {"name": name, "labels": {"app": label}}
        self._client.create(_PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        return at

    def _wait_for_last_call(self) -> dict[str, float]:
        """Waits until no plugin runs for a while: kubelet repeats DEL, and nothing shows which is the last."""
        calls, before = self._calls(), None
        while calls != before:
            time.sleep(_QUIET_S)
            calls, before = self._calls(), calls
        return calls

    def _calls(self) -> dict[str, float]:
        """Returns the seconds that all CNI calls of all nodes have taken, by verb.

        Raises RuntimeError when an ADD has failed: only working plugins are timed.
        """
        totals = dict.fromkeys(_VERBS.values(), 0.0)
        for node in self._cluster.nodes:
            text = node.run("curl", "--silent", "--fail", f"http://{METRICS}/v1/metrics")
            if _ERRORS.search(text):
                raise RuntimeError(f"a plugin failed on {node.name}: {node.log('containerd').read_text()[-3000:]}")
            for operation, value in _OPERATIONS.findall(text):
                if operation in _VERBS:
                    totals[_VERBS[operation]] += float(value)
        return totals


def _processor_s(node: Node, pid: str) -> float:
    """Returns the processor time of a process of a node."""
    fields = node.run("cat", f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory_mib(node: Node, pid: str, field: str) -> float:
    """Returns Rss or Pss of a process of a node."""
    return int(node.run("cat", f"/proc/{pid}/smaps_rollup").partition(f"{field}:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
