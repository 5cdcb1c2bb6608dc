"""The firewall with both variants of iptables: rules, their order, CHECK, invalid configurations."""

import pytest

from tests.support import golden, kernels, xtables
from tests.support.bare_plugin import DUAL, IPV4
from tests.support.firewall_tables import Firewall, expected_accept_rules
from tests.support.golden import CONTAINER_ID
from tests.support.xtables import TOOLS

ACCEPT_RULES = expected_accept_rules("10.22.0.2")
FORWARD_JUMP = '-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD'
ISOLATION_JUMP = (
    '-A FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"'
    " -j CNI-ISOLATION-STAGE-1"
)
ADMIN_JUMP = '-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN'
STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"


def list_chain(net, name, tool="iptables"):
    """Returns the rules of a chain without their comments."""
    start = f"-A {name} "
    rules = [line.removeprefix(start) for line in net.rules()[tool] if line.startswith(start)]
    parts = [rule.partition("-m comment --comment ") for rule in rules]
    return [f"{before}-j {after.rpartition(' -j ')[2]}" if after else before for before, _, after in parts]


@pytest.mark.parametrize("file", golden.scenarios("firewall-"))
def test_rules_equal_the_reference_plugins(bridged, bin_dir, tools, file):
    """Chains, rules, their order and comments equal the reference plugin's after ADD, repeated ADD, and DEL."""
    expected = golden.scenario(file)
    net = Firewall(bridged, expected["config"], tools=tools)
    for _ in range(2):
        assert net.add(CONTAINER_ID) == expected["result"]
        assert net.rules() == {tool: expected[tool] for tool in TOOLS}
        if expected["config"].get("ingressPolicy") != "isolated":
            net.check(CONTAINER_ID)
    for _ in range(2):
        net.delete(CONTAINER_ID)
        assert net.saved() == {tool: expected[f"{tool} after DEL"] for tool in TOOLS}


def test_number_of_programs(firewall, tmp_path):
    """With iptables-nft every ADD runs one program for each family, and the other verbs run none."""
    assert firewall.tools
    tools = xtables.counted(firewall.tools, tmp_path / "counted")
    net = Firewall(firewall.host, firewall.config, tools=tools)
    legacy = firewall.tools.name == "legacy"
    programs = ["ip6tables-restore", "iptables-restore"]
    for name, addresses in (("first", DUAL), ("second", ("10.22.0.3/16", "fd00:22::3/64"))):
        pod = net.pod(*addresses).having(ingressPolicy="same-bridge")
        pod.add(name)
        assert xtables.calls(tools) == (sorted(programs * 2) if legacy else programs)
        for command in ("ADD", "CHECK"):
            pod.run(command, name)
            assert xtables.calls(tools) == (programs if legacy else [])
    net.pod(IPV4).having(ingressPolicy="isolated").add("third")
    assert xtables.calls(tools) == ["iptables-restore"] * (3 if legacy else 1)
    net.without_result().delete("first")
    net.gc("second")
    assert xtables.calls(tools) == (sorted(programs * 3) if legacy else [])


def test_administrators_chain(firewall):
    """ADD creates the configured chain and jumps to it in the first rule, and DEL keeps the chain's rules."""
    net = firewall.having(iptablesAdminChainName="MINE")
    net.add()
    assert list_chain(net, "CNI-FORWARD") == ["-j MINE", *ACCEPT_RULES]
    net.load("-A MINE -d 192.0.2.9/32 -j DROP")
    net.pod("10.22.0.3/16").add("other")
    net.check()
    net.delete()
    assert list_chain(net, "CNI-FORWARD") == ["-j MINE", *expected_accept_rules("10.22.0.3")]
    assert list_chain(net, "MINE") == ["-d 192.0.2.9/32 -j DROP"]


def test_second_bridge(firewall):
    """The rules of a second bridge are inserted before the last rule of each chain, which is not duplicated."""
    firewall.having(ingressPolicy="same-bridge").add()
    firewall.pod("10.23.0.2/16", bridge="cni1").having(ingressPolicy="isolated").add("other")
    assert list_chain(firewall, STAGE_1) == [
        "-i cni1 -o cni1 -j DROP",
        f"-i cni1 ! -o cni1 -j {STAGE_2}",
        f"-i cni0 ! -o cni0 -j {STAGE_2}",
        "-j RETURN",
    ]
    assert list_chain(firewall, STAGE_2) == ["-o cni1 -j DROP", "-o cni0 -j DROP", "-j RETURN"]
    assert list_chain(firewall, "FORWARD") == [f"-j {STAGE_1}", "-j CNI-FORWARD"]


def test_interface_that_iptables_cannot_match(firewall):
    """A policy is refused for an interface whose name is a pattern for iptables, and nothing is changed."""
    error = firewall.pod(IPV4, bridge="br+").having(ingressPolicy="isolated").run("ADD").error()
    assert "iptables cannot match interface" in error["msg"]
    assert firewall.saved() == {tool: [] for tool in TOOLS}


def test_newest_policy_of_a_bridge_replaces_the_other(firewall):
    """The policy of the newest ADD replaces the bridge's other policy, both ways, without duplicate rules."""
    policies = {policy: firewall.having(ingressPolicy=policy) for policy in ("same-bridge", "isolated")}
    policies["same-bridge"].add()
    before = firewall.rules()
    policies["isolated"].add()
    assert list_chain(firewall, STAGE_1) == ["-i cni0 -o cni0 -j DROP", f"-i cni0 ! -o cni0 -j {STAGE_2}", "-j RETURN"]
    policies["same-bridge"].add()
    assert firewall.rules() == before
    policies["same-bridge"].check()


def test_check_requires_the_order_of_the_jumps(firewall):
    """CHECK fails if the jump to the accepting rules precedes the one to the isolation rules, and ADD corrects it."""
    net = firewall.having(ingressPolicy="same-bridge")
    net.add()
    net.load("-D" + ISOLATION_JUMP[2:], ISOLATION_JUMP)
    assert net.run("CHECK").error()["code"] == 999
    net.add()
    net.check()


def test_rules_of_other_programs_keep_their_position(firewall):
    """ADD does not move other programs' rules in FORWARD, also between and before the plugin's."""
    net = firewall.having(ingressPolicy="same-bridge")
    net.add()
    net.load("-I FORWARD 2 -s 192.0.2.1/32 -j ACCEPT", "-I FORWARD 1 -s 192.0.2.2/32 -j DROP")
    before = net.rules()
    net.add()
    firewall.pod("10.22.0.9/16").add("other")
    assert [line for line in net.rules()["iptables"] if "10.22.0.9" not in line] == before["iptables"]


def test_add_deletes_duplicates_of_shared_rules(firewall):
    """ADD deletes duplicates of shared rules, which parallel first ADDs may create."""
    net = firewall.having(ingressPolicy="isolated")
    net.add()
    before = net.rules()
    end = next(line for line in before["iptables"] if line.startswith(f"-A {STAGE_1} -m"))
    bridge_rules = ["-I" + line[2:] for line in before["iptables"] if "cni0" in line]
    assert len(bridge_rules) == 3
    net.load(FORWARD_JUMP, ISOLATION_JUMP, end, "-I" + FORWARD_JUMP[2:], "-I" + ADMIN_JUMP[2:], *bridge_rules)
    net.add()
    assert net.rules() == before


@pytest.mark.parametrize("policy", ["open", "same-bridge"])
def test_check_reports_each_missing_rule(firewall, policy):
    """CHECK fails for any missing rule with the reference plugin's text and changes nothing; ADD restores the rule."""
    net = firewall.having(ingressPolicy=policy)
    net.add()
    whole = net.saved()
    for tool in TOOLS:
        for line in (line for line in whole[tool] if line.startswith("-A ") and not line.endswith(" RETURN")):
            if "CNI-FORWARD-OWNERS" in line:
                continue
            net.load("-D" + line[2:], tool=tool)
            without = net.saved()
            error = net.run("CHECK").error()
            what = {"FORWARD": "FORWARD rule", "CNI-FORWARD": "CNI-FORWARD rule"}.get(line.split()[1], "rule")
            what = "rule" if line.endswith(" ACCEPT") else what
            rule = line.split(" ", 2)[2].replace('"', "")
            assert (error["code"], error["msg"]) == (999, f"expected {what} [{rule}] not found ({tool})")
            assert net.saved() == without
            net.add()
            assert sorted(net.saved()[tool]) == sorted(whole[tool])
            net.check()


def test_add_restores_a_flushed_table(firewall):
    """A repeated ADD restores all rules and records of a flushed table."""
    net = firewall.having(ingressPolicy="same-bridge")
    net.add()
    before = net.saved()
    for tool in TOOLS:
        chains = [line[1:] for line in before[tool] if line.startswith(":")]
        net.load("-F", *(f"-X {name}" for name in chains), tool=tool)
    assert net.saved() == {tool: [] for tool in TOOLS}
    net.add()
    assert net.saved() == before


def test_isolated_policy_without_bridge_netfilter(firewall):
    """If bridged frames bypass iptables, ADD of an isolated pod prints this with a fix, and CHECK fails."""
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
def test_isolated_policy_with_bridge_netfilter(firewall):
    """If bridged frames pass through iptables, ADD prints nothing and CHECK succeeds."""
    for name in ("iptables", "ip6tables"):
        firewall.host.set_sysctl(f"net/bridge/bridge-nf-call-{name}", "1")
    net = firewall.having(ingressPolicy="isolated")
    assert not net.run("ADD").stderr
    net.check()
