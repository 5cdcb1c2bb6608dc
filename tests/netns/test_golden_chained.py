"""State after ADD of sbr and tuning, compared with the golden states of the reference plugins.

tests/data/golden/README.md describes the origin of the files.
"""

import re

import pytest

from tests.support import golden
from tests.support.attaching import Network
from tests.support.sbr_network import Sbr, rules
from tests.support.tuning_network import Tuning, get_attributes

MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
COMPARED = {"flags", "mtu", "qlen", "link/ether", "promiscuity", "allmulti"}
FIRST_ADDRESS = "broadcast 10.22.0.0 "  # a route of Linux before 5.14
LINK_LOCAL = "fe80::/64 dev eth0 proto kernel metric 256"
ARGUMENTS = {"container_id": golden.CONTAINER_ID}


def test_sbr(bin_dir, host, sandbox, store):
    """Rules, routes and result equal the reference plugin's, except that fe80::/64 stays in table main."""
    expected = golden.scenario("sbr")
    interface = expected["interface plugin"]
    network = Network(host, {**interface, "ipam": {**interface["ipam"], "dataDir": str(store)}})
    sbr = Sbr(host, expected["config"])
    result = sbr.add(sandbox, network.add(sandbox, **ARGUMENTS), **ARGUMENTS)
    assert golden.result(result) == expected["result"]
    lines = [line.partition(" pref ")[0] for line in expected["pod"]["routes"]]
    moved = LINK_LOCAL.replace("eth0", "eth0 table 100")
    assert moved in lines
    assert list_routes(sandbox) == sorted([*(line for line in lines if line != moved), LINK_LOCAL])
    assert rules(sandbox) == [line for line in expected["pod"]["rules"] if " lookup 100" in line]
    network.check(sandbox, result, **ARGUMENTS)
    sbr.check(sandbox, result, **ARGUMENTS)
    sbr.delete(sandbox, result, **ARGUMENTS)
    network.delete(sandbox, result, **ARGUMENTS)
    assert (rules(sandbox), list_routes(sandbox)) == ([], [])


def list_routes(pod):
    """Returns the routes of all tables as `ip route` prints them, with the link-local address replaced."""
    text = pod.ip("-4", "route", "show", "table", "all") + pod.ip("-6", "route", "show", "table", "all")
    lines = [line.partition(" pref ")[0].strip() for line in text.splitlines() if not line.startswith(FIRST_ADDRESS)]
    return sorted(re.sub(r"local fe80::\S+", "local fe80::MAC", line) for line in lines)


@pytest.mark.parametrize("name", golden.scenarios("tuning-"))
def test_tuning(network, sandbox, tmp_path, name):
    """Result, links of pod and host, and backup equal the reference plugin's, and DEL restores the first state."""
    expected = golden.scenario(name)
    tuning = Tuning(network.host, {**expected["config"], "dataDir": str(tmp_path / "tuning")})
    prev_result = network.add(sandbox, **ARGUMENTS)
    before = tuning.everything(sandbox)
    attributes = get_attributes(sandbox)
    result = tuning.add(sandbox, prev_result, **ARGUMENTS)
    assert golden.result(result) == expected["result"]
    mac = expected["config"].get("mac") or expected["config"]["runtimeConfig"]["mac"]
    assert [item["mac"] for item in result["interfaces"]][:2] == [x["mac"] for x in prev_result["interfaces"]][:2]
    assert (result["interfaces"][2]["mac"], get_attributes(sandbox)["mac"]) == (mac, mac)
    for namespace, links in ((network.host, expected["host"]), (sandbox, expected["pod"])):
        current = golden.of(namespace)["links"]
        for link, values in links.items():
            common = values.keys() & current[link].keys()
            assert link == "lo" or common >= COMPARED - {"qlen"} - golden.NEWER_ATTRIBUTES
            assert {key: current[link][key] for key in common} == {key: values[key] for key in common}
    path = tuning.data_dir / f"{golden.CONTAINER_ID}_eth0.json"
    text = path.read_text()
    assert MAC.sub("MAC", text) == expected["backup"]
    assert f'"mac": "{attributes["mac"]}"' in text
    assert tuning.backups().keys() == {path.name}
    tuning.check(sandbox, result, **ARGUMENTS)
    assert tuning.delete(sandbox, result, **ARGUMENTS) == ""
    after = tuning.everything(sandbox)
    assert after | {"sysctls": None} == before | {"sysctls": None}
