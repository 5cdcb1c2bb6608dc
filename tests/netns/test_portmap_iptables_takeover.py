"""Host ports that change hands between the reference and us, with both variants of iptables; who wins a port."""

import fcntl
import re
import time
from dataclasses import replace

import pytest

from kernel.netns import Netns, entered
from plugins.portmap import iptables_state
from plugins.portmap.spec import HostPorts as Wanted
from plugins.portmap.spec import PortMapping
from tests.netns.conftest import LEGACY, NFT
from tests.support import namespaces, xtables
from tests.support.hostports import DUAL, run_in_parallel
from tests.support.xtables import TOOLS

MAPPINGS = ("8080:80", "192.0.2.1|8081:81", "2001:db8::1|8082:82", "53:53/udp", *(f"{n}:70" for n in range(7000, 7020)))
VARIANTS = [
    {},
    {"snat": False},
    {"markMasqBit": 5},
    {"conditionsV4": ["!", "-d", "192.0.2.9"], "conditionsV6": ["-m", "comment", "--comment", "a b"]},
]


@pytest.fixture
def ours(iptables_ports):
    return iptables_ports


@pytest.fixture
def theirs(iptables_ports, reference):
    return replace(iptables_ports, bin_dir=reference)


def of_containers(net, tool="iptables"):
    return [line for line in net.rules()[tool] if "CNI-DN-" in line]


def owners(net):
    """Returns whose the entries are, in order."""
    lines = [line for line in net.rules()["iptables"] if line.startswith("-A CNI-HOSTPORT-DNAT ")]
    return [re.search(r'id: \\"(\w+)', line)[1] for line in lines]


@pytest.fixture
def addresses(tools):
    """The pod's addresses: of both families, except where the reference cannot make IPv6 rules.

    ip6tables-legacy 1.8.9 takes the second of two rules that differ in nothing but their port for the first, whenever
    it is asked whether a rule is there, as the reference asks.
    """
    return DUAL[:1] if tools.name == "legacy" else DUAL


@pytest.mark.parametrize("keys", VARIANTS)
def test_what_the_reference_made(ours, theirs, keys, addresses):
    """The rules of the reference are accepted by CHECK, named when one is missing, replaced by ADD, removed by DEL."""
    ours, theirs = ours.having(**keys), theirs.having(**keys)
    theirs.add("cid", *MAPPINGS, addresses=addresses)
    made = theirs.rules()
    ours.check("cid", *MAPPINGS, addresses=addresses)
    rules = [line for line in made["iptables"] if line.startswith("-A ")]
    for line in (line for line in rules if "CNI-DN-" in line):
        ours.load("-D" + line[2:])
        error = ours.run("CHECK", "cid", *MAPPINGS, addresses=addresses).error()
        assert " is missing in table nat" in error["msg"], line
        same = [other for other in rules if other.split()[1] == line.split()[1]]
        ours.load(f"-I {line.split()[1]} {same.index(line) + 1} {line.split(' ', 2)[2]}")
    assert theirs.rules() == made
    ours.add("cid", *MAPPINGS, addresses=addresses)
    assert ours.rules() == made
    ours.delete("cid", *MAPPINGS)
    assert not of_containers(ours) + of_containers(ours, "ip6tables")


@pytest.mark.parametrize("keys", VARIANTS)
def test_what_we_made(ours, theirs, keys, addresses):
    """Our rules are the reference's own, whose ADD finds nothing to add, and whose DEL removes them."""
    ours, theirs = ours.having(**keys), theirs.having(**keys)
    ours.add("cid", *MAPPINGS, addresses=addresses)
    made = ours.rules()
    theirs.add("cid", *MAPPINGS, addresses=addresses)
    assert theirs.rules() == made
    theirs.delete("cid", *MAPPINGS)
    assert not of_containers(ours) + of_containers(ours, "ip6tables")


@pytest.mark.parametrize("keys", VARIANTS)
def test_the_reference_checks_what_we_made(ours, theirs, tmp_path, keys):
    """CHECK of the reference accepts our rules, where it looks for them in the right family only: without ip6tables."""
    path = tmp_path / "ipv4"
    path.mkdir()
    for name in ("iptables", "iptables-save"):
        (path / name).symlink_to(ours.tools / name)
    how = {"addresses": DUAL[:1], "env": {"PATH": str(path)}}
    ours.having(**keys).add("cid", *MAPPINGS, addresses=DUAL[:1])
    theirs.having(**keys).check("cid", *MAPPINGS, **how)
    line = of_containers(ours)[-1]
    ours.load("-D" + line[2:])
    assert theirs.having(**keys).run("CHECK", "cid", *MAPPINGS, **how).error()


def test_a_stale_address_of_the_reference(ours, theirs):
    """Where a repeated ADD of the reference leaves the old address in front, CHECK tells, and our ADD mends it."""
    other = ["10.22.0.9/16", "fd00:22::9/64"]
    theirs.add("cid", "8080:80")
    theirs.add("cid", "8080:80", addresses=other)
    assert "is forwarded to 10.22.0.2:80" in ours.run("CHECK", "cid", "8080:80", addresses=other).error()["msg"]
    ours.add("cid", "8080:80", addresses=other)
    ours.check("cid", "8080:80", addresses=other)


@pytest.fixture
def remembered(ours, tmp_path):
    """The network whose plugin sees a cache of the test's own."""
    return ours.with_cache(tmp_path / "cache")


def test_a_container_that_is_gone_loses_its_port(remembered):
    """New rules stand in front of those of a container whose namespace is gone, and behind those of the living."""
    net = remembered
    pods = {
        "free": (True, "9999:99"),
        "alive": (True, "192.0.2.1|8080:80"),
        "gone": (False, "8080:80"),
        "gone2": (False, "8080:80"),
        "elsewhere": (True, "192.0.2.2|8080:80"),
    }
    for name, (_, mapping) in pods.items():
        net.add(name, mapping)
    net.write_cache(**{name: alive for name, (alive, _) in pods.items()})
    net.add("new", "192.0.2.1|8080:80", "8081:81", addresses=["10.22.0.3/16"])
    assert owners(net) == ["free", "alive", "new", "gone", "gone2", "elsewhere"]
    net.write_cache(new=True)
    net.add("first", "192.0.2.3|8080:80", "53:53/udp", addresses=["10.22.0.4/16"])
    assert owners(net) == ["first", "first", "free", "alive", "new", "gone", "gone2", "elsewhere"]
    net.check("first", "192.0.2.3|8080:80", "53:53/udp", addresses=["10.22.0.4/16"])
    net.write_cache(first=True)
    net.having(onConflict="fail").add("fail", "192.0.2.4|8080:80", addresses=["10.22.0.5/16"])
    error = net.having(onConflict="fail").run("ADD", "late", "8080:80", addresses=["10.22.0.5/16"]).error()
    assert error["code"] == 11
    assert "late" not in owners(net)


def test_a_repeated_add_leaves_the_gone_behind(remembered):
    """A container whose rules stand behind those of one that is gone comes first by a second ADD."""
    net = remembered
    net.add("gone", "8080:80")
    net.add("cid", "8080:80", addresses=["10.22.0.3/16"])
    assert (
        "is forwarded to container gone"
        in net.run("CHECK", "cid", "8080:80", addresses=["10.22.0.3/16"]).error()["msg"]
    )
    net.write_cache(gone=False)
    net.add("cid", "8080:80", addresses=["10.22.0.3/16"])
    assert owners(net) == ["cid", "gone"]
    net.check("cid", "8080:80", addresses=["10.22.0.3/16"])


def test_two_interfaces_of_one_container(remembered):
    """Rules that lead to another, living interface of the container stay in front; without it they go."""
    net = remembered
    second = ["10.22.0.9/16", "fd00:22::9/64"]
    net.add("cid", "8080:80")
    net.write_cache(cid=True)
    for _ in range(2):
        net.add("cid", "8080:80", "8081:81", addresses=second, ifname="eth1")
        net.check("cid", "8080:80")
        net.check("cid", "8080:80", "8081:81", addresses=second, ifname="eth1")
    assert len(owners(net)) == 2
    net.write_cache(cid=False)
    net.add("cid", "8080:80", addresses=second, ifname="eth1")
    assert owners(net) == ["cid"]
    assert not any("10.22.0.2:" in line for line in of_containers(net))


def test_few_processes(ours, tmp_path):
    """ADD of a hundred ports runs one program for each family, two where a port is had, CHECK one, and DEL none.

    CHECK of a few ports runs none: their rules are read from iptables-nft's tables, and recognised.
    """
    net = replace(ours, tools=xtables.counted(ours.tools, tmp_path / "counted"))
    legacy = ours.tools.name == "legacy"
    once, twice = sorted(f"{tool}-restore" for tool in TOOLS), sorted(f"{tool}-restore" for tool in TOOLS * 2)
    mappings = [f"{port}:80" for port in range(7000, 7100)]
    net.add("first", *mappings)
    assert xtables.calls(net.tools) == once
    net.add("second", "9000:90", addresses=["10.22.0.3/16", "fd00:22::3/64"])
    assert xtables.calls(net.tools) == (twice if legacy else once)
    net.check("second", "9000:90", addresses=["10.22.0.3/16", "fd00:22::3/64"])
    assert xtables.calls(net.tools) == (once if legacy else [])
    net.add("third", *mappings, addresses=["10.22.0.4/16", "fd00:22::4/64"])
    assert xtables.calls(net.tools) == twice
    net.add("first", *mappings)
    assert xtables.calls(net.tools) == twice
    net.check("first", *mappings)
    assert xtables.calls(net.tools) == once
    net.having(conditionsV4=["-m", "comment", "--comment", "x"]).run("CHECK", "first", *mappings)
    assert xtables.calls(net.tools) == once
    net.delete("third", *mappings)
    assert xtables.calls(net.tools) == (twice if legacy else [])
    net.delete("third", *mappings)
    assert xtables.calls(net.tools) == (once if legacy else [])


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_check_runs_a_program_where_a_rule_is_not_ours(ours, tmp_path):
    """One rule more in the container's chain, or another's for its port, and the program tells what there is."""
    net = replace(ours, tools=xtables.counted(ours.tools, tmp_path / "counted"))
    net.add("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    xtables.calls(net.tools)
    for line in (f"{chain} -p tcp -j LOG", "CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8081:8090 -j RETURN"):
        net.check("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
        assert xtables.calls(net.tools) == []
        net.load(f"-A {line}")
        xtables.calls(net.tools)
        net.check("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
        assert xtables.calls(net.tools) == ["iptables-restore"]
        net.load(f"-D {line}")
        xtables.calls(net.tools)


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_what_stands_there_twice_goes(ours, host):
    """Shared rules that two first containers made at once are there once in the end, and others' stay."""
    ours.having(markMasqBit=5).add("other", "8081:80")
    ours.add("cid", "8080:80")
    before = ours.rules()
    for tool in TOOLS:
        lines = [line for line in before[tool] if line.startswith("-A") and "CNI-DN-" not in line]
        lines = [line for line in lines if "0x20/" not in line]
        ours.load(*lines, "-A PREROUTING -j RETURN", *lines, tool=tool)
    with Netns(host.path) as namespace, entered(namespace):
        addresses = dict.fromkeys((4, 6))
        iptables_state.delete_duplicate_rules(Wanted("net", "cid", "eth0", (PortMapping(8080, 80, "tcp"),), addresses))
    after = ours.rules()
    for tool in TOOLS:
        assert sorted([*before[tool], "-A PREROUTING -j RETURN"]) == sorted(after[tool])


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_first_containers_at_once(ours):
    """Six containers that are the first on their host get all their rules, and no rule is there twice."""
    for _ in range(15):
        with namespaces.temporary_host() as host:
            net = replace(ours, host=host)
            pods = [net.having(f"{8000 + last}:80", addresses=[f"10.22.1.{last}/16"]) for last in range(1, 7)]
            for outcome in run_in_parallel(*(("ADD", f"a{number}", pod) for number, pod in enumerate(pods))):
                outcome.result()
            lines = [line for line in net.rules()["iptables"] if line.startswith("-A")]
            assert len(lines) == len(set(lines)) == 5 + 4 * len(pods)


@pytest.mark.parametrize("tools", [LEGACY], indirect=True)
def test_the_lock_is_waited_for_but_not_without_end(ours, tmp_path):
    """While another program holds the lock of iptables-legacy ADD fails with code 11 in time, and leaves nothing."""
    with (tmp_path / "xtables.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        env = {**xtables.path(ours.tools), "XTABLES_LOCKFILE": file.name}
        start = time.monotonic()
        error = ours.run("ADD", "cid", "8080:80", env=env).error()
        assert 9 < time.monotonic() - start < 35
    assert error["code"] == 11
    assert "try again later" in error["msg"]
    assert ours.rules() == {tool: [] for tool in TOOLS}


def test_a_failure_in_one_family_leaves_nothing_in_the_other(ours, tmp_path):
    """When the IPv6 rules cannot be made the IPv4 ones are taken back."""
    tools = xtables.counted(ours.tools, tmp_path / "counted")
    (tools / "ip6tables-restore").write_text("#!/bin/sh\necho no such luck >&2\nexit 4\n")
    error = replace(ours, tools=tools).run("ADD", "cid", "8080:80").error()
    assert "no such luck" in error["details"]
    assert not of_containers(ours) + of_containers(ours, "ip6tables")
