"""Many processes of ADD, DEL, CHECK and GC at random on one node, some killed: nothing is lost, nothing is left."""

import json
import subprocess
import sys

import pytest

from tests import promises
from tests.support import xtables
from tests.support.binaries import ROOT

NFT, LEGACY = pytest.mark.needs("iptables_nft_nat"), pytest.mark.needs("iptables_legacy_nat")
MIXES = [
    pytest.param("nftables", "", False, id="nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param("iptables", "nft", False, id="iptables", marks=NFT),
    pytest.param("iptables", "nft", True, id="iptables, with the reference", marks=NFT),
    pytest.param("iptables", "legacy", False, id="iptables-legacy", marks=LEGACY),
    pytest.param("iptables", "legacy", True, id="iptables-legacy, with the reference", marks=LEGACY),
]
# Pods with an interface of their own; and where some verbs do not see the settings of the kernel.
WORLDS = [
    pytest.param({"backend": "nftables", "interface": "ptp"}, id="ptp, nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param({"backend": "iptables", "interface": "ptp", "tools": "nft"}, id="ptp, iptables", marks=NFT),
    pytest.param(
        {"backend": "nftables", "interface": "ptp", "hidden": True},
        id="ptp, nftables, /proc/sys hidden",
        marks=pytest.mark.needs("nft_nat"),
    ),
    pytest.param({"backend": "nftables", "hidden": True}, id="/proc/sys hidden", marks=pytest.mark.needs("nft_nat")),
]
SAMPLE_S = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "variant", "mixed"), MIXES)
def test_a_storm(root, bin_dir, reference, tmp_path, nightly, backend, variant, mixed):
    """After a storm the living are attached as if one after the other, and after their DELs the node is as before.

    No address is ever given twice, no CHECK of a living attachment fails, and nothing fails but for "try again later".
    """
    if not nightly and variant == "legacy" and mixed:
        pytest.skip("in `make nightly` only")
    plan = {"backend": backend, "tools": variant, "reference": str(reference) if mixed else ""}
    storm(plan, tmp_path, nightly=nightly)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", WORLDS)
def test_a_storm_elsewhere(root, bin_dir, tmp_path, nightly, plan):
    """The same of pods of ptp with host ports, and where /proc of some verbs is mounted subset=pid.

    A verb that does not see the kernel's settings may fail to ADD; DEL and GC do their work without.
    """
    storm(plan, tmp_path, nightly=nightly)


def storm(plan, directory, *, nightly):
    """Runs a storm in private namespaces and demands that it left no problem; `tools` is a variant of iptables."""
    tools = plan.get("tools", "")
    plan = {**plan, "store": str(directory), "tools": str(xtables.variant(directory / "tools", tools)) if tools else ""}
    sample = {"seconds": SAMPLE_S, "at_once": 32, "containers": 60, "killed": 0.25}  # in seconds 5 % may meet none
    plan |= {"seconds": 60, "at_once": 64, "containers": 200} if nightly else sample
    line = [sys.executable, "-m", "tests.support.storm_check", json.dumps(plan)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    verbs = sum(report["verbs"].values())
    again = sum(count for error, count in report["errors"].items() if ": 11 " in error)
    print(f"{verbs / report['seconds']:.0f} verbs/s", report["verbs"], report["errors"])
    assert report["problems"] == [], f"{len(report['problems'])} problems; errors: {report['errors']}"
    assert report["running"] > 5
    assert report["kills"] > 0
    promises.record("storm", verbs=verbs, seconds=round(report["seconds"]), kills=report["kills"], again=again)
