"""The page of the faults that doctor is tested with, and overlapping subnets."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from podwire.doctor.node import overlapping
from tests.support import fault_table
from tests.support.fault_table import FAULTS


def test_page_of_faults_is_current():
    """The table of docs/faults.md has the faults that doctor is tested with."""
    text = fault_table.PAGE.read_text()
    assert text == fault_table.with_table(text), "run python -m tests.support.fault_table"
    assert len(FAULTS) >= 120


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("10.9.0.0/24", "10.9.0.128/25", True),
        ("10.9.0.128/25", "10.9.0.0/16", True),
        ("10.9.0.0/24", "10.9.1.0/24", False),
        ("10.9.0.0/24", "fd00::/64", False),
    ],
)
def test_overlapping_subnets(one, other, together):
    """Two subnets overlap if an address is in both."""
    assert bool(overlapping(ip_network(one), [ip_network(other)])) == together
