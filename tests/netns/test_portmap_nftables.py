"""Host ports of nftables: the rules after each verb, also beside other networks' and the reference plugin's."""

import pytest

from tests.support.bare_plugin import DUAL, IPV4
from tests.support.golden import ruleset
from tests.support.hostports import OTHER, chain, dnat_targets

pytestmark = pytest.mark.needs("nft_nat")


@pytest.fixture
def network(host_ports):
    """A network with one host port of the pod 10.22.0.2."""
    return host_ports.having("8080:80", addresses=[IPV4], cniVersion="1.1.0", backend="nftables")


def test_rules_as_nft_lists_them(network):
    """`nft list` shows host address, port, target and container ID of each rule, for both IP versions."""
    ports = "8080:80", "192.0.2.1|8443:443", "2001:db8::1|9000:90"
    network = network.having(*ports, addresses=DUAL, markMasqBit=5)
    network.add()
    mark = "meta mark set meta mark | 0x00000020"
    assert chain(network.host, "hostports") == [
        f'ip saddr 10.22.0.0/16 tcp dport 8080 {mark} dnat to 10.22.0.2:80 comment "cid"',
        'tcp dport 8080 dnat to 10.22.0.2:80 comment "cid"',
        f'ip saddr 10.22.0.0/16 ip daddr 192.0.2.1 tcp dport 8443 {mark} dnat to 10.22.0.2:443 comment "cid"',
        'ip daddr 192.0.2.1 tcp dport 8443 dnat to 10.22.0.2:443 comment "cid"',
    ]
    assert chain(network.host, "masquerading") == [
        'ip saddr 10.22.0.0/16 ip daddr 10.22.0.2 meta mark & 0x00000020 == 0x00000020 masquerade comment "cid"',
        'ip saddr 127.0.0.1 ip daddr 10.22.0.2 masquerade comment "cid"',
    ]
    assert dnat_targets(network.host, 8080, "ip6") == ["[fd00:22::2]:80"]
    assert dnat_targets(network.host, 9000, "ip6") == ["[fd00:22::2]:90"]
    network.check()
    network.delete()
    assert chain(network.host, "hostports") == chain(network.host, "hostports", "ip6") == []


def test_verbs_without_nft_and_iptables(network):
    """All verbs work if neither nft nor iptables is installed."""
    without_programs = {"env": {"PATH": "/nowhere"}}
    network.add(**without_programs)
    network.check(**without_programs)
    network.gc(**without_programs)
    assert dnat_targets(network.host) == []
    network.add(**without_programs)
    network.without_result().delete(**without_programs)
    assert dnat_targets(network.host) == []
    network.run("STATUS", **without_programs).assert_silent()


def test_repeated_add_for_the_other_ip_version(network):
    """A repeated ADD with an IPv6 address deletes the IPv4 rules; one without "snat" those that masquerade."""
    network.add()
    network.having(addresses=("fd00:22::2/64",)).add()
    assert dnat_targets(network.host) == []
    assert dnat_targets(network.host, family="ip6") == ["[fd00:22::2]:80"]
    network.having(addresses=(OTHER,), snat=False).add()
    assert chain(network.host, "masquerading") == chain(network.host, "masquerading", "ip6") == []


def test_gc_reports_rules_of_the_reference_plugin(network):
    """GC keeps rules of containers that may be of another network, and reports those of unknown containers."""
    network.add("listed")
    rule = "add rule ip cni_hostport hostports tcp dport 7000 dnat to 10.22.0.7:80 comment"
    for container_id in ("listed", "theirs"):
        network.host.run("nft", rule, f'"{container_id}"')
    assert "GC leaves 1 rule(s) in tables cni_hostport alone" in network.gc("listed")
    assert dnat_targets(network.host, 7000) == ["10.22.0.7:80"] * 2


DAMAGES = {
    "port": ("delete rule ip cni_hostport hostports handle {}", "tcp dport 8080"),
    "masquerading": ("flush chain ip cni_hostport masquerading", "masquerade"),
    "jump from prerouting": ("flush chain ip cni_hostport prerouting", "chain cni_hostport prerouting does not send"),
    "conditions in output": (
        "flush chain ip cni_hostport output; add rule ip cni_hostport output ip daddr 192.0.2.1 jump hostports_all",
        "chain cni_hostport output does not send",
    ),
    "jump to hostports": ("flush chain ip cni_hostport hostports_all", "does not jump to hostports"),
    "table": ("delete table ip cni_hostport", "chain cni_hostport hostports is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_names_the_missing_part(network, damage):
    """CHECK fails with code 999 and names the missing part; ADD creates it again."""
    command, text = DAMAGES[damage]
    network.add()
    handles = network.host.run("nft", "-a", "list", "chain", "ip", "cni_hostport", "hostports").splitlines()
    handle = next(line.rpartition(" ")[2] for line in handles if "tcp dport" in line)
    network.host.run("nft", command.format(handle))
    error = network.run("CHECK").error()
    assert error["code"] == 999
    assert error["msg"].startswith("missing hostport rules in")
    assert text in error["details"]
    network.add()
    network.check()


def test_chain_with_another_hook(network):
    """If another program has created a chain with another hook, ADD and STATUS fail, and ADD changes nothing."""
    network.host.run("nft", "add table ip cni_hostport; add chain ip cni_hostport prerouting")
    before = ruleset(network.host)
    error = network.run("ADD").error()
    assert error["msg"].startswith("unable to set up nftables rules for port mappings: failed to add chain")
    assert (
        "another program has created a chain with another hook; see: nft list table ip cni_hostport" in error["details"]
    )
    assert ruleset(network.host) == before
    status = network.run("STATUS").error()
    assert status["code"] == 50
    assert "nft list table ip cni_hostport" in status["msg"]


def test_unsupported_conditions_are_refused(network):
    """ADD refuses unsupported conditions with key, match and the list of supported ones, and changes nothing."""
    error = network.having(conditionsV4=["ip", "saddr", "10.0.0.0/8", "meta", "skuid", "0"]).run("ADD").error()
    assert error["code"] == 7
    assert '"conditionsV4" contains an unsupported match: "meta skuid"' in error["msg"]
    assert '"ip saddr"' in error["details"]
    assert ruleset(network.host) == []


def test_del_of_rules_of_the_reference_plugin_on_two_networks(network):
    """Of a container's rules of the reference plugin, DEL removes those with the attachment's address."""
    network.add("other")
    for address in ("10.22.0.2", "10.33.0.2"):
        rule = f"tcp dport 8080 dnat to {address}:80 comment cid"
        network.host.run("nft", f"add rule ip cni_hostport hostports {rule}")
    network.delete()
    assert dnat_targets(network.host) == ["10.22.0.2:80", "10.33.0.2:80"]
    network.having(prevResult=None).delete()
    assert dnat_targets(network.host) == ["10.22.0.2:80"]


def test_conditions_belong_to_their_network(network):
    """The rules of each network have its own conditions, and the base chains have none."""
    one = network.having(conditionsV4=["ip", "daddr", "!=", "192.0.2.9"])
    two = network.having("9090:80", addresses=("10.33.0.2/16",), name="two", conditionsV4=["iifname { a, b }"])
    one.add("one")
    two.add("two")
    rules = [rule.partition(" dnat")[0] for rule in chain(network.host, "hostports") if "mark" not in rule]
    assert rules == [
        "ip daddr != 192.0.2.9 tcp dport 8080",
        'iifname "a" tcp dport 9090',
        'iifname "b" tcp dport 9090',
    ]
    assert chain(network.host, "prerouting") == ["fib daddr type local jump hostports_all"]
    one.check("one")
    two.check("two")
    network.having("9090:80", addresses=("10.33.0.2/16",), name="two").run("CHECK", "two").error()


def test_conditions_of_the_reference_plugin_are_kept(network):
    """ADD moves conditions that the reference plugin wrote to the base chains into the rules of that plugin."""
    network.add("ours")
    rule = "add rule ip cni_hostport {}"
    for text in (
        "hostports tcp dport 9090 dnat to 10.22.0.7:80 comment theirs",
        "hostports tcp dport 8080 dnat to 10.22.0.7:80 comment theirs",
    ):
        network.host.run("nft", rule.format(text))
    for name in ("prerouting", "output"):
        condition = "ip daddr != 192.0.2.9 fib daddr type local jump hostports_all"
        network.host.run("nft", f"flush chain ip cni_hostport {name}; {rule.format(name)} {condition}")
    network.run("CHECK", "ours").error()
    network.having("9090:80", addresses=(OTHER,)).add("new")
    assert chain(network.host, "prerouting") == ["fib daddr type local jump hostports_all"]
    rules = [rule for rule in chain(network.host, "hostports") if "mark" not in rule]
    assert rules == [
        'tcp dport 8080 dnat to 10.22.0.2:80 comment "ours"',
        'ip daddr != 192.0.2.9 tcp dport 9090 dnat to 10.22.0.7:80 comment "theirs"',
        'ip daddr != 192.0.2.9 tcp dport 8080 dnat to 10.22.0.7:80 comment "theirs"',
        'tcp dport 9090 dnat to 10.22.0.3:80 comment "new"',
    ]
    network.check("ours")


OLD_RULES = """
table ip cni_hostport {
    chain hostports { }
    chain hostip_hostports { ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.22.0.7:80 comment "theirs"; }
    chain prerouting { type nat hook prerouting priority -100
        ip daddr != 192.0.2.9 jump hostip_hostports
        ip daddr != 192.0.2.9 jump hostports
    }
    chain output { type nat hook output priority -100
        ip daddr != 192.0.2.9 jump hostip_hostports
        ip daddr != 192.0.2.9 fib daddr type local jump hostports
    }
}
"""


def test_rules_of_old_reference_plugins_stay(network, tmp_path):
    """Rules of the reference plugin 1.6 to 1.8 keep their conditions, and a stopped container's lose the port."""
    network = network.with_cache(tmp_path / "cache")
    (tmp_path / "rules").write_text(OLD_RULES)
    network.host.run("nft", "-f", str(tmp_path / "rules"))
    network.having("9090:80").add("ours")
    network.having("9090:80").check("ours")
    (rule,) = chain(network.host, "hostip_hostports")
    assert rule == 'ip daddr != 192.0.2.9 ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.22.0.7:80 comment "theirs"'
    assert chain(network.host, "prerouting") == ["fib daddr type local jump hostports_all"]
    network.add("second")
    assert len(chain(network.host, "hostip_hostports")) == 1
    network.write_cache(theirs=False)
    network.add("second")
    assert '"second"' in chain(network.host, "hostip_hostports")[0]
    network.check("second")
    network.without_result().delete("theirs")
    network.delete("second")
    assert chain(network.host, "hostip_hostports") == []


@pytest.mark.parametrize("keys", [{}, {"snat": False}, {"masqAll": True}, {"conditionsV4": ["iifname", "{ a, b }"]}])
def test_rules_that_nft_has_listed_and_loaded(network, tmp_path, keys):
    """CHECK accepts rules whose owner is lost since `nft` has listed and loaded them, and reports each missing one."""
    network = network.having(**keys)
    network.add()
    file = tmp_path / "rules"
    file.write_text("flush ruleset\n" + network.host.run("nft", "list", "ruleset"))
    network.host.run("nft", "-f", str(file))
    network.check()
    for name in ("hostports", "masquerading"):
        for rule in chain(network.host, name):
            lines = [line for line in file.read_text().splitlines(keepends=True) if line.strip() != rule]
            (tmp_path / "less").write_text("".join(lines))
            network.host.run("nft", "-f", str(tmp_path / "less"))
            assert "is missing" in network.run("CHECK").error()["details"]
    network.host.run("nft", "-f", str(file))
    network.add()
    network.check()
    network.delete()
    assert chain(network.host, "hostports") == chain(network.host, "masquerading") == []


@pytest.mark.parametrize(
    ("words", "other_words", "conflict"),
    [
        ("ip daddr 192.0.2.1", "ip daddr 192.0.2.9", False),
        ("ip daddr 192.0.2.1", "ip daddr 192.0.2.1", True),
        ("ip daddr 192.0.2.1", "ip daddr != 192.0.2.1", False),
        ("tcp sport { 5, 6 }", "tcp sport 6", True),
        ("tcp sport { 5, 6 }", "tcp sport 7", False),
        ("iifname eth0 ip daddr 192.0.2.1", "iifname eth0", True),
        ("iifname eth0", "iifname eth0 ct state new", False),
    ],
)
def test_comparison_of_nftables_conditions(network, words, other_words, conflict):
    """Rules of two networks conflict if their conditions are equal, or differ only in a host address that one omits."""
    network.having(name="theirs", onConflict="fail", conditionsV4=[other_words]).add("theirs")
    conditional = network.having(name="ours", onConflict="fail", conditionsV4=[words])
    if conflict:
        assert "is in use by container theirs" in conditional.run("ADD", "ours").error()["msg"]
    else:
        conditional.add("ours")
