"""The firewall with iptables, with both variants of it: rules, their order, CHECK, what is asked for wrongly."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import golden, kernels, xtables
from tests.support.firewall_tables import DUAL, IPV4, Firewall, passing
from tests.support.golden import CONTAINER_ID
from tests.support.xtables import TOOLS

BOTH = passing("10.22.0.2")
FORWARD_JUMP = '-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD'
ISOLATION_JUMP = (
    '-A FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"'
    " -j CNI-ISOLATION-STAGE-1"
)
ADMIN_JUMP = '-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN'
STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"


def chain(net, name, tool="iptables"):
    """Returns the rules of a chain without their comments."""
    start = f"-A {name} "
    rules = [line.removeprefix(start) for line in net.rules()[tool] if line.startswith(start)]
    parts = [rule.partition("-m comment --comment ") for rule in rules]
    return [f"{before}-j {after.rpartition(' -j ')[2]}" if after else before for before, _, after in parts]


@pytest.mark.parametrize("file", golden.scenarios("firewall-"))
def test_the_rules_are_the_references(bridged, bin_dir, tools, file):
    """Chains, rules, their order and comments equal the reference's after ADD, also a repeated one, and after DEL."""
    expected = golden.scenario(file)
    net = Firewall(bridged, expected["config"], tools=tools)
    for _ in range(2):
        assert net.add(CONTAINER_ID) == expected["result"]
        assert net.rules() == {tool: expected[tool] for tool in TOOLS}
        if expected["config"].get("ingressPolicy") != "isolated":
            net.check(CONTAINER_ID)
    for _ in range(2):
        net.delete(CONTAINER_ID)
        assert net.everything() == {tool: expected[f"{tool} after DEL"] for tool in TOOLS}


def test_what_it_costs(firewall, tmp_path):
    """With iptables-nft ADD runs one program for each family, on a fresh host and later, and the other verbs none."""
    net = Firewall(firewall.host, firewall.config, tools=xtables.counted(firewall.tools, tmp_path / "counted"))
    legacy = firewall.tools.name == "legacy"
    both = ["ip6tables-restore", "iptables-restore"]
    for name, addresses in (("first", DUAL), ("second", ("10.22.0.3/16", "fd00:22::3/64"))):
        pod = net.of(*addresses).having(ingressPolicy="same-bridge")
        pod.add(name)
        assert xtables.calls(net.tools) == (sorted(both * 2) if legacy else both)
        for command in ("ADD", "CHECK"):
            pod.run(command, name)
            assert xtables.calls(net.tools) == (both if legacy else [])
    net.of(IPV4).having(ingressPolicy="isolated").add("third")
    assert xtables.calls(net.tools) == ["iptables-restore"] * (3 if legacy else 1)
    net.forgotten().delete("first")
    net.collect(("second", "eth0"))
    assert xtables.calls(net.tools) == (sorted(both * 3) if legacy else [])


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_the_result_is_the_earlier_plugins(firewall, version):
    """ADD hands on prevResult as it is, in the configuration's version."""
    net = firewall.having(cniVersion=version).of(*DUAL)
    assert net.add() == net.config["prevResult"]


@pytest.mark.parametrize("version", ["0.3.1", "0.2.0"])
def test_older_versions(firewall, version):
    """Versions before 0.4.0 are refused with code 1."""
    assert firewall.having(cniVersion=version).run("ADD").error()["code"] == 1
    assert not firewall.everything()["iptables"]


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_without_an_earlier_result(firewall, command):
    """ADD and CHECK without prevResult fail in the reference's words, and make nothing."""
    error = firewall.forgotten().run(command).error()
    assert (error["code"], error["msg"]) == (7, "missing prevResult from earlier plugin")
    assert not firewall.everything()["iptables"]


@pytest.mark.parametrize("policy", ["open", "same-bridge"])
def test_without_addresses(firewall, policy):
    """Without an address nothing is made."""
    result = {**firewall.config["prevResult"], "ips": []}
    net = firewall.having(prevResult=result, ingressPolicy=policy)
    net.add()
    net.check()
    net.delete()
    assert net.everything() == {tool: [] for tool in TOOLS}


def test_the_administrators_chain(firewall):
    """The chain that is named is made, the way to it is the first rule, and its rules stay."""
    net = firewall.having(iptablesAdminChainName="MINE")
    net.add()
    assert chain(net, "CNI-FORWARD") == ["-j MINE", *BOTH]
    net.load("-A MINE -d 192.0.2.9/32 -j DROP")
    net.of("10.22.0.3/16").add("other")
    net.check()
    net.delete()
    assert chain(net, "CNI-FORWARD") == ["-j MINE", *passing("10.22.0.3")]
    assert chain(net, "MINE") == ["-d 192.0.2.9/32 -j DROP"]


@pytest.mark.parametrize("name", ["a" * 29, "-x", 'a"b', "ü", "DROP", "CNI-FORWARD"])
def test_no_name_for_a_chain(firewall, name):
    """What is no name for a chain is refused before anything is made."""
    error = firewall.having(iptablesAdminChainName=name).run("ADD").error()
    assert (error["code"], '"iptablesAdminChainName"' in error["msg"]) == (7, True)
    assert not firewall.everything()["iptables"]


def test_a_second_bridge(firewall):
    """The rules of a second bridge stand in front of the end of each chain, which stays single."""
    firewall.having(ingressPolicy="same-bridge").add()
    firewall.of("10.23.0.2/16", bridge="cni1").having(ingressPolicy="isolated").add("other")
    assert chain(firewall, STAGE_1) == [
        "-i cni1 -o cni1 -j DROP",
        f"-i cni1 ! -o cni1 -j {STAGE_2}",
        f"-i cni0 ! -o cni0 -j {STAGE_2}",
        "-j RETURN",
    ]
    assert chain(firewall, STAGE_2) == ["-o cni1 -j DROP", "-o cni0 -j DROP", "-j RETURN"]
    assert chain(firewall, "FORWARD") == [f"-j {STAGE_1}", "-j CNI-FORWARD"]


def test_a_bridge_changes_its_policy(firewall):
    """The newest configuration's policy replaces the other one, both ways, and nothing is there twice."""
    policies = {policy: firewall.having(ingressPolicy=policy) for policy in ("same-bridge", "isolated")}
    policies["same-bridge"].add()
    before = firewall.rules()
    policies["isolated"].add()
    assert chain(firewall, STAGE_1) == ["-i cni0 -o cni0 -j DROP", f"-i cni0 ! -o cni0 -j {STAGE_2}", "-j RETURN"]
    policies["same-bridge"].add()
    assert firewall.rules() == before
    policies["same-bridge"].check()


@pytest.mark.parametrize("policy", ["open", "same-bridge"])
def test_a_lost_jump(firewall, policy):
    """Where only the way to what lets packets pass was lost, ADD puts it behind the one that isolates."""
    isolated = firewall.having(ingressPolicy="same-bridge")
    isolated.add()
    net = firewall.having(ingressPolicy=policy)
    for lines in (["-D" + FORWARD_JUMP[2:]], ["-D" + ISOLATION_JUMP[2:], ISOLATION_JUMP]):
        firewall.load(*lines)
        assert isolated.run("CHECK").error()["code"] == 999
        net.add()
        assert chain(net, "FORWARD") == [f"-j {STAGE_1}", "-j CNI-FORWARD"]
        isolated.check()


def test_others_rules_keep_their_place(firewall):
    """What others have put into FORWARD stays where it is, also between and before ours."""
    net = firewall.having(ingressPolicy="same-bridge")
    net.add()
    net.load("-I FORWARD 2 -s 192.0.2.1/32 -j ACCEPT", "-I FORWARD 1 -s 192.0.2.2/32 -j DROP")
    before = net.rules()
    net.add()
    firewall.of("10.22.0.9/16").add("other")
    assert [line for line in net.rules()["iptables"] if "10.22.0.9" not in line] == before["iptables"]


def test_rules_that_are_there_twice(firewall):
    """What pods share and is there more than once, as two first pods at a time may make it, is once after ADD."""
    net = firewall.having(ingressPolicy="isolated")
    net.add()
    before = net.rules()
    end = next(line for line in before["iptables"] if line.startswith(f"-A {STAGE_1} -m"))
    bridges = ["-I" + line[2:] for line in before["iptables"] if "cni0" in line]
    assert len(bridges) == 3
    net.load(FORWARD_JUMP, ISOLATION_JUMP, end, "-I" + FORWARD_JUMP[2:], "-I" + ADMIN_JUMP[2:], *bridges)
    net.add()
    assert net.rules() == before


def test_first_pods_at_once(firewall):
    """Of several first pods at the same time each has its rules, and what they share is there once, in order."""
    pods = {f"c{n}": firewall.of(f"10.22.0.{n}/16", f"fd00:22::{n}/64") for n in range(2, 10)}

    def add(name):
        return pods[name].having(ingressPolicy="same-bridge" if int(name[1:]) % 2 else "open").run("ADD", name)

    with ThreadPoolExecutor() as pool:
        for outcome in pool.map(add, pods):
            outcome.result()
    for tool in TOOLS:
        assert chain(firewall, "FORWARD", tool) == [f"-j {STAGE_1}", "-j CNI-FORWARD"]
        assert chain(firewall, STAGE_1, tool) == [f"-i cni0 ! -o cni0 -j {STAGE_2}", "-j RETURN"]
        assert chain(firewall, "CNI-FORWARD", tool)[0] == "-j CNI-ADMIN"
        assert len(chain(firewall, "CNI-FORWARD", tool)) == len(firewall.records(tool)) * 2 + 1 == 17
    with ThreadPoolExecutor() as pool:
        for outcome in pool.map(lambda name: pods[name].run("DEL", name), pods):
            outcome.assert_silent()
    assert firewall.passing() == firewall.records() == []


def test_first_pods_of_bridges_at_once(firewall):
    """Of several first pods of a further bridge at the same time none makes that bridge's rules a second time."""
    net = firewall.having(ingressPolicy="isolated")
    net.add()
    bridges = [f"br{n}" for n in range(6)]
    pods = [net.of(f"10.22.{n}.{m}/16", bridge=bridge) for n, bridge in enumerate(bridges) for m in range(2, 6)]
    for bridge in bridges:
        net.host.ip("link", "add", bridge, "type", "bridge")
    with ThreadPoolExecutor() as pool:
        for outcome in pool.map(lambda pod: pod[1].run("ADD", f"c{pod[0]}"), enumerate(pods)):
            outcome.result()
    assert len(chain(net, STAGE_1)) == len(set(chain(net, STAGE_1))) == 2 * (len(bridges) + 1) + 1
    assert len(chain(net, STAGE_2)) == len(set(chain(net, STAGE_2))) == len(bridges) + 2


@pytest.mark.parametrize("policy", ["open", "same-bridge"])
def test_check_demands_every_rule(firewall, policy):
    """When any one rule is taken away CHECK fails, names it as the reference does, and makes nothing; ADD mends it."""
    net = firewall.having(ingressPolicy=policy)
    net.add()
    whole = net.everything()
    for tool in TOOLS:
        for line in (line for line in whole[tool] if line.startswith("-A ") and not line.endswith(" RETURN")):
            if "CNI-FORWARD-OWNERS" in line:
                continue
            net.load("-D" + line[2:], tool=tool)
            without = net.everything()
            error = net.run("CHECK").error()
            what = {"FORWARD": "FORWARD rule", "CNI-FORWARD": "CNI-FORWARD rule"}.get(line.split()[1], "rule")
            what = "rule" if line.endswith(" ACCEPT") else what
            told = line.split(" ", 2)[2].replace('"', "")
            assert (error["code"], error["msg"]) == (999, f"expected {what} [{told}] not found ({tool})")
            assert net.everything() == without
            net.add()
            assert sorted(net.everything()[tool]) == sorted(whole[tool])
            net.check()


def test_check_makes_no_chain(firewall):
    """CHECK on a host without any chain fails and leaves it so."""
    assert firewall.run("CHECK").error()["code"] == 999
    assert firewall.everything() == {tool: [] for tool in TOOLS}


def test_add_restores_what_was_flushed(firewall):
    """After the table was flushed a repeated ADD makes all of it again, records too."""
    net = firewall.having(ingressPolicy="same-bridge")
    net.add()
    before = net.everything()
    for tool in TOOLS:
        chains = [line[1:] for line in before[tool] if line.startswith(":")]
        net.load("-F", *(f"-X {name}" for name in chains), tool=tool)
    assert net.everything() == {tool: [] for tool in TOOLS}
    net.add()
    assert net.everything() == before


def test_an_unknown_policy(firewall):
    """An unknown ingressPolicy is refused before anything is made, STATUS tells it, and DEL still takes away."""
    firewall.add()
    net = firewall.having(ingressPolicy="closed")
    error = net.of("10.22.0.9/16").run("ADD", "other").error()
    assert (error["code"], error["msg"]) == (7, 'unknown ingress policy: "closed"')
    assert firewall.passing() == BOTH
    assert net.having(cniVersion="1.1.0").run("STATUS").error()["code"] == 50
    net.delete()
    assert not firewall.passing()


@pytest.mark.parametrize("policy", ["same-bridge", "isolated"])
def test_a_policy_needs_an_interface_of_the_host(firewall, policy):
    """A policy without an interface, or whose first one is the pod's, is refused in the reference's words."""
    demand = (
        f'interface needs to be set for ingress policy "{policy}", make sure to chain "firewall" plugin with "bridge"'
    )
    net = firewall.having(ingressPolicy=policy)
    result = net.config["prevResult"]
    for interfaces in ([], result["interfaces"][1:]):
        ips = [{**ip, "interface": None} for ip in result["ips"]]
        error = net.having(prevResult={**result, "interfaces": interfaces, "ips": ips}).run("ADD").error()
        assert (error["code"], error["msg"]) == (7, demand)
    assert net.of(IPV4, bridge="eth0", sandbox="/run/netns/x").run("ADD").error()["msg"] == demand
    assert "iptables cannot match interface" in net.of(IPV4, bridge="br+").run("ADD").error()["msg"]
    assert net.everything() == {tool: [] for tool in TOOLS}


def test_rubbish_in_the_environment(firewall):
    """CNI_ARGS and a namespace that is gone matter to no verb."""
    how = {"args": "no;good", "netns": "/run/netns/absent"}
    firewall.add(**how)
    firewall.check(**how)
    firewall.delete(**how)
    assert not firewall.passing()


def test_gc_and_status_are_silent(firewall):
    """STATUS and GC of 1.1.0 succeed and print nothing."""
    firewall.having(cniVersion="1.1.0").forgotten().run("STATUS").assert_silent()
    firewall.collect()
    assert not any(line.startswith("-A") for lines in firewall.everything().values() for line in lines)


def test_isolated_needs_bridged_frames(firewall):
    """Where bridged frames do not pass iptables, ADD of an isolated pod says so and how to cure it, and CHECK fails."""
    if kernels.has("br_netfilter"):
        firewall.host.set_sysctl("net/bridge/bridge-nf-call-iptables", "0")
    net = firewall.having(ingressPolicy="isolated")
    outcome = net.run("ADD")
    outcome.result()
    assert "bridge-nf-call-iptables" in outcome.stderr
    assert '"bridgeNetfilter"' in outcome.stderr
    assert "still reach each other" in net.run("CHECK").error()["msg"]
    assert not firewall.having(ingressPolicy="same-bridge").run("ADD").stderr


@pytest.mark.needs("br_netfilter")
def test_isolated_with_bridged_frames(firewall):
    """Where bridged frames pass iptables, nothing is said, and CHECK is content."""
    for name in ("iptables", "ip6tables"):
        firewall.host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "1")
    net = firewall.having(ingressPolicy="isolated")
    assert not net.run("ADD").stderr
    net.check()
