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

# What all plugins of a chain need together: processes, system calls, files opened, netlink requests, sends, receives.
# Where less is enough they are to be lowered; what must be more needs a reason in the commit.
BRIDGE = {"ADD": (1, 126, 14, 12, 8, 10), "CHECK": (1, 84, 6, 7, 6, 10), "DEL": (2, 140, 7, 11, 8, 14)}
DUAL_STACK = {"ADD": (1, 174, 22, 17, 11, 15), "CHECK": (1, 90, 7, 8, 7, 12), "DEL": (2, 146, 8, 11, 8, 14)}
WHOLE = {"ADD": (4, 298, 18, 74, 23, 46), "CHECK": (3, 235, 9, 35, 22, 50), "DEL": (7, 342, 13, 50, 20, 53)}


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
    """ADD, CHECK and DEL on a bridge with another pod need no more messages, files or processes than written here."""
    subject = Subject("podwire", 1, bin_dir, store)
    with namespaces.temporary() as resident, host.entered(), subject.resident(subject.network(kind), resident):
        found: dict[str, Talk] = defaultdict(Talk)
        for _, verb, talk in of_chain(subject, kind, chained, sandbox):
            found[verb] = found[verb].plus(talk)
    more = {
        f"{verb}: {field}": (count, limit)
        for verb, limits in most.items()
        for field, count, limit in zip(Talk._fields, found[verb], limits, strict=False)
        if count > limit
    }
    assert not more, f"found, and at most: {more}"
