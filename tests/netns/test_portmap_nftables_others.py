"""Host ports by nftables beside those of others: who comes first, other networks, what the reference made."""

from dataclasses import replace

import pytest

from tests.support import mapped
from tests.support.mapped import OTHER, Cache, chain, leads_to, prev_result, ruleset, tcp

pytestmark = pytest.mark.needs("nft_nat")


@pytest.fixture
def network(bin_dir, host):
    """A network with one port of the pod 10.22.0.2."""
    return mapped.network(host, "nftables")


@pytest.fixture
def cached(network, tmp_path):
    """The network, and a function that says which of its containers live, by what libcni's cache has of them."""
    cache = Cache(tmp_path)

    def say(**lives):
        for container_id, alive in lives.items():
            cache.put("net", container_id, network.host.path if alive else "/run/netns/gone")

    return replace(network, bin_dir=cache.bin), say


def test_a_repeated_add_keeps_its_place(cached):
    """A container that was first for a port stays first when its ADD is repeated with another address."""
    network, say = cached
    say(one=True, two=True)
    network.add("one")
    network.having(addresses=(OTHER,)).add("two")
    network.having(addresses=("10.22.0.9/16",), onConflict="fail").add("one")
    assert leads_to(network.host) == ["10.22.0.9:80", "10.22.0.3:80"]
    network.having(tcp(8080), tcp(9090), addresses=(OTHER,)).add("two")
    assert leads_to(network.host) == ["10.22.0.9:80", "10.22.0.3:80"]


def test_who_lives_keeps_a_port(cached):
    """A port goes on leading to the living container that had it; the second comes behind it, and CHECK tells that."""
    network, say = cached
    say(one=True, two=True)
    network.add("one")
    second = network.having(addresses=(OTHER,))
    second.add("two")
    assert leads_to(network.host) == ["10.22.0.2:80", "10.22.0.3:80"]
    network.check("one")
    error = second.run("CHECK", "two").error()
    assert error["msg"] == "host port 8080/tcp leads to container one of network net, whose rule stands first"
    network.delete("one")
    second.check("two")


def test_who_is_gone_loses_a_port(cached):
    """The rules of a new container come before those of one that is gone, which stay."""
    network, say = cached
    say(living=True, gone=False, new=True)
    network.having(tcp(9090), addresses=(OTHER,)).add("living")
    network.having(tcp(8080), tcp(9090)).add("gone")
    network.having(tcp(8080), addresses=("10.22.0.9/16",)).add("new")
    assert leads_to(network.host) == ["10.22.0.9:80", "10.22.0.2:80"]
    assert leads_to(network.host, 9090) == ["10.22.0.3:80", "10.22.0.2:80"]
    network.having(addresses=("10.22.0.9/16",)).check("new")


def test_a_repeated_add_passes_who_is_gone_by_then(cached):
    """A repeated ADD comes before the rules of a container that was first and is gone."""
    network, say = cached
    say(one=True, two=True)
    network.add("one")
    second = network.having(addresses=(OTHER,))
    second.add("two")
    say(one=False)
    second.add("two")
    assert leads_to(network.host) == ["10.22.0.3:80", "10.22.0.2:80"]


def test_a_taken_port_is_refused_if_asked_for(cached):
    """With onConflict "fail" ADD refuses a port of a living container, and leaves nothing; other addresses are free."""
    network, say = cached
    say(one=True, two=True)
    network.having(tcp(8080, hostIP="192.0.2.1")).add("one")
    before = ruleset(network.host)
    second = network.having(addresses=(OTHER,), onConflict="fail")
    error = second.run("ADD", "two").error()
    assert (error["code"], error["msg"]) == (11, "host port 8080/tcp is taken by container one of network net")
    assert ruleset(network.host) == before
    second.having(tcp(8080, hostIP="192.0.2.2")).add("two")
    second.having({**tcp(8080), "protocol": "udp"}).add("three")


def test_one_container_on_two_networks(network):
    """DEL on one network, and of one interface, keeps the container's ports of the others; CHECK passes everywhere."""
    elsewhere = network.having(addresses=("10.33.0.2/16",), name="elsewhere")
    second = network.having(prevResult=prev_result(OTHER, ifname="eth1"))
    network.add()
    elsewhere.having(onConflict="fail").add()
    second.add(ifname="eth1")
    assert leads_to(network.host) == ["10.22.0.2:80", "10.33.0.2:80", "10.22.0.3:80"]
    network.delete()
    assert leads_to(network.host) == ["10.33.0.2:80", "10.22.0.3:80"]
    elsewhere.check()
    second.check(ifname="eth1")


def test_the_references_container_on_two_networks(network):
    """Of the rules that the reference made for a container DEL takes those with the attachment's address."""
    network.add("other")
    for address in ("10.22.0.2", "10.33.0.2"):
        rule = f"tcp dport 8080 dnat to {address}:80 comment cid"
        network.host.run("nft", f"add rule ip cni_hostport hostports {rule}")
    network.delete()
    assert leads_to(network.host) == ["10.22.0.2:80", "10.33.0.2:80"]
    network.having(prevResult=None).delete()
    assert leads_to(network.host) == ["10.22.0.2:80"]


def test_conditions_belong_to_their_network(network):
    """Two networks with different conditions each have their own, and the base chains have none."""
    one = network.having(conditionsV4=["ip", "daddr", "!=", "192.0.2.9"])
    two = network.having(tcp(9090), addresses=("10.33.0.2/16",), name="two", conditionsV4=["iifname { a, b }"])
    one.add("one")
    two.add("two")
    own = [rule.partition(" dnat")[0] for rule in chain(network.host, "hostports") if "mark" not in rule]
    assert own == [
        "ip daddr != 192.0.2.9 tcp dport 8080",
        'iifname "a" tcp dport 9090',
        'iifname "b" tcp dport 9090',
    ]
    assert chain(network.host, "prerouting") == ["fib daddr type local jump hostports_all"]
    one.check("one")
    two.check("two")
    network.having(tcp(9090), addresses=("10.33.0.2/16",), name="two").run("CHECK", "two").error()


def test_the_references_conditions_are_not_lost(network):
    """Conditions that the reference put into the base chains for its rules are moved into these by another's ADD."""
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
    network.having(tcp(9090), addresses=(OTHER,)).add("new")
    assert chain(network.host, "prerouting") == ["fib daddr type local jump hostports_all"]
    own = [rule for rule in chain(network.host, "hostports") if "mark" not in rule]
    assert own == [
        'tcp dport 8080 dnat to 10.22.0.2:80 comment "ours"',
        'ip daddr != 192.0.2.9 tcp dport 9090 dnat to 10.22.0.7:80 comment "theirs"',
        'ip daddr != 192.0.2.9 tcp dport 8080 dnat to 10.22.0.7:80 comment "theirs"',
        'tcp dport 9090 dnat to 10.22.0.3:80 comment "new"',
    ]
    network.check("ours")


OLD = """
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


def test_what_older_versions_made_goes_on(cached, tmp_path):
    """Rules that the reference 1.6 to 1.8 made keep leading on, and their conditions; who is gone there is passed."""
    network, say = cached
    (tmp_path / "rules").write_text(OLD)
    network.host.run("nft", "-f", str(tmp_path / "rules"))
    network.having(tcp(9090)).add("ours")
    network.having(tcp(9090)).check("ours")
    (rule,) = chain(network.host, "hostip_hostports")
    assert rule == 'ip daddr != 192.0.2.9 ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.22.0.7:80 comment "theirs"'
    assert chain(network.host, "prerouting") == ["fib daddr type local jump hostports_all"]
    network.add("second")
    assert "container theirs, whose rule stands first" in network.run("CHECK", "second").error()["msg"]
    say(theirs=False)
    network.add("second")
    network.check("second")
    network.having(prevResult=None, runtimeConfig=None).delete("theirs")
    network.delete("second")
    assert chain(network.host, "hostip_hostports") == []
