"""Many random ADDs, DELs, CHECKs and GCs in parallel on one node, some killed: nothing is lost, nothing is leaked."""

import json
import subprocess
import sys

import pytest

from tests import promises
from tests.spec import configs
from tests.support import pod_interfaces, xtables
from tests.support.binaries import ROOT

NFT, LEGACY = pytest.mark.needs("iptables_nft_nat"), pytest.mark.needs("iptables_legacy_nat")
MIXES = [
    pytest.param("nftables", "", False, id="nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param("iptables", "nft", False, id="iptables", marks=NFT),
    pytest.param("iptables", "nft", True, id="iptables, with the reference", marks=NFT),
    pytest.param("iptables", "legacy", False, id="iptables-legacy", marks=LEGACY),
    pytest.param("iptables", "legacy", True, id="iptables-legacy, with the reference", marks=LEGACY),
]
# Pods of ptp, on a master, or with a device of the host.
INTERFACES = [
    pytest.param({"backend": "nftables", "interface": "ptp"}, id="ptp, nftables", marks=pytest.mark.needs("nft_nat")),
    pytest.param({"backend": "iptables", "interface": "ptp", "tools": "nft"}, id="ptp, iptables", marks=NFT),
    *(configs.on_its_kernel(name, {"backend": "nftables", "interface": name}, id=name) for name in pod_interfaces.KEYS),
]
SAMPLE_S = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "variant", "mixed"), MIXES)
def test_storm(root, bin_dir, reference, tmp_path, nightly, backend, variant, mixed):
    """After a storm the state equals that of sequential ADDs, and after the last DELs the state before the storm.

    No address is allocated twice, no CHECK of a running container fails, and the only error is "try again later".
    """
    if not nightly and variant == "legacy" and mixed:
        pytest.skip("in `make nightly` only")
    plan = {"backend": backend, "tools": variant, "reference": str(reference) if mixed else ""}
    storm(plan, tmp_path, nightly=nightly)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", INTERFACES)
def test_storm_without_bridge(root, bin_dir, tmp_path, nightly, plan):
    """A storm of pods without a bridge leaves no host link and no route, and every device is on the host again."""
    storm(plan, tmp_path, nightly=nightly)


def storm(plan, directory, *, nightly):
    """Runs a storm in new namespaces and asserts that it has no problems; `tools` is a variant of iptables."""
    tools = plan.get("tools", "")
    plan = {**plan, "store": str(directory), "tools": str(xtables.variant(directory / "tools", tools)) if tools else ""}
    sample = {"seconds": SAMPLE_S, "verbs": 500, "at_once": 32, "containers": 60, "killed": 0.25}
    plan |= {"seconds": 60, "verbs": 2000, "at_once": 64, "containers": 200} if nightly else sample
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
