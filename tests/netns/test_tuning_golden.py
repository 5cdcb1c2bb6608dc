"""What tuning sets and saves, compared with what the reference set and saved.

tests/data/golden/README.md tells where the files come from.
"""

import re

import pytest

from tests.support import golden
from tests.support.tuned import Tuning, mode, now

MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
SEEN = {"flags", "mtu", "qlen", "link/ether", "promiscuity", "allmulti"}


@pytest.mark.parametrize("name", golden.scenarios("tuning-"))
def test_add_leaves_what_the_reference_left(network, sandbox, tmp_path, name):
    """Result, links of pod and host, and the backup to the byte equal the reference's; DEL brings all back."""
    expected = golden.scenario(name)
    how = {"container_id": golden.CONTAINER_ID}
    tuning = Tuning(network.host, {**expected["config"], "dataDir": str(tmp_path / "tuning")})
    prev_result = network.add(sandbox, **how)
    before = tuning.everything(sandbox)
    inside = now(sandbox)
    result = tuning.add(sandbox, prev_result, **how)
    assert golden.result(result) == expected["result"]
    asked = expected["config"].get("mac") or expected["config"]["runtimeConfig"]["mac"]
    assert [item["mac"] for item in result["interfaces"]][:2] == [x["mac"] for x in prev_result["interfaces"]][:2]
    assert (result["interfaces"][2]["mac"], now(sandbox)["mac"]) == (asked, asked)
    for namespace, links in ((network.host, expected["host"]), (sandbox, expected["pod"])):
        found = golden.of(namespace)["links"]
        for link, attributes in links.items():
            common = attributes.keys() & found[link].keys()
            assert link == "lo" or common >= SEEN - {"qlen"}
            assert {key: found[link][key] for key in common} == {key: attributes[key] for key in common}
    path = tuning.data_dir / f"{golden.CONTAINER_ID}_eth0.json"
    text = path.read_text()
    assert MAC.sub("MAC", text) == expected["backup"]
    assert f'"mac": "{inside["mac"]}"' in text
    assert (mode(path), mode(tuning.data_dir)) == ("600", "700")
    assert tuning.backups().keys() == {path.name}
    tuning.check(sandbox, result, **how)
    assert tuning.delete(sandbox, result, **how) == ""
    after = tuning.everything(sandbox)
    assert after | {"sysctls": None} == before | {"sysctls": None}
