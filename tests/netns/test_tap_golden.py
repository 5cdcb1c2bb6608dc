"""Device, addresses, routes, result and leases of tap, compared with the golden state of the reference plugin.

tests/data/golden/README.md describes the origin of the file.
"""

from tests.netns.test_golden import await_states, files
from tests.support import golden
from tests.support.attaching import Network

REQUIRED = {"flags", "mtu", "state", "link/ether", "tun", "type", "pi", "vnet_hdr", "multi_queue", "persist"}


def test_state_equals_the_reference_plugins(bin_dir, host, sandbox, store):
    """Result, device, addresses, routes and reservations equal the reference plugin's, after ADD and after DEL."""
    expected = golden.scenario("tap")
    config = {**expected["config"], "ipam": {**expected["config"]["ipam"], "dataDir": str(store)}}
    network = Network(host, config)
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
        assert actual[part] == expected["pod"][part]
    assert files(store / "goldnet") == expected["store"]
    network.delete(sandbox, result, container_id=golden.CONTAINER_ID)
    assert files(store / "goldnet") == expected["store after DEL"]
    assert golden.of(sandbox)["links"].keys() == {"lo"}
