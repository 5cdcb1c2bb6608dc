"""bandwidth as a chained plugin: what it takes from prevResult, hands on, refuses, and leaves alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.spec.configs import VERSIONS
from tests.support import netstate
from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifb_name, ifbs, qdiscs, state
from tests.support.results import prev_result

pytestmark = pytest.mark.needs("ifb", "tbf")

CONTEXT = "failed to parse network configuration: "
RECEIVED = "qdisc tbf 1: dev veth0 root rate 8Mbit burst 100000b lat 25ms"
PLACE = "qdisc ingress ffff: dev veth0 parent ffff:fff1 ----------------"
BURST_MAX = 8 * ((1 << 32) - 1)


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


def sent(name):
    """Returns the qdisc that limits what a pod sends."""
    return f"qdisc tbf 1: dev {name} root rate 16Mbit burst 200000b lat 25ms"


@pytest.mark.parametrize("version", VERSIONS)
def test_versions(shaped, sandbox, before, version):
    """The result is prevResult with the ifb, in the configuration's version; before 0.3.0 all verbs are code 1."""
    net = shaped.having(cniVersion=version)
    if version < "0.3.0":
        for command in ("ADD", "DEL"):
            assert net.bandwidth(command, sandbox, prev_result(version)).error()["code"] == 1
        return
    old = version < "1.0.0"
    given = {**before, "cniVersion": version, **({"dns": {}} if old else {})}
    result = net.limit(sandbox, given)
    link = netstate.shown(shaped.host, ifb_name(sandbox.name))
    assert result["interfaces"].pop() == {"name": link["ifname"], "mac": link["address"]}
    assert result == given
    net.release(sandbox)


def test_both_directions(shaped, sandbox, before):
    """ADD makes two token buckets, an ifb that is up with the veth's MTU, and one filter; DEL leaves nothing of it."""
    shaped.host.ip("link", "set", "veth0", "mtu", "1400")
    empty = state(shaped.host)
    inside = netstate.state(sandbox)
    shaped.limit(sandbox, before)
    made, name = state(shaped.host), ifb_name(sandbox.name)
    assert made["qdiscs"] == sorted([RECEIVED, PLACE, sent(name)])
    ifb = made["links"][name]
    assert (ifb["mtu"], "UP" in ifb["flags"], ifb["linkinfo"]) == (1400, True, {"info_kind": "ifb"})
    assert made["filters"]["veth0"][-2:] == [
        "match 00000000/00000000 at 0",
        f"action order 1: mirred (Egress Redirect to device {name}) stolen",
    ]
    assert {**made["links"], "veth0": 0} == {**empty["links"], "veth0": 0, name: ifb}
    assert netstate.state(sandbox) == inside
    for _ in range(2):
        shaped.release(sandbox)
        assert state(shaped.host) == empty


def test_one_direction(shaped, sandbox, before):
    """A limit of one direction leaves the other alone, and only what the pod sends takes an ifb."""
    net, name = shaped.having(runtimeConfig=None), ifb_name(sandbox.name)
    assert net.having(**INGRESS).limit(sandbox, before) == before
    assert (qdiscs(net.host), ifbs(net.host)) == ([RECEIVED], {})
    net.having(**INGRESS).check(sandbox, before)
    net.release(sandbox)
    assert qdiscs(net.host) == []
    assert net.having(**EGRESS).limit(sandbox, before)["interfaces"][:-1] == before["interfaces"]
    assert sorted(qdiscs(net.host)) == sorted([PLACE, sent(name)])
    net.having(**EGRESS).check(sandbox, before)


NO_LIMITS = [
    {"runtimeConfig": None},
    {"runtimeConfig": {}},
    {"runtimeConfig": {"bandwidth": None}},
    {"runtimeConfig": {"bandwidth": {}}},
    {"runtimeConfig": {"bandwidth": dict.fromkeys(BOTH, 0)}},
    dict.fromkeys(BOTH, 0),
    {"ingressRate": 0},
]


@pytest.mark.parametrize("keys", NO_LIMITS)
def test_no_limits(shaped, sandbox, before, keys):
    """Without limits ADD hands on prevResult and changes nothing, for any interface; a static 0 beats the runtime's."""
    net, empty = shaped.having(**keys), state(shaped.host)
    assert net.limit(sandbox, before) == before
    net.check(sandbox, before)
    assert net.limit(sandbox, {"cniVersion": "1.0.0"}) == {"cniVersion": "1.0.0"}
    net.release(sandbox)
    assert state(net.host) == empty


@pytest.mark.parametrize("keys", [{}, {"runtimeConfig": None}])
def test_what_it_works_on_must_be_there(shaped, sandbox, keys):
    """Without prevResult ADD and CHECK are refused with code 7 and the reference's texts, with or without limits."""
    empty = state(shaped.host)
    for command, msg in (("ADD", "must be called as chained plugin"), ("CHECK", "must be called as a chained plugin")):
        error = shaped.having(**keys).bandwidth(command, sandbox).error()
        assert (error["code"], error["msg"], bool(error["details"])) == (7, msg, True)
    assert state(shaped.host) == empty


def test_static_keys_beat_the_runtimes(shaped, sandbox, before):
    """One static key is enough for the runtime's limits to count for nothing, all four."""
    net = shaped.having(**INGRESS).with_runtime_limits(**{**INGRESS, "ingressRate": 9_000_000}, **EGRESS)
    assert net.limit(sandbox, before) == before
    assert qdiscs(net.host) == [RECEIVED]


def test_keys_as_containerd_writes_them(shaped, sandbox, before):
    """Capitalised keys mean the same, the runtime's and those of the configuration, which win all the same."""
    capitals = {key[0].upper() + key[1:]: value for key, value in BOTH.items()}
    shaped.with_runtime_limits(**capitals).limit(sandbox, before)
    shaped.check(sandbox, before)
    shaped.having(**capitals).with_runtime_limits(ingressRate=9, ingressBurst=9).limit(sandbox, before)
    shaped.check(sandbox, before)


WRONG = {
    "a rate alone": ({"ingressRate": 8}, "if rate is set, burst must also be set"),
    "a burst alone": ({"egressBurst": 8}, "if burst is set, rate must also be set"),
    "a burst of 4 GB": ({"ingressRate": 8, "ingressBurst": BURST_MAX}, "burst cannot be more than 4GB"),
    "less than a byte": (INGRESS | {"ingressRate": 7}, f'{CONTEXT}"ingressRate" must be 0 or at least 8, not 7'),
    "a negative rate": (INGRESS | {"ingressRate": -1}, f'{CONTEXT}"ingressRate" must be between 0 and {2**64 - 1}'),
    "more than 64 bits": (INGRESS | {"ingressRate": 2**64}, f'{CONTEXT}"ingressRate" must be between 0 and'),
    "a fraction": (EGRESS | {"egressBurst": 8.5}, f'{CONTEXT}"egressBurst" must be an integer, not 8.5'),
    "a text": ({"egressRate": "1M"}, f'{CONTEXT}"egressRate" must be an integer, not a string'),
    "a runtime's fraction": ({"runtimeConfig": {"bandwidth": {"egressRate": 0.5}}}, f'{CONTEXT}"runtimeConfig.band'),
    "no object": ({"runtimeConfig": {"bandwidth": [1]}}, f'{CONTEXT}"runtimeConfig.bandwidth" must be an object'),
    "no runtimeConfig": ({"runtimeConfig": "x"}, f'{CONTEXT}"runtimeConfig" must be an object'),
    "no maxBurst": ({"maxBurst": "1k"}, f'{CONTEXT}"maxBurst" must be an integer, not a string'),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_limits(shaped, sandbox, before, case):
    """Wrong limits are code 7 for ADD, CHECK and STATUS, in the reference's words; DEL removes what is there."""
    keys, msg = WRONG[case]
    empty = state(shaped.host)
    result = shaped.limit(sandbox, before)
    made, wrong = state(shaped.host), shaped.having(cniVersion="1.1.0", **keys)
    for command in ("ADD", "CHECK", "STATUS"):
        error = wrong.bandwidth(command, sandbox, result).error()
        assert (error["code"], error["msg"].startswith(msg)) == (7, True), error
        assert state(shaped.host) == made
    wrong.release(sandbox, result)
    assert state(shaped.host) == empty


def test_the_largest_burst(shaped, sandbox, before):
    """A burst of one bit below 4 GB is taken; it is what CRI-O sends."""
    assert (
        shaped.with_runtime_limits(ingressRate=8_000_000, ingressBurst=BURST_MAX - 1).limit(sandbox, before) == before
    )


def test_a_repeated_add(shaped, sandbox, before):
    """ADD with other limits replaces those of an earlier one, direction by direction; ADD follows DEL."""
    empty = state(shaped.host)
    shaped.limit(sandbox, before)
    made = state(shaped.host)
    other = shaped.with_runtime_limits(
        ingressRate=80_000_000, ingressBurst=800_000, egressRate=4_000_000, egressBurst=400_000
    )
    other.limit(sandbox, before)
    other.check(sandbox, before)
    name = ifb_name(sandbox.name)
    assert list(ifbs(shaped.host)) == [name]
    changed = sent(name).replace("16Mbit burst 200000", "4Mbit burst 50000")
    assert sorted(qdiscs(shaped.host)) == sorted([RECEIVED.replace("8Mbit", "80Mbit"), PLACE, changed])
    assert shaped.with_runtime_limits(**INGRESS).limit(sandbox, before) == before
    assert sorted(qdiscs(shaped.host)) == sorted([RECEIVED, PLACE, changed])
    shaped.release(sandbox)
    assert state(shaped.host) == empty
    shaped.limit(sandbox, before)
    again = state(shaped.host)
    for whole in (made, again):
        del whole["links"][name]["address"]
    assert again == made


@pytest.mark.parametrize(("first", "second"), [(INGRESS, EGRESS), (EGRESS, INGRESS)])
def test_a_direction_of_each_of_two_in_a_list(shaped, sandbox, before, first, second):
    """Listed twice with a direction each, the second leaves the first's limit as it is, also when it fails."""
    empty = state(shaped.host)
    result = shaped.with_runtime_limits(**first).limit(sandbox, before)
    made = state(shaped.host)
    foreign = ("tc", "qdisc", "replace", "dev", "veth0", "root", "handle", "5:", "pfifo")
    if second is INGRESS:  # a root of others is what the second fails at
        shaped.host.run(*foreign)
        beside = state(shaped.host)
        assert shaped.with_runtime_limits(**second).bandwidth("ADD", sandbox, result).error()["code"] == 999
        assert state(shaped.host) == beside
        shaped.host.run("tc", "qdisc", "delete", "dev", "veth0", "root")
        assert state(shaped.host) == made
    result = shaped.with_runtime_limits(**second).limit(sandbox, result)
    assert sorted(qdiscs(shaped.host)) == sorted([RECEIVED, PLACE, sent(ifb_name(sandbox.name))])
    for limits in (first, second):
        shaped.with_runtime_limits(**limits).check(sandbox, result)
    shaped.release(sandbox, result)
    assert state(shaped.host) == empty


def test_the_hosts_end_is_one_of_several(shaped, sandbox, before, new_sandbox):
    """The host's end is the pod's peer, wherever it stands in prevResult and whatever has its name elsewhere."""
    other = connect_veth(shaped.host, new_sandbox(), "veth9")
    interfaces = [*other["interfaces"], {"name": "veth0", "sandbox": "/run/netns/x"}, *before["interfaces"]]
    shaped.limit(sandbox, {**before, "interfaces": interfaces[::-1]})
    assert sorted(qdiscs(shaped.host)) == sorted([RECEIVED, PLACE, sent(ifb_name(sandbox.name))])


def _third(net, pod, other):
    other.ip("link", "add", "far0", "type", "veth", "peer", "name", "eth1", "netns", pod.name)
    return int(netstate.shown(pod, "eth1")["link_index"])


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_no_end_on_the_host(shaped, sandbox, before, new_sandbox, command):
    """Where the pod's interface leads nowhere on this host, ADD and CHECK say so in the reference's words."""
    index, empty = _third(shaped, sandbox, new_sandbox()), state(shaped.host)
    listed = before["interfaces"]

    def error(interfaces, **how):
        answer = shaped.bandwidth(command, sandbox, {**before, "interfaces": interfaces}, **how).error()
        assert answer["details"]
        return answer["code"], answer["msg"]

    assert error([]) == (7, "no interfaces provided")
    assert error(listed[:1]) == (999, "no veth peer of container interface found in host ns")
    inside = [{**item, "sandbox": sandbox.path} for item in listed]
    assert error(inside) == (999, "no veth peer of container interface found in host ns")
    assert error(listed, ifname="eth1") == (999, f"veth peer with index {index} is not in host ns")
    code, msg = error(listed, ifname="lo")
    assert (code, msg.startswith("container interface lo has no veth peer: ")) == (999, True)
    code, msg = error(listed, ifname="eth7")
    assert (code, msg.startswith("container interface eth7 has no veth peer: ")) == (999, True)
    code, msg = error(listed, netns="/no/such/netns")
    assert (code, msg.startswith('failed to open netns "/no/such/netns": ')) == (8, True)
    assert state(shaped.host) == empty


@pytest.mark.parametrize("order", [("eth0", "net1", "net2"), ("net1", "net2", "eth0"), ("net2", "eth0", "net1")])
def test_interfaces_of_one_container(shaped, sandbox, before, order):
    """All interfaces of a container on one network have limits of their own; DEL of one leaves the others'."""
    net = shaped
    given = {"eth0": before} | {f"net{n}": connect_veth(net.host, sandbox, f"veth{n}", f"net{n}") for n in (1, 2)}
    empty = state(net.host)
    results = {ifname: net.limit(sandbox, given[ifname], ifname=ifname) for ifname in given}
    names = {ifname: result["interfaces"][-1]["name"] for ifname, result in results.items()}
    assert names["eth0"] == ifb_name(sandbox.name)
    assert len(set(names.values())) == 3
    for number, gone in enumerate(order, 1):
        net.release(sandbox, ifname=gone)
        assert net.bandwidth("CHECK", sandbox, results[gone], ifname=gone).error()
        for stays in order[number:]:
            net.check(sandbox, results[stays], ifname=stays)
        net.limit(sandbox, given[gone], ifname=gone)
        net.check(sandbox, results[gone], ifname=gone)
        net.release(sandbox, ifname=gone)
        assert set(ifbs(net.host)) == {names[stays] for stays in order[number:]}
    assert state(net.host) == empty


@pytest.mark.parametrize("length", [100, 101, 300])
def test_long_names(shaped, sandbox, before, length):
    """Names of any length have limits that CHECK, DEL and GC find; two that differ at their end only are told apart."""
    names = ["n" * length + "1", "n" * length + "2"]
    nets, how = [shaped.having(name=name) for name in names], {"container_id": "c" * length}
    other = connect_veth(shaped.host, sandbox, "veth1", "interface-fifty")
    empty = state(shaped.host)
    nets[0].limit(sandbox, before, **how)
    nets[1].limit(sandbox, other, ifname="interface-fifty", **how)
    nets[0].check(sandbox, before, **how)
    assert all(len(alias) < 256 for alias in ifbs(shaped.host).values())
    nets[0].gc(("c" * length, "eth0"))
    nets[1].gc(("c" * length, "interface-fifty"))
    assert len(ifbs(shaped.host)) == 2
    nets[0].gc()
    nets[0].release(sandbox, **how)
    nets[1].check(sandbox, other, ifname="interface-fifty", **how)
    nets[1].release(sandbox, ifname="interface-fifty", **how)
    assert state(shaped.host) == empty


def test_limits_of_any_size(shaped, sandbox, before):
    """From a bit/s to the largest number, the kernel takes what ADD makes of a limit, and CHECK finds it again."""
    for rate in (8, 100, *(10**exponent + 1 for exponent in range(4, 20, 5)), 8 << 32, (8 << 32) - 8, 2**64 - 1):
        for burst in (8, rate // 10 + 8, BURST_MAX - 2):
            net = shaped.with_runtime_limits(ingressRate=rate, ingressBurst=min(burst, BURST_MAX - 2))
            net.limit(sandbox, before)
            net.check(sandbox, before)


def test_behind_bridge(shaped, sandbox):
    """What a runtime does with bridge before it: attach, check, detach; nothing is left but the bridge."""
    result = shaped.add(sandbox)
    shaped.check(sandbox, result)
    shaped.bridge.check(sandbox, result)
    shaped.delete(sandbox, result)
    assert set(netstate.links(shaped.host)) == {"lo", "cni0"}


def test_many_pods_at_once(shaped, new_sandbox):
    """Pods that come and go at the same time do not get in each other's way."""
    pods = [new_sandbox() for _ in range(8)]
    given = [connect_veth(shaped.host, pod, f"veth{number}") for number, pod in enumerate(pods)]
    empty = state(shaped.host)
    with ThreadPoolExecutor() as pool:
        for _ in range(2):
            list(pool.map(shaped.check, pods, pool.map(shaped.limit, pods, given)))
            assert set(ifbs(shaped.host)) == {ifb_name(pod.name) for pod in pods}
            list(pool.map(shaped.release, pods))
            assert state(shaped.host) == empty
