"""What our verbs say to the kernel does not grow unnoticed: counts of messages, files and processes, no times."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from bench.chains import host_port
from bench.conversation import Talk, of_chain
from bench.subject import DUAL, NFTABLES, SINGLE, Chained, Kind, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace

# What all plugins of a chain need together: processes, system calls, files opened, netlink requests, sends. Where less
# is enough they are to be lowered; what must be more needs a reason in the commit. Of system calls some more are
# allowed: kernels differ in how many answers they give; and of requests where a verb asks until the kernel is done.
BRIDGE = {"ADD": (1, 125, 13, 11, 6), "CHECK": (1, 85, 6, 7, 5), "DEL": (2, 150, 7, 13, 10)}
DUAL_STACK = {"ADD": (1, 180, 22, 18, 10), "CHECK": (1, 95, 7, 8, 6), "DEL": (2, 155, 8, 13, 10)}
WHOLE = {"ADD": (3, 290, 16, 57, 23), "CHECK": (3, 240, 9, 35, 21), "DEL": (7, 365, 14, 54, 24)}


@pytest.mark.parametrize(
    ("kind", "chained", "most"),
    [
        pytest.param(SINGLE, [], BRIDGE, id="bridge"),
        pytest.param(DUAL, [], DUAL_STACK, id="dual stack"),
        pytest.param(
            NFTABLES,
            [host_port("nftables"), Subject.limits],
            WHOLE,
            id="whole",
            marks=pytest.mark.needs("nft_nat", "nft_inet"),
        ),
    ],
)
def test_no_verb_says_more_than_it_did(
    bin_dir: Path, host: Namespace, sandbox: Namespace, store: Path, kind: Kind, chained: list[Chained], most
):
    """ADD, CHECK and DEL of a node's second pod need no more messages, files or processes than written here.

    They are run twice: what the first one makes for all that follow does not count.
    """
    subject = Subject("podwire", 1, bin_dir, store)
    with namespaces.temporary() as resident, host.entered(), subject.resident(subject.network(kind), resident):
        found: dict[str, Talk] = defaultdict(Talk)
        list(of_chain(subject, kind, chained, sandbox))
        for _, verb, talk in of_chain(subject, kind, chained, sandbox):
            found[verb] = found[verb].plus(talk)
    more = {
        f"{verb}: {field}": (count, limit)
        for verb, limits in most.items()
        for field, count, limit in zip(Talk._fields, found[verb], limits, strict=False)
        if count > limit
    }
    assert not more, f"found, and at most: {more}"
