"""Lists in which some plugins are podwire's and others the reference's: interfaces on a master, with sbr or tuning.

One rule: the interface plugin, its IPAM plugin and the chained plugin are chosen independently; DEL uses the opposite
choice of ADD.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.invocation import run_plugin
from tests.support.netlist import NetworkList
from tests.support.netstate import shown, state
from tests.support.sbr_network import rules, table

PODWIRE, REFERENCE = "podwire", "reference"
OTHER = {PODWIRE: REFERENCE, REFERENCE: PODWIRE}
# Of the interface plugin, the IPAM plugin and the chained plugin; all combinations but those without a mixture.
MIXED = [each for each in itertools.product(OTHER, repeat=3) if len(set(each)) > 1]
VLAN = 100
INTERFACES = [
    pytest.param({"type": "macvlan"}, id="macvlan"),
    pytest.param({"type": "ipvlan", "mode": "l2"}, id="ipvlan", marks=pytest.mark.needs("ipvlan")),
    pytest.param({"type": "vlan", "vlanId": VLAN}, id="vlan", marks=pytest.mark.needs("vlan_device")),
]
CHAINED = [
    pytest.param({"type": "sbr"}, id="sbr"),
    pytest.param({"type": "tuning", "mtu": 1400, "allmulti": True}, id="tuning"),
]


class MixedList:
    """A list whose plugins are run by a choice of implementations."""

    def __init__(self, host, interface, chained, store, directories) -> None:
        """`directories` are those of the implementations, by name."""
        routes = [{"dst": "198.51.100.0/24", "gw": "10.25.0.251"}, {"dst": "2001:db8:1::/48", "gw": "fd00:25::251"}]
        ipam = {"type": "host-local", "ranges": uplink.ranges(), "routes": routes, "dataDir": str(store)}
        interface = {"master": uplink.UPLINK, **interface, "ipam": ipam}
        if chained["type"] == "tuning":
            chained = {**chained, "dataDir": str(store.with_name("tuning"))}
        self.host, self.directories, self.store = host, directories, store
        self.list = NetworkList("net", "1.0.0", (interface, chained))

    def run(self, pod, choice, netns=None):
        """Returns a function that runs a plugin of the chosen implementation."""
        of_interface, of_ipam, of_chained = (self.directories[name] for name in choice)
        chained = self.list.plugins[1]["type"]

        def run(plugin, command, config):
            directory = of_chained if plugin == chained else of_interface
            how = {"host": self.host, "netns": pod.path if netns is None else netns, "container_id": pod.name}
            return run_plugin(plugin, command, config, bin_dir=directory, path=str(of_ipam), **how)

        return run

    def leases(self):
        """Returns the reserved addresses."""
        return {path.name for path in self.store.glob("net/*") if path.name[0].isdigit() or ":" in path.name}


@pytest.fixture
def mixed(bin_dir, reference, host, neighbour, store, interface, chained):
    """The list of the test's parameters, on a host whose uplink is connected with the neighbour."""
    if interface["type"] == "vlan":
        uplink.tag(neighbour, VLAN)
    return MixedList(host, interface, chained, store, {PODWIRE: bin_dir, REFERENCE: reference})


@pytest.mark.parametrize("choice", MIXED, ids="-".join)
@pytest.mark.parametrize("chained", CHAINED)
@pytest.mark.parametrize("interface", INTERFACES)
def test_mixed_list_works(mixed, sandbox, choice, interface, chained):
    """The pod has interface, addresses, routes and settings; each choice passes CHECK; the opposite DEL restores.

    Of pods with sbr only podwire's interface plugins pass CHECK: the reference's find no route outside of table main.
    """
    sandbox.ip("link", "set", "lo", "up")
    before = state(mixed.host), state(sandbox)
    opposite = tuple(OTHER[name] for name in choice)
    result = mixed.list.add(mixed.run(sandbox, choice))
    for number, ip in enumerate(uplink.NEIGHBOUR):
        assert reaches(sandbox, ip.partition("/")[0], options=("-I", address(result, number)))
    assert shown(sandbox, "eth0")["linkinfo"]["info_kind"] == interface["type"]
    if chained["type"] == "sbr":
        assert len(rules(sandbox)) == 2
        assert [line for line in table(sandbox, 100) if line.startswith("198.51.100.0/24")]
    else:
        assert (shown(sandbox, "eth0")["mtu"], "ALLMULTI" in shown(sandbox, "eth0")["flags"]) == (1400, True)
    for checker in (choice, opposite):
        if (chained["type"], checker[0]) != ("sbr", REFERENCE):
            mixed.list.check(mixed.run(sandbox, checker), result)
    mixed.list.delete(mixed.run(sandbox, opposite), result)
    assert (state(mixed.host), state(sandbox)) == before
    assert rules(sandbox) == []
    assert mixed.leases() == set()
    if (chained["type"], choice[2]) != ("sbr", REFERENCE):  # which fails if the interface is missing
        mixed.list.delete(mixed.run(sandbox, choice), result)  # a runtime repeats it


@pytest.mark.parametrize("choice", [MIXED[0], MIXED[-1]], ids="-".join)
@pytest.mark.parametrize("chained", CHAINED)
@pytest.mark.parametrize("interface", INTERFACES)
def test_mixed_list_without_a_namespace(mixed, sandbox, choice, interface, chained):
    """DEL of the opposite choice succeeds after the pod's namespace was deleted, and releases the addresses.

    The reference's sbr refuses an empty CNI_NETNS; DEL succeeds once sbr is podwire's.
    """
    result = mixed.list.add(mixed.run(sandbox, choice))
    sandbox.delete()
    opposite = tuple(OTHER[name] for name in choice)
    if (chained["type"], opposite[2]) == ("sbr", REFERENCE):
        request = mixed.list.request(mixed.list.plugins[1], result)
        assert mixed.run(sandbox, opposite, "")("sbr", "DEL", request).error()["msg"] == "no such file or directory"
        opposite = (*opposite[:2], PODWIRE)
    mixed.list.delete(mixed.run(sandbox, opposite, ""), result)
    assert mixed.leases() == set()
