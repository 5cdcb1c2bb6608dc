"""A cluster of 5,000 nodes of a real one's size: memory and processor time of a process that follows them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import cluster_nodes
from tests.support.binaries import ROOT
from tests.support.kubernetes_double import NODES, KubernetesDouble

COUNT = 5000
HEARTBEAT_S = 300.0
PEAK_MIB = 60
WATCHED_S = 10.0


@pytest.fixture(scope="module")
def cluster(tls: Path) -> Iterator[KubernetesDouble]:
    """A double with 5,000 nodes of 10 kB."""
    double = KubernetesDouble(tls)
    for number in range(COUNT):
        put(double, number)
    double.store.compact()
    with double.running():
        yield double


@pytest.fixture
def agent(cluster, tls, token_file) -> Iterator[tuple[dict[str, float], Callable[[], dict[str, float]]]]:
    """A process that follows the nodes: its figures after the first list, and a function that returns later ones."""
    arguments = (cluster.url, tls / "ca.crt", token_file)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.watching_agent", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout

        def ask() -> dict[str, float]:
            print(file=process.stdin, flush=True)
            return line_of(process)

        try:
            yield line_of(process), ask
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait(20)


def line_of(process: Any) -> dict[str, float]:
    figures: dict[str, float] = json.loads(process.stdout.readline())
    return figures


def put(double: KubernetesDouble, number: int, beat: int = 0) -> None:
    document = cluster_nodes.node(number, beat)
    double.store.put(f"{NODES}/{document['metadata']['name']}", document)


def test_5000_nodes(cluster, agent):
    """The first list takes at most 60 MiB; the heartbeats of all nodes take 2 % of a processor and report nothing."""
    first, ask = agent
    assert first["nodes"] == COUNT
    assert first["peak_kib"] >> 10 <= PEAK_MIB
    cluster.wait_for_watch()
    before, started = ask(), time.monotonic()
    beats = 0
    while (now := time.monotonic()) - started < WATCHED_S:
        for number in range(beats, int((now - started) * COUNT / HEARTBEAT_S)):
            put(cluster, number % COUNT, number + 1)
            beats += 1
        time.sleep(0.05)
    after, seconds = ask(), time.monotonic() - started
    share = (after["cpu_s"] - before["cpu_s"]) / seconds
    print(
        f"first list {first['first_s']:.1f} s, peak {after['peak_kib'] >> 10} MiB, {share:.2%} of a core, {beats} beats"
    )
    assert after["changes"] == 0
    assert after["peak_kib"] >> 10 <= PEAK_MIB
    assert share < 0.02
    put(cluster, 7, beats + 1)
    document = cluster_nodes.node(7)
    document["status"]["addresses"][0]["address"] = "172.31.0.7"
    cluster.store.put(f"{NODES}/{document['metadata']['name']}", document)
    end = time.monotonic() + 5
    while ask()["changes"] != 1:
        assert time.monotonic() < end
