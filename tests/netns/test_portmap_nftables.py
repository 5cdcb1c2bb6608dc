"""Host ports of nftables: the rules after each verb."""

import pytest

from tests.support.bare_plugin import DUAL, IPV4, run_in_parallel
from tests.support.golden import ruleset
from tests.support.hostports import OTHER, chain, dnat_targets

pytestmark = pytest.mark.needs("nft_nat")

RULES_PER_PORT = 2  # in chain hostports: the mark rule for hairpin, and the DNAT rule


@pytest.fixture
def network(host_ports):
    """A network with one host port of the pod 10.22.0.2."""
    return host_ports.having("8080:80", addresses=[IPV4], cniVersion="1.1.0", backend="nftables")


def test_rules_as_nft_lists_them(network):
    """`nft list` shows host address, port, target and container ID of each rule, for both IP versions."""
    ports = "8080:80", "192.0.2.1|8443:443", "2001:db8::1|9000:90"
    network = network.having(*ports, addresses=DUAL)
    network.add()
    mark = "meta mark set meta mark | 0x00002000"
    assert chain(network.host, "hostports") == [
        f'ip saddr 10.22.0.0/16 tcp dport 8080 {mark} dnat to 10.22.0.2:80 comment "cid"',
        'tcp dport 8080 dnat to 10.22.0.2:80 comment "cid"',
        f'ip saddr 10.22.0.0/16 ip daddr 192.0.2.1 tcp dport 8443 {mark} dnat to 10.22.0.2:443 comment "cid"',
        'ip daddr 192.0.2.1 tcp dport 8443 dnat to 10.22.0.2:443 comment "cid"',
    ]
    assert chain(network.host, "masquerading") == [
        'ip saddr 10.22.0.0/16 ip daddr 10.22.0.2 meta mark & 0x00002000 == 0x00002000 masquerade comment "cid"',
        'ip saddr 127.0.0.1 ip daddr 10.22.0.2 masquerade comment "cid"',
    ]
    assert dnat_targets(network.host, 8080, "ip6") == ["[fd00:22::2]:80"]
    assert dnat_targets(network.host, 9000, "ip6") == ["[fd00:22::2]:90"]
    network.check()
    network.delete()
    assert chain(network.host, "hostports") == chain(network.host, "hostports", "ip6") == []


@pytest.mark.parametrize(
    ("keys", "masquerading"),
    [
        (
            {"markMasqBit": 5},
            "ip saddr 10.22.0.0/16 ip daddr 10.22.0.2 meta mark & 0x00000020 == 0x00000020 masquerade",
        ),
        ({"masqAll": True}, "ip saddr 0.0.0.0/0 ip daddr 10.22.0.2 masquerade"),
        ({"snat": False}, None),
    ],
)
def test_masquerading_options(network, keys, masquerading):
    """The packet mark has the bit markMasqBit; masqAll creates one rule without a mark, snat off not even a chain."""
    network = network.having(**keys)
    network.add()
    rules = chain(network.host, "masquerading")
    assert (rules[0].partition(" comment ")[0] if rules else None) == masquerading
    assert ("chain masquerading" in "".join(ruleset(network.host))) == bool(rules)
    assert any("mark set" in rule for rule in chain(network.host, "hostports")) == ("markMasqBit" in keys)
    network.check()


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


def test_repeated_add(network):
    """A repeated ADD changes nothing; with another address or other ports it replaces the rules."""
    network.add()
    before = network.host.run("nft", "-a", "list", "ruleset")
    network.add()
    assert network.host.run("nft", "-a", "list", "ruleset") == before
    network.having("8080:80", "9090:80", addresses=(OTHER,)).add()
    assert dnat_targets(network.host) == dnat_targets(network.host, 9090) == ["10.22.0.3:80"]
    assert len(chain(network.host, "masquerading")) == 2
    network.having(addresses=("fd00:22::2/64",)).add()
    assert dnat_targets(network.host) == []
    assert dnat_targets(network.host, family="ip6") == ["[fd00:22::2]:80"]
    network.having(addresses=(OTHER,), snat=False).add()
    assert chain(network.host, "masquerading") == chain(network.host, "masquerading", "ip6") == []


def test_del_without_mappings_and_prev_result(network):
    """DEL without mappings and prevResult removes the attachment's rules and keeps others."""
    elsewhere = network.having(addresses=("10.33.0.2/16",), name="elsewhere")
    for net in (network, elsewhere):
        net.add()
    network.having(addresses=(OTHER,)).add("other")
    network.without_result().delete()
    assert dnat_targets(network.host) == ["10.33.0.2:80", "10.22.0.3:80"]
    network.delete()
    network.delete("never-seen")
    elsewhere.check()


def test_gc_keeps_what_is_valid(network):
    """GC removes only rules of this network's other attachments, and reports rules of the reference plugin."""
    elsewhere = network.having(addresses=("10.33.0.2/16",), name="elsewhere")
    for container_id in ("listed", "unlisted"):
        network.add(container_id)
    elsewhere.add("unlisted")
    rule = "add rule ip cni_hostport hostports tcp dport 7000 dnat to 10.22.0.7:80 comment"
    for container_id in ("listed", "theirs"):
        network.host.run("nft", rule, f'"{container_id}"')
    stderr = network.gc("listed")
    assert dnat_targets(network.host) == ["10.22.0.2:80", "10.33.0.2:80"]
    assert dnat_targets(network.host, 7000) == ["10.22.0.7:80"] * 2
    assert "GC leaves 1 rule(s) in tables cni_hostport alone" in stderr
    network.gc("listed", ifname="eth1")
    assert dnat_targets(network.host) == ["10.33.0.2:80"]


def test_names_of_any_length(network):
    """Names that do not fit into a comment are cut; containers that differ only in the cut part are distinguished."""
    network = network.having(name="n" * 200)
    ids = ["c" * 255 + last for last in "ab"]
    network.add(ids[0])
    network.having(addresses=(OTHER,)).add(ids[1])
    assert len({rule.partition(" comment ")[2] for rule in chain(network.host, "hostports")}) == 1
    network.check(ids[0])
    network.delete(ids[0])
    assert dnat_targets(network.host) == ["10.22.0.3:80"]
    network.gc(ids[1])
    assert dnat_targets(network.host) == ["10.22.0.3:80"]
    network.gc()
    assert dnat_targets(network.host) == []


def test_many_ports(network):
    """ADD, CHECK and DEL handle a hundred ports."""
    network = network.having(*(f"{port}:80" for port in range(8000, 8100)), addresses=DUAL)
    network.add()
    network.check()
    assert len(chain(network.host, "hostports")) == len(chain(network.host, "hostports", "ip6")) == 100 * RULES_PER_PORT
    network.delete()
    assert chain(network.host, "hostports") == chain(network.host, "hostports", "ip6") == []


def test_parallel_verbs(network):
    """Sixteen parallel ADDs on a new host, and then sixteen parallel DELs, lose and duplicate no rule."""
    pods = [network.having(f"{8000 + last}:80", addresses=(f"10.22.0.{last}/16",)) for last in range(2, 18)]
    for verb in ("ADD", "DEL"):
        outcomes = run_in_parallel(*((verb, f"c{number}", pod) for number, pod in enumerate(pods)))
        assert [outcome.status for outcome in outcomes] == [0] * len(pods), outcomes
        for number, pod in enumerate(pods if verb == "ADD" else ()):
            pod.check(f"c{number}")
        assert len(chain(network.host, "hostports")) == (len(pods) * RULES_PER_PORT if verb == "ADD" else 0)
        assert len(chain(network.host, "hostports_all")) == 2
        assert len(chain(network.host, "prerouting")) == len(chain(network.host, "output")) == 1


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
