"""ptp: a routed veth; addresses, routes, traffic, refused input, CHECK, DEL and masquerading."""

from dataclasses import replace

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import xtables
from tests.support.attaching import address, reaches
from tests.support.netstate import links, nft_rules, state

IPV4 = {"address": "10.23.0.9/24", "gateway": "10.23.0.1"}
IPV6 = {"address": "fd00:23::9/64", "gateway": "fd00:23::1"}


@pytest.fixture
def scripted(scripted_network):
    """A function that creates a ptp network with a scripted IPAM plugin."""

    def make(ips, *, body="", keys=None, **rest):
        conf = {"type": "ptp", "bridge": None, "isDefaultGateway": None, **(keys or {})}
        network = scripted_network(ips, body=body, keys={"cniVersion": conf.get("cniVersion", "1.0.0")}, **rest)
        return network.having(**conf)

    return make


def test_two_pods_and_the_host_reach_each_other(routed, new_sandbox):
    """Gateway, host and another pod answer by both families; packets between pods are forwarded."""
    one, two = new_sandbox(), new_sandbox()
    first, second = routed.add(one), routed.add(two)
    for number, gateway in enumerate(("10.23.0.1", "fd00:23::1")):
        assert reaches(one, gateway)
        assert reaches(routed.host, address(first, number))
        assert reaches(one, address(second, number))
    routed.host.set_sysctl("net/ipv4/ip_forward", "0")
    assert not reaches(one, address(second), within_s=1)
    assert reaches(one, "10.23.0.1")


def test_auto_is_the_lowest_mtu_of_the_uplinks(routed, new_sandbox, uplink):
    """With "auto" both ends get the lowest MTU of the uplinks, not of other pods; CHECK takes it from the result."""
    network = routed.having(cniVersion="1.1.0", mtu="auto")
    uplink("up0", 1500)
    attached = []
    for mtu in (1400, 1500):
        network.host.ip("link", "set", "up0", "mtu", str(mtu))
        pod = new_sandbox()
        attached.append((pod, network.add(pod)))
        assert [item["mtu"] for item in attached[-1][1]["interfaces"]] == [mtu, mtu]
        assert links(pod)["eth0"]["mtu"] == mtu
    for pod, result in attached:
        network.check(pod, result)
    pod, result = attached[0]
    pod.ip("link", "set", "eth0", "mtu", "1300")
    assert "MTU" in network.run("CHECK", pod, prev_result=result).error()["msg"]


def test_result_has_the_macs_of_both_ends(routed, sandbox):
    """The result has the MAC addresses of host veth and container veth."""
    host_veth, container_veth = routed.add(sandbox)["interfaces"]
    assert host_veth["mac"] == links(routed.host)[host_veth["name"]]["address"]
    assert container_veth["mac"] == links(sandbox)["eth0"]["address"]


def test_forwarding_is_enabled_for_the_families_in_use(routed, sandbox):
    """An IPv4 pod does not enable IPv6 forwarding."""
    ipam = {**routed.config["ipam"], "ranges": routed.config["ipam"]["ranges"][:1]}
    routed.having(ipam=ipam).add(sandbox)
    assert routed.host.sysctl("net/ipv4/ip_forward") == "1"
    assert routed.host.sysctl("net/ipv6/conf/all/forwarding") == "0"


IPAM_ADDRESSES = {
    "no gateway": ([{"address": "10.23.0.9/24"}], "ptp needs a gateway for 10.23.0.9/24"),
    "no gateway beside": ([IPV4, {"address": "fd00:23::9/64"}], "ptp needs a gateway for fd00:23::9/64"),
    "itself": ([{**IPV4, "gateway": "10.23.0.9"}], "gateway 10.23.0.9 of address 10.23.0.9/24 is the pod's own"),
    "other family": ([{**IPV4, "gateway": "fd00:23::1"}], "gateway fd00:23::1 of address 10.23.0.9/24 is of the"),
}


@pytest.mark.parametrize("case", IPAM_ADDRESSES)
def test_unusable_addresses_are_refused(scripted, sandbox, ipam_calls, case):
    """Addresses that cannot be routed are refused before any change, and released."""
    ips, text = IPAM_ADDRESSES[case]
    net = scripted(ips)
    error = net.add_error(sandbox)
    assert (error["code"], error["msg"][: len(text)]) == (7, text)
    assert ipam_calls() == ["ADD", "DEL"]


@pytest.mark.parametrize(
    "ips",
    [
        [{"address": "10.23.0.9/32", "gateway": "10.23.0.1"}, {"address": "fd00:23::9/128", "gateway": "fd00:23::1"}],
        [{"address": "10.23.0.9/32", "gateway": "169.254.1.1"}, {"address": "fd00:23::9/128", "gateway": "fe80::1"}],
        [IPV4, {"address": "10.23.0.10/24", "gateway": "10.23.0.1"}],
        [IPV4, {"address": "10.24.0.9/24", "gateway": "10.23.0.1"}],
        [IPV4, {"address": "10.24.0.9/24", "gateway": "10.24.0.1"}, IPV6],
    ],
    ids=["host prefixes", "gateways elsewhere", "two of a subnet", "one gateway", "two subnets"],
)
def test_unusual_addresses_work(scripted, sandbox, reference, ips):
    """Host prefixes, gateways outside the subnet and several addresses work, and pass the reference's CHECK."""
    routes = [{"dst": "0.0.0.0/0"}]
    net = scripted(ips, routes=routes)
    result = net.add(sandbox)
    for ip in result["ips"]:
        assert reaches(net.host, ip["address"].partition("/")[0])
        if not ip["gateway"].startswith("fe80"):
            assert reaches(sandbox, ip["gateway"])
    assert f"default via {ips[0]['gateway']} dev eth0" in sandbox.ip("route")
    net.check(sandbox, result)
    replace(net, bin_dir=reference).check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(net.host)) == {"lo"}


def test_routes_of_ipam_may_use_a_router_of_the_subnet(scripted, sandbox):
    """A route via another address of the subnet is added as the reference adds it."""
    net = scripted([IPV4], routes=[{"dst": "192.0.2.0/24", "gw": "10.23.0.200"}])
    net.add(sandbox)
    assert "192.0.2.0/24 via 10.23.0.200 dev eth0" in sandbox.ip("route")


@pytest.mark.parametrize("ip", [IPV4, IPV6], ids=["IPv4", "IPv6"])
def test_a_route_of_ipam_to_the_subnet_itself(scripted, sandbox, ip):
    """If IPAM returns a route to the pod's subnet, only the kernel's route to it is deleted."""
    subnet = ip["gateway"].removesuffix("1") + ("0/24" if "." in ip["gateway"] else "/64")
    scripted([ip], routes=[{"dst": subnet}]).add(sandbox)
    listed = sandbox.ip("-6" if ":" in subnet else "-4", "route", "show", subnet).splitlines()
    assert listed
    assert all(line.startswith(f"{subnet} via {ip['gateway']} ") for line in listed), listed


def test_cni_args_are_ignored(scripted, sandbox):
    """ADD succeeds with invalid CNI_ARGS, which only IPAM plugins read."""
    scripted([IPV4]).add(sandbox, env={"CNI_ARGS": "RUBBISH"})


def test_ipv6_disabled_on_new_interfaces_is_enabled(routed, sandbox):
    """If the host disables IPv6 on new interfaces, ADD enables it on the host veth."""
    routed.host.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")
    routed.add(sandbox)
    assert reaches(sandbox, "fd00:23::1")


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_check_behind_tuning(routed, sandbox, tuning, version):
    """CHECK passes if a later plugin of the list changed the MAC address and MTU of the pod's interface."""
    net = routed.having(mtu=1500, cniVersion=version)
    behind = tuning.having(cniVersion=version, mtu=1400, mac="02:00:00:00:00:42", mtuBothEnds=True)
    result = behind.add(sandbox, net.add(sandbox))
    net.check(sandbox, result)
    behind.check(sandbox, result)


def test_check_of_two_attachments_to_one_network(routed, sandbox):
    """CHECK of two interfaces of a pod with one gateway passes, and reports a missing route of its own."""
    ipam = {**routed.config["ipam"], "routes": [{"dst": "2001:db8::/32", "gw": "fd00:23::1"}]}
    net = routed.having(ipam=ipam)
    results = {ifname: net.add(sandbox, ifname=ifname) for ifname in ("eth0", "eth1")}
    for ifname, result in results.items():
        net.check(sandbox, result, ifname=ifname)
    sandbox.ip("route", "del", "10.23.0.1", "dev", "eth0")
    error = net.run("CHECK", sandbox, prev_result=results["eth0"], ifname="eth0").error()
    assert error["msg"] == "Failed to find Gateway 10.23.0.1 for interface eth0"
    net.check(sandbox, results["eth1"], ifname="eth1")


@pytest.fixture(params=[NFT, LEGACY, pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))])
def masqueraded(routed, request, tmp_path):
    """The network masqueraded by each variant of iptables and by nftables."""
    if request.param == "nftables":
        return routed.having(ipMasq=True, ipMasqBackend="nftables")
    tools = xtables.variant(tmp_path / "tools", request.param)
    return replace(routed.having(ipMasq=True, ipMasqBackend="iptables"), env=xtables.path(tools))


def rules(net):
    """Returns all rules on the host, of both backends."""
    tool = f"{net.env['PATH'].partition(':')[0]}/iptables-save" if net.env else "iptables-save"
    return "\n".join([*nft_rules(net.host), net.host.run(tool)])


@pytest.mark.parametrize("missing", ["nothing", "the link", "the name", "the namespace", "its path"])
def test_del_deletes_everything_that_still_exists(masqueraded, sandbox, missing):
    """DEL deletes veth, routes, rules and leases if parts are missing, twice, and without prevResult."""
    net = masqueraded
    before = state(net.host), links(sandbox)
    result = net.add(sandbox)
    assert "masquerade" in rules(net).lower()
    assert "10.23.0.2" in rules(net)
    assert reaches(sandbox, "10.23.0.1")
    if missing == "the link":
        sandbox.ip("link", "del", "eth0")
    elif missing == "the name":
        sandbox.ip("link", "set", "eth0", "down")
        sandbox.ip("link", "set", "eth0", "name", "mine")
    elif missing == "the namespace":
        sandbox.delete()
    for _ in range(2):
        known = result if missing in ("the name", "its path") else None
        net.delete("" if missing == "its path" else sandbox, known, container_id=sandbox.name)
    for trace in ("10.23.0.2", "fd00:23::2", "CNI-"):
        assert trace not in rules(net)
    assert net.leases() == {}
    if missing != "the namespace":  # the kernel destroys a namespace asynchronously
        assert (state(net.host), links(sandbox)) == before
