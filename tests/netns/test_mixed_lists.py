"""Lists in which some plugins are podwire's and others the reference's: interfaces on a master, with sbr or tuning.

One rule: the interface plugin, its IPAM plugin and the chained plugin are chosen independently; DEL uses the opposite
choice of ADD.
"""

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


@pytest.mark.parametrize("choice", MIXED, ids="-".join)
@pytest.mark.parametrize("chained", CHAINED)
@pytest.mark.parametrize("interface", INTERFACES)
def test_mixed_list_works(bin_dir, reference, macvlan, neighbour, sandbox, tmp_path, choice, interface, chained):
    """The pod has interface, addresses, routes and settings; each choice passes CHECK; the opposite DEL restores.

    Of pods with sbr only podwire's interface plugins pass CHECK: the reference's find no route outside of table main.
    """
    routes = [{"dst": "198.51.100.0/24", "gw": "10.25.0.251"}, {"dst": "2001:db8:1::/48", "gw": "fd00:25::251"}]
    net = macvlan.having(**interface, ipam={**macvlan.config["ipam"], "routes": routes})
    if chained["type"] == "tuning":
        chained = {**chained, "dataDir": str(tmp_path / "tuning")}
    if interface["type"] == "vlan":
        uplink.tag(neighbour, VLAN)
    mixed = NetworkList("net", "1.0.0", (net.config, chained))
    directories = {PODWIRE: bin_dir, REFERENCE: reference}

    def run_with(choice):
        of_interface, of_ipam, of_chained = (directories[name] for name in choice)

        def run(plugin, command, config):
            directory = of_chained if plugin == chained["type"] else of_interface
            how = {"host": net.host, "netns": sandbox, "container_id": sandbox.name, "path": str(of_ipam)}
            return run_plugin(plugin, command, config, bin_dir=directory, **how)

        return run

    sandbox.ip("link", "set", "lo", "up")
    before = state(net.host), state(sandbox)
    opposite = tuple(OTHER[name] for name in choice)
    result = mixed.add(run_with(choice))
    for number, ip in enumerate(uplink.NEIGHBOUR):
        assert reaches(sandbox, ip.partition("/")[0], options=("-I", address(result, number)))
    link = shown(sandbox, "eth0")
    assert link["linkinfo"]["info_kind"] == interface["type"]
    if chained["type"] == "sbr":
        assert len(rules(sandbox)) == 2
        assert [line for line in table(sandbox, 100) if line.startswith("198.51.100.0/24")]
    else:
        assert (link["mtu"], "ALLMULTI" in link["flags"]) == (1400, True)
    for checker in (choice, opposite):
        if (chained["type"], checker[0]) != ("sbr", REFERENCE):
            mixed.check(run_with(checker), result)
    mixed.delete(run_with(opposite), result)
    assert (state(net.host), state(sandbox), rules(sandbox), net.leases()) == (*before, [], {})
    if (chained["type"], choice[2]) != ("sbr", REFERENCE):  # which fails if the interface is missing
        mixed.delete(run_with(choice), result)  # a runtime repeats it
