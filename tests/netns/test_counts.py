"""Limits of the messages, files and processes of each verb; no times."""

import re
from pathlib import Path

import pytest

from bench.counts import Counts, count_verbs
from bench.subject import BANDWIDTH, DUAL, NFTABLES, SINGLE, Kind, Subject
from bench.versions import reference_version
from tests.support import namespaces
from tests.support.namespaces import Namespace

# Limits for all plugins of a chain together: processes, system calls, files opened, netlink requests, sends. Lower them
# when less is enough; raising one needs a reason in the commit. The limits leave room for system calls, since kernels
# send different numbers of answers, and for requests of verbs that poll until the kernel has finished.
BRIDGE = {"ADD": (1, 125, 15, 11, 6), "CHECK": (1, 90, 6, 7, 5), "DEL": (2, 170, 7, 13, 10)}
DUAL_STACK = {"ADD": (1, 180, 24, 18, 10), "CHECK": (1, 95, 7, 8, 6), "DEL": (2, 175, 8, 13, 10)}
FULL_CHAIN = {"ADD": (3, 290, 18, 57, 23), "CHECK": (3, 240, 9, 35, 21), "DEL": (7, 365, 14, 54, 24)}


@pytest.mark.one_kernel
@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        pytest.param(SINGLE, BRIDGE, id="bridge"),
        pytest.param(DUAL, DUAL_STACK, id="dual stack"),
        pytest.param(NFTABLES, FULL_CHAIN, id="full chain", marks=pytest.mark.needs("nft_nat", "nft_inet")),
    ],
)
def test_verbs_stay_within_their_limits(
    bin_dir: Path, host: Namespace, sandbox: Namespace, store: Path, kind: Kind, limits
):
    """ADD, CHECK and DEL of a node's second pod need no more messages, files or processes than the limits here.

    The first pod creates objects that all pods share, so the second one is counted.
    """
    subject = Subject("podwire", 1, bin_dir, store)
    with namespaces.temporary() as resident, host.entered(), subject.resident(subject.network(kind), resident):
        chained = [subject.portmap("nftables"), BANDWIDTH] if kind is NFTABLES else []
        count_verbs(subject, kind, chained, sandbox)
        counts = count_verbs(subject, kind, chained, sandbox)
    exceeded = {
        f"{verb}: {field}": (count, limit)
        for verb, verb_limits in limits.items()
        for field, count, limit in zip(Counts._fields, counts[verb], verb_limits, strict=True)
        if count > limit
    }
    assert not exceeded, f"count and limit: {exceeded}"


def test_version_of_the_reference(reference: Path):
    """The heads of the benchmark's tables name the version of Debian's plugins, which do not print it."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", reference_version(reference))
