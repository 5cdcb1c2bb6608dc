"""Rules, routes and result of sbr, compared with the golden state of the reference plugin.

tests/data/golden/README.md describes the origin of the file.
"""

import re

import pytest

from tests.support import golden
from tests.support.attaching import Network
from tests.support.sbr_network import Sbr, rules

FIRST_ADDRESS = "broadcast 10.22.0.0 "  # a route of Linux before 5.14
LINK_LOCAL = "fe80::/64 dev eth0 proto kernel metric 256"


@pytest.fixture
def expected():
    """The golden state."""
    return golden.scenario("sbr")


def test_state_equals_the_reference_plugins(bin_dir, host, sandbox, store, expected):
    """Rules, routes and result equal the reference plugin's, except that fe80::/64 stays in table main."""
    interface = expected["interface plugin"]
    network = Network(host, {**interface, "ipam": {**interface["ipam"], "dataDir": str(store)}})
    sbr = Sbr(host, expected["config"])
    arguments = {"container_id": golden.CONTAINER_ID}
    result = sbr.add(sandbox, network.add(sandbox, **arguments), **arguments)
    assert golden.result(result) == expected["result"]
    lines = [line.partition(" pref ")[0] for line in expected["pod"]["routes"]]
    moved = f"{LINK_LOCAL.replace('eth0', 'eth0 table 100')}"
    assert moved in lines
    assert list_routes(sandbox) == sorted([*(line for line in lines if line != moved), LINK_LOCAL])
    assert rules(sandbox) == [line for line in expected["pod"]["rules"] if " lookup 100" in line]
    network.check(sandbox, result, **arguments)
    sbr.check(sandbox, result, **arguments)
    sbr.delete(sandbox, result, **arguments)
    network.delete(sandbox, result, **arguments)
    assert (rules(sandbox), list_routes(sandbox)) == ([], [])


def list_routes(pod):
    """Returns the routes of all tables as `ip route` prints them, with the link-local address replaced."""
    text = pod.ip("-4", "route", "show", "table", "all") + pod.ip("-6", "route", "show", "table", "all")
    lines = [line.partition(" pref ")[0].strip() for line in text.splitlines() if not line.startswith(FIRST_ADDRESS)]
    return sorted(re.sub(r"local fe80::\S+", "local fe80::MAC", line) for line in lines)
