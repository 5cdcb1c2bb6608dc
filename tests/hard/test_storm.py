"""Many processes of ADD, DEL, CHECK and GC at random on one node, some of them killed: nothing is lost, nothing is left."""

import json
import subprocess
import sys

import pytest

from tests import promises
from tests.support import xtables
from tests.support.binaries import ROOT

MIXES = {
    "nftables": {"backend": "nftables"},
    "iptables": {"backend": "iptables"},
    "with the reference": {"backend": "iptables"},
    "iptables-legacy": {"backend": "iptables"},
}
SAMPLE_S = {"nftables": 7, "iptables": 5, "with the reference": 8}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mix", MIXES)
def test_a_storm(root, bin_dir, reference, tmp_path, nightly, mix):
    """After a storm the living are attached as if one after the other, and after their DELs the node is as before.

    No address is ever given twice, no CHECK of a living attachment fails, and nothing fails but for "try again later".
    """
    if not nightly and mix not in SAMPLE_S:
        pytest.skip("in `make nightly` only")
    plan = {**MIXES[mix], "store": str(tmp_path), "at_once": 64 if nightly else 32}
    plan["seconds"] = 60 if nightly else SAMPLE_S[mix]
    if mix == "with the reference":
        plan["reference"] = str(reference)
    if mix == "iptables-legacy":
        plan["tools"] = str(xtables.variant(tmp_path / "legacy", "legacy"))
    line = [sys.executable, "-m", "tests.support.aftermath", json.dumps(plan)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    verbs = sum(report["verbs"].values())
    again = sum(count for error, count in report["errors"].items() if ": 11 " in error)
    print(mix, f"{verbs / report['seconds']:.0f} verbs/s", report["verbs"], report["errors"])
    assert report["problems"] == [], f"{len(report['problems'])} problems; errors: {report['errors']}"
    assert report["living"] > 20
    assert report["kills"] > 0
    promises.record("storm", verbs=verbs, kills=report["kills"], again=again)
