"""ipvlan networks as podman 4.3 writes and calls them (tests/support/podman_ipvlan.py), with real packets."""

import pytest

from tests.support import podman_ipvlan, uplink
from tests.support.attaching import BOOKKEEPING, address, reaches
from tests.support.netlist import runner
from tests.support.netstate import shown, state
from tests.support.podman_ipvlan import INTERNAL, L2, L3

pytestmark = pytest.mark.needs("ipvlan")

NODE, NEIGHBOUR = (addresses[0].partition("/")[0] for addresses in (uplink.HOST, uplink.NEIGHBOUR))
CASES = {
    L2: ({}, (), ["10.25.0.129/24", "fd00:25::1/64"]),
    L3: ({}, (), ["10.68.0.2/24"]),
    INTERNAL: ({}, (), ["10.25.0.2/24"]),
    "l2, --ip and --mac-address": (
        {"MAC": "02:00:00:00:00:07", "IP": "10.25.0.140"},
        (),
        ["10.25.0.140/24", "fd00:25::1/64"],
    ),
    "l2, --ip and --ip6": ({}, ("10.25.0.140", "fd00:25::77"), ["10.25.0.140/24", "fd00:25::77/64"]),
}


@pytest.mark.parametrize("case", CASES)
def test_container(bin_dir, host, neighbour, sandbox, store, case):
    """A container has podman's addresses and the file's mode and MTU, reaches the neighbour; DEL restores the host."""
    kind, (requests, ips, expected) = case.split(",")[0], CASES[case]
    uplink.give_addresses(host)
    if kind == L3:
        neighbour.ip("route", "add", "10.68.0.0/24", "via", NODE)  # as an operator does for mode l3
    before = state(host), state(sandbox)
    host.ip("route", "add", "default", "via", NEIGHBOUR)
    network = podman_ipvlan.network(kind)
    network.plugins[0]["ipam"]["dataDir"] = str(store)
    if ips:
        network = network.with_capabilities(ips=list(ips))
    run = runner(host, sandbox, args=podman_ipvlan.cni_args("web", requests))
    result = network.add(run)
    assert [ip["address"] for ip in result["ips"]] == expected
    link = shown(sandbox, "eth0")
    assert link["linkinfo"]["info_data"]["mode"] == (L3 if kind == L3 else L2)
    assert (link["mtu"], link["address"]) == (1400 if kind == L2 else 1500, shown(host, uplink.UPLINK)["address"])
    assert ("default" in sandbox.ip("route")) == (kind != INTERNAL)
    for number in range(len(expected)):
        assert reaches(neighbour, address(result, number))
    assert reaches(sandbox, NEIGHBOUR)
    host.ip("route", "del", "default")
    network.delete(run, result)
    assert (state(host), state(sandbox)) == before
    assert {path.name for path in store.glob(f"{podman_ipvlan.NAME}/*")} <= set(BOOKKEEPING)
