"""One host port of several networks with different conditions, with each backend."""

import pytest

from tests.support.bare_plugin import IPV4
from tests.support.hostports import OTHER

BACKENDS = pytest.mark.parametrize(
    "words",
    [("-i",), pytest.param(("iifname",), marks=pytest.mark.needs("nft_nat"))],
    ids=["iptables", "nftables"],
)


@pytest.fixture
def network(host_ports):
    """A network without conditions that refuses a port in use."""
    return host_ports.having("8080:80", addresses=[IPV4], onConflict="fail")


@pytest.fixture
def with_interface(network):
    """A function that returns a network with a condition on an interface of the host."""
    return lambda words, name: network.having(name=name, conditionsV4=[*words, name])


@BACKENDS
def test_conditions_that_differ_are_no_conflict(network, with_interface, words):
    """Networks with different conditions can publish one port: ADD refuses none, and CHECK of each succeeds."""
    networks = [with_interface(words, f"eth{number}") for number in range(3)]
    for net in networks:
        net.add(net.config["name"])
    for net in networks:
        net.check(net.config["name"])
        net.add(net.config["name"])
    backend = "iptables" if words == ("-i",) else "nftables"
    plain = network.having(backend=backend)
    plain.add("plain")
    plain.check("plain")


@BACKENDS
def test_equal_conditions_are_a_conflict(with_interface, words):
    """A second container of a network with conditions is refused; without "onConflict" its CHECK names the first."""
    conditional = with_interface(words, "eth0")
    conditional.add("first")
    error = conditional.run("ADD", "second").error()
    assert (error["code"], error["msg"]) == (11, "host port 8080/tcp is in use by container first of network eth0")
    second = conditional.having(addresses=[OTHER], onConflict=None)
    second.add("second")
    assert "container first of network eth0, whose rule comes first" in second.run("CHECK", "second").error()["msg"]
    conditional.check("first")
    conditional.delete("first")
    second.check("second")


@BACKENDS
def test_rule_without_conditions_is_a_conflict(network, with_interface, words):
    """A container without conditions conflicts with one that has conditions."""
    network.having(backend="iptables" if words == ("-i",) else "nftables").add("first")
    conditional = with_interface(words, "eth0")
    assert "is in use by container first of network net" in conditional.run("ADD", "second").error()["msg"]
    second = conditional.having(onConflict=None)
    second.add("second")
    assert "container first of network net, whose rule comes first" in second.run("CHECK", "second").error()["msg"]


@pytest.mark.needs("nft_nat")
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
    network.having(name="theirs", conditionsV4=[other_words]).add("theirs")
    conditional = network.having(name="ours", conditionsV4=[words])
    if conflict:
        assert "is in use by container theirs" in conditional.run("ADD", "ours").error()["msg"]
    else:
        conditional.add("ours")
