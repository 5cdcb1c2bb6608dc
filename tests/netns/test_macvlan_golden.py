"""Links, addresses, routes, results and leases of macvlan, compared with the golden states of the reference plugin.

tests/data/golden/README.md describes the origin of the files.
"""

import pytest

from tests.netns.test_golden import await_states, files
from tests.support import golden
from tests.support.attaching import Network

pytestmark = pytest.mark.needs("macvlan")

REQUIRED = {"flags", "mtu", "qdisc", "state", "link/ether", "macvlan", "port mode"}


@pytest.mark.parametrize("name", golden.scenarios("macvlan-"))
def test_state_equals_the_reference_plugins(bin_dir, host, neighbour, sandbox, store, name):
    """Result, links, addresses, routes and reservations equal the reference plugin's, after ADD and after DEL."""
    expected = golden.scenario(name)
    config = expected["config"]
    if "ipam" in config:
        config["ipam"]["dataDir"] = str(store)
    network = Network(host, config)
    before = golden.of(host)
    result = network.add(sandbox, container_id=golden.CONTAINER_ID)
    await_states(sandbox, expected["pod"]["links"])
    assert golden.result(result) == expected["result"]
    actual = golden.of(sandbox)
    assert actual["links"].keys() == expected["pod"]["links"].keys()
    for link, attributes in expected["pod"]["links"].items():
        common = attributes.keys() & actual["links"][link].keys()
        assert link == "lo" or common >= REQUIRED
        assert {key: actual["links"][link][key] for key in common} == {key: attributes[key] for key in common}
    for part in ("addresses", "routes"):
        assert without_link_local(actual[part]) == without_link_local(expected["pod"][part])
    assert files(store / "goldnet") == expected["store"]
    network.delete(sandbox, result, container_id=golden.CONTAINER_ID)
    assert files(store / "goldnet") == expected["store after DEL"]
    assert golden.of(sandbox)["links"].keys() == {"lo"}
    assert golden.of(host)["links"].keys() == before["links"].keys()


def without_link_local(part):
    """Returns addresses or routes without those of IPv6's link-local network, which come with the carrier."""
    if isinstance(part, list):
        return [line for line in part if "fe80:" not in line]
    return {link: without_link_local(lines) for link, lines in part.items()}
