"""One host port of several networks whose conditions tell their packets apart, with either backend."""

import pytest

from tests.support.hostports import IPV4, OTHER

BACKENDS = pytest.mark.parametrize(
    "words",
    [("-i",), pytest.param(("iifname",), marks=pytest.mark.needs("nft_nat"))],
    ids=["iptables", "nftables"],
)


@pytest.fixture
def network(host_ports):
    """A network without conditions, where a port that is taken is refused."""
    return host_ports.having("8080:80", addresses=[IPV4], onConflict="fail")


@pytest.fixture
def behind(network):
    """A function that returns the network of one interface of the host."""
    return lambda words, name: network.having(name=name, conditionsV4=[*words, name])


@BACKENDS
def test_conditions_that_differ_are_no_conflict(network, behind, words):
    """Networks with different conditions share a port: none is refused, and CHECK of each succeeds."""
    networks = [behind(words, f"eth{number}") for number in range(3)]
    for each in networks:
        each.add(each.config["name"])
    for each in networks:
        each.check(each.config["name"])
        each.add(each.config["name"])
    backend = "iptables" if words == ("-i",) else "nftables"
    plain = network.having(backend=backend)
    plain.add("plain")
    plain.check("plain")


@BACKENDS
def test_equal_conditions_are_a_conflict(behind, words):
    """A second container of a network with conditions is refused, or stands behind, and CHECK tells that."""
    own = behind(words, "eth0")
    own.add("first")
    error = own.run("ADD", "second").error()
    assert (error["code"], error["msg"]) == (11, "host port 8080/tcp is in use by container first of network eth0")
    second = own.having(addresses=[OTHER], onConflict=None)
    second.add("second")
    assert "container first of network eth0, whose rule comes first" in second.run("CHECK", "second").error()["msg"]
    own.check("first")
    own.delete("first")
    second.check("second")


@BACKENDS
def test_who_has_no_conditions_takes_all(network, behind, words):
    """A container without conditions is in the way of one with conditions."""
    network.having(backend="iptables" if words == ("-i",) else "nftables").add("first")
    own = behind(words, "eth0")
    assert "is in use by container first of network net" in own.run("ADD", "second").error()["msg"]
    second = own.having(onConflict=None)
    second.add("second")
    assert "container first of network net, whose rule comes first" in second.run("CHECK", "second").error()["msg"]


@pytest.mark.needs("nft_nat")
@pytest.mark.parametrize(
    ("ours", "theirs", "meet"),
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
def test_what_conditions_of_nftables_are_compared(network, ours, theirs, meet):
    """The rule itself tells its conditions: equal ones of another network are a conflict, as is an address of both."""
    network.having(name="theirs", conditionsV4=[theirs]).add("theirs")
    own = network.having(name="ours", conditionsV4=[ours])
    if meet:
        assert "is in use by container theirs" in own.run("ADD", "ours").error()["msg"]
    else:
        own.add("ours")
