"""CHECK, STATUS and GC of bridge."""

import copy

import pytest


@pytest.mark.parametrize(("subnet", "dst"), [("10.22.0.", "192.0.2.0/24"), ("fd00:22::", "2001:db8::/32")])
def test_check_of_several_routes_to_one_destination(scripted_network, sandbox, subnet, dst):
    """CHECK finds each of several routes to one destination; IPv6 merges them into one with several next hops."""
    gateways = [f"{subnet}{number}" for number in (1, 2, 3)]
    ips = [{"address": f"{subnet}9/{'64' if ':' in subnet else '16'}"}]
    net = scripted_network(ips, routes=[{"dst": dst, "gw": gw} for gw in gateways])
    result = net.add(sandbox)
    net.check(sandbox, result)
    sandbox.ip("route", "del", dst, "via", gateways[1])
    assert net.check_error(sandbox, result) == f"Expected route {dst} via {gateways[1]} is missing"


def test_check_compares_all_routes(scripted_network, sandbox):
    """CHECK compares each route of the result, with its gateway."""
    routes = [{"dst": "192.0.2.0/24", "gw": "10.22.0.7"}, {"dst": "198.51.100.0/24", "table": 100}]
    net = scripted_network([{"address": "10.22.0.9/16"}], routes=routes)
    result = net.add(sandbox)
    net.check(sandbox, result)
    sandbox.ip("route", "replace", "192.0.2.0/24", "via", "10.22.0.8")
    assert "route 192.0.2.0/24 via 10.22.0.7" in net.check_error(sandbox, result)


def test_check_passes_after_a_change_by_a_later_plugin(network, sandbox):
    """CHECK passes if a later plugin changed the MAC address and prevResult has the new one."""
    result = copy.deepcopy(network.add(sandbox))
    sandbox.ip("link", "set", "eth0", "address", "02:00:00:00:00:99")
    result["interfaces"][2]["mac"] = "02:00:00:00:00:99"
    network.check(sandbox, result)


@pytest.mark.parametrize("gateway", [True, None])
def test_check_passes_while_other_pods_come_and_go(network, new_sandbox, gateway):
    """CHECK of a pod passes while other pods come and go, with and without a gateway on the bridge."""
    net = network.having(isDefaultGateway=gateway)
    one, two = new_sandbox(), new_sandbox()
    first = net.add(one)
    second = net.add(two)
    net.check(one, first)
    net.delete(two, second)
    net.check(one, first)
    net.add(two)
    net.check(one, first)


def test_status_reports_what_add_would_refuse(network):
    """STATUS has code 50 for a configuration that ADD refuses, and if another link has the bridge's name."""
    net = network.having(cniVersion="1.1.0", ipam=None)
    assert net.having(vlan=5000).run("STATUS").error()["code"] == 50
    assert net.having(mtu="1500").run("STATUS").error()["code"] == 50
    net.host.ip("link", "add", "cni0", "type", "veth", "peer", "name", "other")
    error = net.run("STATUS").error()
    assert error["code"] == 50
    assert "not a bridge" in error["msg"]


@pytest.mark.parametrize("command", ["CHECK", "STATUS", "GC"])
def test_other_verbs_run_ipam(scripted_network, sandbox, ipam_calls, tmp_path, command):
    """CHECK, STATUS and GC run IPAM with the same input, and return IPAM's error."""
    keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
    net = scripted_network([{"address": "10.22.0.9/16"}], keys=keys)
    result = net.add(sandbox)
    net.run(command, sandbox, result).assert_silent()
    assert ipam_calls() == ["ADD", command]
    assert b"valid-attachments" in (tmp_path / "ipam" / f"stdin.{command}").read_bytes()
    net = scripted_network(body="""echo '{"code": 51, "msg": "no addresses left"}'; exit 1""", keys=keys)
    error = net.run(command, sandbox, result).error()
    assert (error["code"], error["msg"]) == (51, "no addresses left")
