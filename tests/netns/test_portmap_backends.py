"""Host ports with each backend: nftables, iptables-nft and iptables-legacy have the same behaviour."""

import pytest

from tests.support.bare_plugin import DUAL, run_in_parallel
from tests.support.golden import ruleset
from tests.support.hostports import OTHER, chain

NEW = "10.22.0.9/16"


@pytest.fixture
def net(any_ports):
    return any_ports


@pytest.fixture
def cached(net, tmp_path):
    """The network, with a plugin that uses a cache of the test."""
    return net.with_cache(tmp_path / "cache")


def rules(net):
    """Returns all rules of the backend."""
    return net.rules() if net.tools else ruleset(net.host)


def list_duplicates(net):
    """Returns the IPv4 rules that exist more than once in their chain."""
    if net.tools:
        lines = [line for line in net.rules()["iptables"] if line.startswith("-A ")]
    else:
        names = ("hostports", "hostports_all", "masquerading", "prerouting", "output", "postrouting")
        lines = [f"{name} {rule}" for name in names for rule in chain(net.host, name)]
    assert lines
    return [line for line in lines if lines.count(line) > 1]


def test_repeated_add_replaces_all_rules(net):
    """A repeated ADD changes nothing; with another address or other ports it deletes all rules of the first."""
    net.add("cid", "8080:80", "8081:81", "53:53/udp")
    before = rules(net)
    net.add("cid", "8080:80", "8081:81", "53:53/udp")
    assert rules(net) == before
    net.add("cid", "9090:80", addresses=[NEW])
    net.check("cid", "9090:80", addresses=[NEW])
    assert [net.owners(port) for port in (8080, 8081, 53, 9090)] == [[], [], [], ["cid"]]
    assert not any("10.22.0.2:" in line for line in net.container_rules())


def test_repeated_add_keeps_its_position(net):
    """The first container of a port stays first when its ADD is repeated with another address and other ports."""
    net.add("one", "8080:80")
    net.add("two", "8080:80", addresses=[OTHER])
    net.having(onConflict="fail").add("one", "8080:80", "9000:90", addresses=[NEW])
    net.add("two", "8080:80", "9090:80", addresses=[OTHER])
    assert net.owners() == ["one", "two"]
    net.check("one", "8080:80", "9000:90", addresses=[NEW])


def test_check_names_the_container_that_has_the_port(net):
    """CHECK of the second container fails and names the first, until DEL of the first."""
    net.add("one", "8080:80")
    second = net.having("8080:80", "8081:81", addresses=[OTHER])
    second.add("two")
    net.check("one", "8080:80")
    error = second.run("CHECK", "two").error()
    assert error["msg"] == "host port 8080/tcp is forwarded to container one of network net, whose rule comes first"
    net.delete("one", "8080:80")
    second.check("two")


@pytest.mark.parametrize("mapping", ["8080:80", "0.0.0.0|8080:80", "192.0.2.1|8080:80"])
def test_on_conflict_fail_refuses_a_port_in_use(net, mapping):
    """With onConflict "fail" ADD, also a repeated one, fails with code 11, names the container and changes nothing."""
    net.add("one", "192.0.2.1|8080:80", "8081:81")
    net.add("two", "9000:90", addresses=[OTHER])
    before = rules(net)
    careful = net.having(onConflict="fail")
    for container_id in ("two", "three"):
        error = careful.run("ADD", container_id, mapping, "9001:90", addresses=[OTHER]).error()
        assert error["code"] == 11
        assert "is in use by container one of network net" in error["msg"]
        assert rules(net) == before
    careful.add("one", "192.0.2.1|8080:80", "8081:81")


def test_stopped_container_loses_its_port(cached):
    """ADD inserts rules before those of a container without a namespace, and after those of running containers."""
    pods = {
        "alive": (True, "192.0.2.1|8080:80"),
        "gone": (False, "8080:80"),
        "gone2": (False, "8080:80"),
        "elsewhere": (True, "192.0.2.2|8080:80"),
    }
    for name, (_, mapping) in pods.items():
        cached.add(name, mapping)
    cached.write_cache(**{name: alive for name, (alive, _) in pods.items()})
    cached.add("new", "192.0.2.1|8080:80", "8081:81", addresses=[OTHER])
    assert cached.owners() == ["alive", "new", "gone", "gone2", "elsewhere"]
    cached.write_cache(new=True)
    cached.add("first", "192.0.2.3|8080:80", "53:53/udp", addresses=["10.22.0.4/16"])
    assert cached.owners().index("first") < cached.owners().index("gone")
    cached.check("first", "192.0.2.3|8080:80", "53:53/udp", addresses=["10.22.0.4/16"])
    cached.write_cache(first=True)
    careful = cached.having(onConflict="fail")
    careful.add("fail", "192.0.2.4|8080:80", addresses=["10.22.0.5/16"])
    assert careful.run("ADD", "late", "8080:80", addresses=["10.22.0.5/16"]).error()["code"] == 11
    assert "late" not in cached.owners()


def test_repeated_add_moves_before_a_stopped_container(cached):
    """A repeated ADD moves the rules before those of a container that is no longer running."""
    second = cached.having("8080:80", addresses=[OTHER])
    cached.add("gone", "8080:80")
    second.add("cid")
    assert "is forwarded to container gone" in second.run("CHECK", "cid").error()["msg"]
    cached.write_cache(gone=False)
    second.add("cid")
    assert cached.owners() == ["cid", "gone"]
    second.check("cid")


def test_one_container_on_two_networks(net):
    """DEL of one attachment, also without its result, keeps the ports of the container's other attachments."""
    network, elsewhere = net.having("8080:80"), net.having("8080:80", name="elsewhere", addresses=["10.33.0.2/16"])
    network.add()
    elsewhere.having(onConflict="fail").add()
    network.having(addresses=[OTHER]).add("other")
    network.having(prevResult=None).delete()
    assert net.owners() == ["cid", "other"]
    assert not any("10.22.0.2:" in line for line in net.container_rules())
    elsewhere.check()


def test_gc_removes_rules_without_a_valid_attachment(net):
    """GC removes the rules of containers without a valid attachment, and keeps those of other networks."""
    network, elsewhere = net.having("8080:80"), net.having("8080:80", name="elsewhere", addresses=["10.33.0.2/16"])
    for container_id in ("listed", "unlisted"):
        network.add(container_id)
    elsewhere.add("unlisted")
    assert network.gc("listed") == ""
    assert net.owners() == ["listed", "unlisted"]
    network.check("listed")
    assert any("10.33.0.2:" in line for line in net.container_rules())
    network.gc("listed", ifname="eth1")
    assert net.owners() == (["listed", "unlisted"] if net.tools else ["unlisted"])  # iptables knows only containers


def test_names_of_any_length(net):
    """Names that do not fit into a comment are cut; containers that differ only in the cut part are distinguished."""
    network = net.having("8080:80", name="n" * 200)
    one, two = ("c" * 255 + last for last in "ab")
    network.add(one)
    network.having(addresses=[OTHER]).add(two)
    assert len(set(net.owners())) == 1
    network.add(one)
    assert len(net.owners()) == 2
    network.check(one)
    network.delete(one)
    assert len(net.owners()) == 1
    assert not any("10.22.0.2:" in line for line in net.container_rules())


@pytest.mark.one_kernel
def test_parallel_verbs(net):
    """Sixteen parallel ADDs on a new host, then sixteen DELs in parallel with ADDs, lose and duplicate no rule."""
    first, second = (
        {
            f"{name}{number}": net.having(f"{port + number}:80", addresses=[f"{subnet}.{number + 1}/16"])
            for number in range(16)
        }
        for name, port, subnet in (("a", 8000, "10.22.1"), ("b", 9000, "10.22.2"))
    )
    for outcome in run_in_parallel(*(("ADD", name, pod) for name, pod in first.items())):
        outcome.result()
    assert list_duplicates(net) == []
    for name, pod in first.items():
        pod.check(name)
    deletions = [("DEL", name, pod) for name, pod in first.items()]
    for outcome in run_in_parallel(*deletions, *(("ADD", name, pod) for name, pod in second.items())):
        assert outcome.status == 0, outcome
    assert list_duplicates(net) == []
    assert [net.owners(8000 + number) for number in range(16)] == [[]] * 16
    for name, pod in second.items():
        pod.check(name)


CONDITIONS = {"iptables": "-i", "nftables": "iifname"}


@pytest.fixture
def careful(net):
    """A network without conditions that refuses a port in use."""
    return net.having("8080:80", onConflict="fail")


@pytest.fixture
def with_interface(careful):
    """A function that returns such a network with a condition on an interface of the host."""
    word = CONDITIONS[careful.config["backend"]]
    return lambda name: careful.having(name=name, addresses=DUAL[:1], conditionsV4=[word, name])


def test_conditions_that_differ_are_no_conflict(careful, with_interface):
    """Networks with different conditions can publish one port: ADD refuses none, and CHECK of each succeeds."""
    networks = [with_interface(f"eth{number}") for number in range(3)]
    for network in networks:
        network.add(network.config["name"])
    for network in networks:
        network.check(network.config["name"])
        network.add(network.config["name"])
    careful.add("plain")
    careful.check("plain")


@pytest.mark.parametrize("is_conditional", [True, False])
def test_equal_conditions_are_a_conflict(careful, with_interface, is_conditional):
    """A container conflicts with an earlier one that has the same conditions or none; without "onConflict" at CHECK."""
    conditional = with_interface("eth0")
    first = conditional if is_conditional else careful
    first.add("first")
    owner = f"container first of network {first.config['name']}"
    error = conditional.run("ADD", "second").error()
    assert (error["code"], error["msg"]) == (11, f"host port 8080/tcp is in use by {owner}")
    second = conditional.having(addresses=[OTHER], onConflict=None)
    second.add("second")
    assert f"{owner}, whose rule comes first" in second.run("CHECK", "second").error()["msg"]
    first.check("first")
    first.delete("first")
    second.check("second")
