"""bandwidth as a chained plugin: what it reads from prevResult, returns, refuses, and does not change."""

import pytest

from tests.spec.configs import VERSIONS
from tests.support import netstate
from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifb_name, ifbs, qdiscs, state
from tests.support.results import prev_result

pytestmark = pytest.mark.needs("ifb", "tbf")

INGRESS_QDISC = "qdisc tbf 1: dev veth0 root rate 8Mbit burst 100000b lat 25ms"
REDIRECT_QDISC = "qdisc ingress ffff: dev veth0 parent ffff:fff1 ----------------"


def egress_qdisc(name):
    """Returns the qdisc that limits the packets from a pod."""
    return f"qdisc tbf 1: dev {name} root rate 16Mbit burst 200000b lat 25ms"


@pytest.mark.parametrize("version", VERSIONS)
def test_result_has_the_version_of_the_configuration(shaped, sandbox, veth_result, version):
    """The result is prevResult with the ifb, in the configuration's version; before 0.3.0 all verbs have code 1."""
    net = shaped.having(cniVersion=version)
    if version < "0.3.0":
        for command in ("ADD", "DEL"):
            assert net.bandwidth(command, sandbox, prev_result(version)).error()["code"] == 1
        return
    old = version < "1.0.0"
    previous = {**veth_result, "cniVersion": version, **({"dns": {}} if old else {})}
    result = net.limit(sandbox, previous)
    link = netstate.shown(shaped.host, ifb_name(sandbox.name))
    assert result["interfaces"].pop() == {"name": link["ifname"], "mac": link["address"]}
    assert result == previous
    net.release(sandbox)


def test_add_creates_and_del_removes_both_limits(shaped, sandbox, veth_result):
    """ADD creates two token buckets, an ifb that is up with the veth's MTU, and one filter; DEL removes all."""
    shaped.host.ip("link", "set", "veth0", "mtu", "1400")
    empty = state(shaped.host)
    pod_state = netstate.state(sandbox)
    shaped.limit(sandbox, veth_result)
    created, name = state(shaped.host), ifb_name(sandbox.name)
    assert created["qdiscs"] == sorted([INGRESS_QDISC, REDIRECT_QDISC, egress_qdisc(name)])
    ifb = created["links"][name]
    assert (ifb["mtu"], "UP" in ifb["flags"], ifb["linkinfo"]) == (1400, True, {"info_kind": "ifb"})
    assert created["filters"]["veth0"][-2:] == [
        "match 00000000/00000000 at 0",
        f"action order 1: mirred (Egress Redirect to device {name}) stolen",
    ]
    assert {**created["links"], "veth0": 0} == {**empty["links"], "veth0": 0, name: ifb}
    assert netstate.state(sandbox) == pod_state
    for _ in range(2):
        shaped.release(sandbox)
        assert state(shaped.host) == empty


@pytest.mark.parametrize(
    "keys", [{"runtimeConfig": None}, {"runtimeConfig": {"bandwidth": {}}}, dict.fromkeys(BOTH, 0)]
)
def test_add_without_limits_returns_prev_result(shaped, sandbox, veth_result, keys):
    """Without limits ADD returns prevResult and changes nothing; a configured 0 overrides the runtime's limits."""
    net, empty = shaped.having(**keys), state(shaped.host)
    assert net.limit(sandbox, veth_result) == veth_result
    net.check(sandbox, veth_result)
    assert net.limit(sandbox, {"cniVersion": "1.0.0"}) == {"cniVersion": "1.0.0"}
    net.release(sandbox)
    assert state(net.host) == empty


@pytest.mark.parametrize("keys", [{}, {"runtimeConfig": None}])
def test_missing_prev_result_is_refused(shaped, sandbox, keys):
    """Without prevResult ADD and CHECK have code 7 and the reference's texts, with or without limits."""
    empty = state(shaped.host)
    for command, msg in (("ADD", "must be called as chained plugin"), ("CHECK", "must be called as a chained plugin")):
        error = shaped.having(**keys).bandwidth(command, sandbox).error()
        assert (error["code"], error["msg"], bool(error["details"])) == (7, msg, True)
    assert state(shaped.host) == empty


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        ({"ingressRate": 8}, "if rate is set, burst must also be set"),
        (
            {"runtimeConfig": {"bandwidth": {"egressRate": 0.5}}},
            'failed to parse network configuration: "runtimeConfig.band',
        ),
    ],
    ids=["a rate alone", "a runtime's fraction"],
)
def test_invalid_limits_are_refused(shaped, sandbox, veth_result, keys, msg):
    """Invalid limits have code 7 and the reference's texts in ADD, CHECK and STATUS; DEL removes existing limits."""
    empty = state(shaped.host)
    result = shaped.limit(sandbox, veth_result)
    created, wrong = state(shaped.host), shaped.having(cniVersion="1.1.0", **keys)
    for command in ("ADD", "CHECK", "STATUS"):
        error = wrong.bandwidth(command, sandbox, result).error()
        assert (error["code"], error["msg"].startswith(msg)) == (7, True), error
        assert state(shaped.host) == created
    wrong.release(sandbox, result)
    assert state(shaped.host) == empty


def test_repeated_add_replaces_limits(shaped, sandbox, veth_result):
    """ADD with other limits replaces the earlier ones, direction by direction; an ADD after DEL has the same effect."""
    empty = state(shaped.host)
    shaped.limit(sandbox, veth_result)
    created = state(shaped.host)
    other = shaped.with_runtime_limits(
        ingressRate=80_000_000, ingressBurst=800_000, egressRate=4_000_000, egressBurst=400_000
    )
    other.limit(sandbox, veth_result)
    other.check(sandbox, veth_result)
    name = ifb_name(sandbox.name)
    assert list(ifbs(shaped.host)) == [name]
    changed = egress_qdisc(name).replace("16Mbit burst 200000", "4Mbit burst 50000")
    assert sorted(qdiscs(shaped.host)) == sorted([INGRESS_QDISC.replace("8Mbit", "80Mbit"), REDIRECT_QDISC, changed])
    assert shaped.with_runtime_limits(**INGRESS).limit(sandbox, veth_result) == veth_result
    assert sorted(qdiscs(shaped.host)) == sorted([INGRESS_QDISC, REDIRECT_QDISC, changed])
    shaped.release(sandbox)
    assert state(shaped.host) == empty
    shaped.limit(sandbox, veth_result)
    again = state(shaped.host)
    for whole in (created, again):
        del whole["links"][name]["address"]
    assert again == created


@pytest.mark.parametrize(("first", "second"), [(INGRESS, EGRESS), (EGRESS, INGRESS)])
def test_two_bandwidth_plugins_in_a_list_limit_one_direction_each(shaped, sandbox, veth_result, first, second):
    """If the list has two with a direction each, the second keeps the first's limit, even if it fails."""
    empty = state(shaped.host)
    result = shaped.with_runtime_limits(**first).limit(sandbox, veth_result)
    created = state(shaped.host)
    foreign = ("tc", "qdisc", "replace", "dev", "veth0", "root", "handle", "5:", "pfifo")
    if second is INGRESS:  # the second fails because of another program's root qdisc
        shaped.host.run(*foreign)
        with_foreign_root = state(shaped.host)
        assert shaped.with_runtime_limits(**second).bandwidth("ADD", sandbox, result).error()["code"] == 999
        assert state(shaped.host) == with_foreign_root
        shaped.host.run("tc", "qdisc", "delete", "dev", "veth0", "root")
        assert state(shaped.host) == created
    result = shaped.with_runtime_limits(**second).limit(sandbox, result)
    assert sorted(qdiscs(shaped.host)) == sorted([INGRESS_QDISC, REDIRECT_QDISC, egress_qdisc(ifb_name(sandbox.name))])
    for limits in (first, second):
        shaped.with_runtime_limits(**limits).check(sandbox, result)
    shaped.release(sandbox, result)
    assert state(shaped.host) == empty


def test_host_veth_is_one_of_several_interfaces(shaped, sandbox, veth_result, new_sandbox):
    """The host veth is the pod's peer, whatever its place in prevResult is and whatever else has its name."""
    other = connect_veth(shaped.host, new_sandbox(), "veth9")
    interfaces = [*other["interfaces"], {"name": "veth0", "sandbox": "/run/netns/x"}, *veth_result["interfaces"]]
    shaped.limit(sandbox, {**veth_result, "interfaces": interfaces[::-1]})
    assert sorted(qdiscs(shaped.host)) == sorted([INGRESS_QDISC, REDIRECT_QDISC, egress_qdisc(ifb_name(sandbox.name))])


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_pod_without_a_host_veth_is_refused(shaped, sandbox, veth_result, new_sandbox, command):
    """If the pod's interface has no peer on this host, ADD and CHECK fail with the reference's texts."""
    new_sandbox().ip("link", "add", "far0", "type", "veth", "peer", "name", "eth1", "netns", sandbox.name)
    index, empty = int(netstate.shown(sandbox, "eth1")["link_index"]), state(shaped.host)
    listed = veth_result["interfaces"]

    def error(interfaces, **options):
        error = shaped.bandwidth(command, sandbox, {**veth_result, "interfaces": interfaces}, **options).error()
        assert error["details"]
        return error["code"], error["msg"]

    assert error([]) == (7, "no interfaces provided")
    assert error(listed[:1]) == (999, "no veth peer of container interface found in host ns")
    in_sandbox = [{**item, "sandbox": sandbox.path} for item in listed]
    assert error(in_sandbox) == (999, "no veth peer of container interface found in host ns")
    assert error(listed, ifname="eth1") == (999, f"veth peer with index {index} is not in host ns")
    for options, expected, start in (
        ({"ifname": "lo"}, 999, "container interface lo has no veth peer: "),
        ({"ifname": "eth7"}, 999, "container interface eth7 has no veth peer: "),
        ({"netns": "/no/such/netns"}, 8, 'failed to open netns "/no/such/netns": '),
    ):
        code, msg = error(listed, **options)
        assert (code, msg.startswith(start)) == (expected, True)
    assert state(shaped.host) == empty


@pytest.mark.parametrize("order", [("eth0", "net1", "net2"), ("net1", "net2", "eth0"), ("net2", "eth0", "net1")])
def test_interfaces_of_one_container_have_separate_limits(shaped, sandbox, veth_result, order):
    """All interfaces of a container on one network have separate limits; DEL of one keeps the others'."""
    net = shaped
    veth_results = {"eth0": veth_result} | {
        f"net{n}": connect_veth(net.host, sandbox, f"veth{n}", f"net{n}") for n in (1, 2)
    }
    empty = state(net.host)
    results = {ifname: net.limit(sandbox, veth_results[ifname], ifname=ifname) for ifname in veth_results}
    names = {ifname: result["interfaces"][-1]["name"] for ifname, result in results.items()}
    assert names["eth0"] == ifb_name(sandbox.name)
    assert len(set(names.values())) == 3
    for number, removed in enumerate(order, 1):
        net.release(sandbox, ifname=removed)
        assert net.bandwidth("CHECK", sandbox, results[removed], ifname=removed).error()
        for remaining in order[number:]:
            net.check(sandbox, results[remaining], ifname=remaining)
        net.limit(sandbox, veth_results[removed], ifname=removed)
        net.check(sandbox, results[removed], ifname=removed)
        net.release(sandbox, ifname=removed)
        assert set(ifbs(net.host)) == {names[remaining] for remaining in order[number:]}
    assert state(net.host) == empty
