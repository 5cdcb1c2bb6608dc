"""The simulated cluster of `make bench-cluster` in small, and the tables of its figures."""

from __future__ import annotations

from typing import Any

import pytest

from bench import cluster_joins, cluster_page
from bench.cluster import fill_double
from bench.cluster_page import MAX_REQUESTS
from bench.figures import Row, as_json, figures

NODES, PODS = 20, 250


@pytest.fixture(scope="module")
def filled() -> dict[str, Any]:
    return fill_double(NODES, PODS)


def test_a_cluster_is_filled_with_few_requests_and_objects(filled):
    """Filling takes at most twelve requests a node; space, nodes and blocks are objects of a quarter of a kilobyte."""
    assert filled["pods"] == NODES * PODS
    assert filled["blocks"] == 5 * NODES
    assert cluster_page.count_requests(filled) <= MAX_REQUESTS * NODES / 5000
    assert filled["objects"] == 1 + NODES + filled["blocks"]
    assert 150 < filled["bytes"] / filled["objects"] < 350


def test_the_page_has_the_figures(filled):
    """The tables have the requests by kind, ratios above their aim in bold, and what follows for 50,000 nodes."""
    row = as_json(Row("host-local ADD", figures([2.2]), figures([2.0])))
    report: dict[str, Any] = {
        "about": {"kernel": "6.1.0", "cpus": 2},
        "pods": {"ms": [row], "sockets": 0, "load": 0.1, "duration_s": 60.0},
        "fill": {**filled, "load": 0.2, "duration_s": 60.0},
        "etcd": {**filled, "requests": {"KV.Txn": 180}, "database_bytes": 1e6, "load": 0.3, "duration_s": 60.0},
        "agent": {"entries": 5000, "start_s": 2.0, "start_cpu_s": 1.0, "start_requests": {"KV.Range": 3}}
        | {"peak_mib": 60.0, "idle_mib": 50.0, "base_mib": 40.0, "idle_share": 0.001, "idle_requests": 0}
        | {"load": 0.4, "duration_s": 60.0},
        "waits": {
            "rows": [{"state": "all members run", "count": 9, "p50_s": 0.5, "p99_s": 0.6}],
            "requests_of_pods": 0,
            "load": 0.5,
            "duration_s": 60.0,
        },
    }
    text = cluster_page.markdown(report)["cluster-cost"]
    assert "| host-local ADD | 2.20 | 2.00 | **1.10** | **1.10** |" in text
    assert "100 swap_block, 80 swap_entry, 20" in text
    assert "0.1, 0.2, 0.3, 0.4, 0.5" in text
    assert "550,000 requests to fill" in text
    assert "240 MiB (4.1 KiB each)" in text


def test_the_agents_page_has_the_figures():
    """The table has the times by the size of the cluster, also from JSON, and those of the former algorithm."""
    times = {"join_ms": {"500": 0.1, "5000": 0.2}, "entry_ms": {"500": 0.3, "5000": 0.4}}
    figures = {"nodes": 5000, "joining_s": 20.0, "late_s": 2.0, "agent_cpu_s": 5.0, "load": 0.5}
    text = cluster_page.joins({"joins": {**times, **figures}})["join-cost"]
    assert "| the conflicts of a node that joins | 0.10 | 0.20 | 102 |" in text
    assert "| the conflicts of a node that claims a further block | 0.30 | 0.40 | 178 |" in text
    assert "2.0 s after the last event" in text


def test_the_cost_of_a_change_is_measured():
    """A node that joins, and one that gets another block, take processor time."""
    assert cluster_joins.join_ms(3) > 0
    assert cluster_joins.entry_ms(30) > 0
