"""Parallel requests of several containers for one host port: with "onConflict": "fail" one of them gets it."""

import pytest

from tests.support import xtables
from tests.support.bare_plugin import run_in_parallel
from tests.support.hostports import PortmapNetwork

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
LEGACY = pytest.param("iptables-legacy", marks=pytest.mark.needs("iptables_legacy_nat"))
CONTENDERS = 4


@pytest.fixture
def network(host, bin_dir, backend, tmp_path):
    """A network with portmap, and with iptables-legacy the programs of that variant."""
    legacy = xtables.variant(tmp_path / "tools", "legacy") if backend == "iptables-legacy" else None
    config = {"cniVersion": "1.0.0", "name": "net", "type": "portmap", "backend": backend.removesuffix("-legacy")}
    return PortmapNetwork(host, config, tools=legacy)


@pytest.mark.parametrize("backend", [*BACKENDS, LEGACY])
def test_one_of_several_parallel_requests_gets_the_port(network, nightly):
    """The successful ADD publishes the port; each failed ADD leaves nothing and returns code 11 (try again later)."""
    pods = {
        f"pod-{number}": network.having(
            "8080:80", "8443:443", addresses=[f"10.22.0.{number + 2}/16"], onConflict="fail"
        )
        for number in range(CONTENDERS)
    }
    rounds = 300 if nightly else 15
    for _ in range(rounds):
        outcomes = dict(zip(pods, run_in_parallel(*(("ADD", name, pod) for name, pod in pods.items())), strict=True))
        winners = [name for name, outcome in outcomes.items() if outcome.status == 0]
        (winner,) = winners
        pods[winner].check(winner)
        assert [outcomes[name].error()["code"] for name in pods if name != winner] == [11] * (CONTENDERS - 1)
        pods[winner].delete(winner)
        pods["pod-0"].add("pod-0")  # the port is free again
        pods["pod-0"].delete("pod-0")
