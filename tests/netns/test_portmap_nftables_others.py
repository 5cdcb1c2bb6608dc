"""Host ports of nftables beside others: order of rules, other networks, rules of the reference plugin."""

import pytest

from tests.support.bare_plugin import IPV4
from tests.support.golden import ruleset
from tests.support.hostports import OTHER, chain, dnat_targets

pytestmark = pytest.mark.needs("nft_nat")


@pytest.fixture
def network(host_ports, tmp_path):
    """A network with one host port of the pod 10.22.0.2, and a cache of the test."""
    network = host_ports.having("8080:80", addresses=[IPV4], cniVersion="1.1.0", backend="nftables")
    return network.with_cache(tmp_path / "cache")


def test_repeated_add_keeps_its_position(network):
    """The first container of a port stays first when its ADD is repeated with another address."""
    network.write_cache(one=True, two=True)
    network.add("one")
    network.having(addresses=(OTHER,)).add("two")
    network.having(addresses=("10.22.0.9/16",), onConflict="fail").add("one")
    assert dnat_targets(network.host) == ["10.22.0.9:80", "10.22.0.3:80"]
    network.having("8080:80", "9090:80", addresses=(OTHER,)).add("two")
    assert dnat_targets(network.host) == ["10.22.0.9:80", "10.22.0.3:80"]


def test_running_container_keeps_its_port(network):
    """A running container keeps its port; CHECK of a second container, whose rule comes after it, names the first."""
    network.write_cache(one=True, two=True)
    network.add("one")
    second = network.having(addresses=(OTHER,))
    second.add("two")
    assert dnat_targets(network.host) == ["10.22.0.2:80", "10.22.0.3:80"]
    network.check("one")
    error = second.run("CHECK", "two").error()
    assert error["msg"] == "host port 8080/tcp is forwarded to container one of network net, whose rule comes first"
    network.delete("one")
    second.check("two")


def test_stopped_container_loses_its_port(network):
    """The rules of a new container come before those of one that is no longer running, which stay."""
    network.write_cache(running=True, stopped=False, new=True)
    network.having("9090:80", addresses=(OTHER,)).add("running")
    network.having("8080:80", "9090:80").add("stopped")
    network.having("8080:80", addresses=("10.22.0.9/16",)).add("new")
    assert dnat_targets(network.host) == ["10.22.0.9:80", "10.22.0.2:80"]
    assert dnat_targets(network.host, 9090) == ["10.22.0.3:80", "10.22.0.2:80"]
    network.having(addresses=("10.22.0.9/16",)).check("new")


def test_repeated_add_moves_before_a_stopped_container(network):
    """A repeated ADD moves the rules before those of a first container that is no longer running."""
    network.write_cache(one=True, two=True)
    network.add("one")
    second = network.having(addresses=(OTHER,))
    second.add("two")
    network.write_cache(one=False)
    second.add("two")
    assert dnat_targets(network.host) == ["10.22.0.3:80", "10.22.0.2:80"]


def test_on_conflict_fail_refuses_a_port_in_use(network):
    """With onConflict "fail" ADD refuses a running container's port at the same host address, and changes nothing."""
    network.write_cache(one=True, two=True)
    network.having("192.0.2.1|8080:80").add("one")
    before = ruleset(network.host)
    second = network.having(addresses=(OTHER,), onConflict="fail")
    error = second.run("ADD", "two").error()
    assert (error["code"], error["msg"]) == (11, "host port 8080/tcp is in use by container one of network net")
    assert ruleset(network.host) == before
    second.having("192.0.2.2|8080:80").add("two")
    second.having("8080:80/udp").add("three")


def test_one_container_on_two_networks(network):
    """DEL of one attachment keeps the container's ports of its other attachments, and their CHECK succeeds."""
    elsewhere = network.having(addresses=("10.33.0.2/16",), name="elsewhere")
    second = network.having(addresses=(OTHER,), ifname="eth1")
    network.add()
    elsewhere.having(onConflict="fail").add()
    second.add(ifname="eth1")
    assert dnat_targets(network.host) == ["10.22.0.2:80", "10.33.0.2:80", "10.22.0.3:80"]
    network.delete()
    assert dnat_targets(network.host) == ["10.33.0.2:80", "10.22.0.3:80"]
    elsewhere.check()
    second.check(ifname="eth1")


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
