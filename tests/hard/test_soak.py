"""A soak: half an hour of ADD, CHECK, DEL and GC of random pods leaves the node as it was, and uses no more memory."""

import json
import subprocess
import sys

import pytest

from tests import promises
from tests.support import xtables
from tests.support.binaries import ROOT
from tests.support.soak import Sample, growth_mib, table

MINUTES, INTERVAL_S = 30, 60
SAMPLE_MINUTES, SAMPLE_INTERVAL_S = 20 / 60, 5
# Of memory that the kernel cannot reclaim: some 200 bytes for each verb of half an hour.
GROWTH_MIB = {"SUnreclaim": 32, "Percpu": 8}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.needs("nft_nat", "iptables_nft_nat")
def test_soak(root, bin_dir, tmp_path, nightly, capsys):
    """After any number of verbs rules, leases, links, qdiscs, files, processes and memory are those without pods."""
    minutes, interval_s = (MINUTES, INTERVAL_S) if nightly else (SAMPLE_MINUTES, SAMPLE_INTERVAL_S)
    plan = {"store": str(tmp_path / "soak"), "tools": str(xtables.variant(tmp_path / "tools", "nft"))}
    options = json.dumps({**plan, "minutes": minutes, "interval_s": interval_s})
    line = [sys.executable, "-m", "tests.support.soak", options]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    samples = [Sample(**each) for each in report["samples"]]
    with capsys.disabled():
        print("", *table(samples), sep="\n")
    assert report["problems"] == []
    assert {json.dumps(sample.counts) for sample in samples} == {json.dumps(samples[0].counts)}
    assert (samples[0].counts["leases"], samples[0].counts["processes"]) == (0, 0)
    assert report["kills"] > 0
    if nightly:
        grown = {kind: growth_mib(samples, kind) for kind in GROWTH_MIB}
        assert all(grown[kind] < most for kind, most in GROWTH_MIB.items()), grown
    promises.record("soak", verbs=samples[-1].verbs, seconds=round(samples[-1].minutes * 60))
