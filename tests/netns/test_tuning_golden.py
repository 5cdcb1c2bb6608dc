"""Links, result and backup of tuning, compared with the golden state of the reference plugin.

tests/data/golden/README.md describes the origin of the files.
"""

import re

import pytest

from tests.support import golden
from tests.support.tuning_network import Tuning, get_attributes, mode

MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
COMPARED = {"flags", "mtu", "qlen", "link/ether", "promiscuity", "allmulti"}


@pytest.mark.parametrize("name", golden.scenarios("tuning-"))
def test_state_equals_the_reference_plugins(network, sandbox, tmp_path, name):
    """Result, links of pod and host, and backup equal the reference plugin's, and DEL restores the first state."""
    expected = golden.scenario(name)
    arguments = {"container_id": golden.CONTAINER_ID}
    tuning = Tuning(network.host, {**expected["config"], "dataDir": str(tmp_path / "tuning")})
    prev_result = network.add(sandbox, **arguments)
    before = tuning.everything(sandbox)
    attributes = get_attributes(sandbox)
    result = tuning.add(sandbox, prev_result, **arguments)
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
    assert (mode(path), mode(tuning.data_dir)) == ("600", "700")
    assert tuning.backups().keys() == {path.name}
    tuning.check(sandbox, result, **arguments)
    assert tuning.delete(sandbox, result, **arguments) == ""
    after = tuning.everything(sandbox)
    assert after | {"sysctls": None} == before | {"sysctls": None}
