"""firewall by firewalld: a real one, on a bus of its own, on the throwaway host."""

import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries, firewalld
from tests.support.attaching import reaches
from tests.support.invocation import feed, finish, run_plugin, start_plugin
from tests.support.namespaces import Namespace
from tests.support.publishing import CLIENT
from tests.support.results import prev_result

pytestmark = pytest.mark.needs("nft_inet", "nft_nat")  # what firewalld's own rules need

DUAL = ("10.22.0.2/16", "fd00:22::2/64")
SOURCES = ["10.22.0.2/32", "fd00:22::2/128"]
NO_BUS = "unix:path=/run/absent/bus"


@dataclass(frozen=True)
class Firewall:
    """A network's firewall on a host, and the pod's addresses; `bin_dir` is the plugin's directory."""

    host: Namespace
    bus: firewalld.Bus
    config: dict[str, Any]
    bin_dir: Path | None = None

    def having(self, *addresses, **keys):
        config = {**self.config, **keys}
        if addresses:
            config["prevResult"] = prev_result(config["cniVersion"], *addresses)
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def run(self, command, container_id="cid", **how):
        own = {"host": self.host, "env": self.bus.env, "bin_dir": self.bin_dir, "netns": "/run/netns/x"}
        return run_plugin("firewall", command, self.config, container_id=container_id, **own, **how)

    def add(self, *of):
        return self.run("ADD", *of).result()

    def check(self, *of):
        self.run("CHECK", *of).assert_silent()

    def delete(self, *of):
        self.run("DEL", *of).assert_silent()


@pytest.fixture
def bus():
    """A bus, which firewalld may be started on."""
    if problem := firewalld.missing():
        binaries.skip_or_fail(problem)
    with firewalld.bus() as own:
        yield own


@pytest.fixture
def running(bus, host):
    """A firewalld on the throwaway host."""
    with bus.firewalld(host) as own:
        yield own


@pytest.fixture
def net(bus, host, bin_dir):
    """The firewall of a dual-stack pod, by firewalld."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "firewalld"}
    return Firewall(host, bus, config).having(*DUAL)


def own_table(host):
    """Returns our table of the host's nftables, as nft prints it, or ""."""
    return host.run("nft", "list", "table", "inet", "podwire_firewall", check=False)


def elements(host):
    """Returns what is remembered of the sources."""
    return re.findall(r'\S+ comment "zone: [^"]*"', own_table(host))


def test_add_check_delete(net, running):
    """Each address is a source of the zone "trusted" until DEL, and nothing else of the host's rules changes."""
    assert net.add() == net.config["prevResult"]
    assert running.sources() == SOURCES
    assert "hook" not in own_table(net.host)
    net.check()
    net.delete()
    assert running.sources() == []
    assert elements(net.host) == []
    assert not re.search("10.22.0.2|fd00:22::2", net.host.run("nft", "list", "ruleset"))
    net.delete()


def test_packets(network, client, bus, new_sandbox):
    """What firewalld rejects by default passes from ADD on, no more after a reload, again when ADD is repeated."""
    pod = new_sandbox()
    result = network.add(pod)
    client.ip("route", "add", "10.22.0.0/16", "via", "192.0.2.1")
    config = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "firewalld", "prevResult": result}
    net = Firewall(network.host, bus, config)
    assert reaches(pod, CLIENT)
    with bus.firewalld(network.host, "drop") as running:
        assert not reaches(pod, CLIENT, within_s=1)
        net.add()
        assert reaches(pod, CLIENT)
        assert running.command("--reload") == "success"
        assert not reaches(pod, CLIENT, within_s=1)
        assert net.run("CHECK").error()["code"] == 999
        net.add()
        assert reaches(pod, CLIENT)
        net.check()
        net.delete()
        assert not reaches(pod, CLIENT, within_s=1)


def test_another_zone(net, running):
    """The zone is the configured one, and DEL takes the address out of the zone that ADD put it into."""
    internal = net.having(firewalldZone="internal")
    internal.add()
    assert running.sources("internal") == SOURCES
    assert running.sources() == []
    net.delete()
    assert running.sources("internal") == []


def test_a_source_that_is_there_already(net, running):
    """ADD accepts an address that is in the zone already, and may be repeated."""
    running.command("--zone=trusted", "--add-source=10.22.0.2/32")
    net.add()
    rules = net.host.run("nft", "list", "ruleset")
    net.add()
    assert net.host.run("nft", "list", "ruleset") == rules
    assert running.sources() == SOURCES


@pytest.mark.parametrize("there", ["", "by us", "by the administrator"])
def test_an_address_in_another_zone(net, running, there):
    """ADD refuses an address that another zone has and leaves all as it was, also what was in the zone before."""
    if there == "by us":
        net.having(DUAL[0]).add()
    elif there:
        running.command("--zone=trusted", "--add-source=10.22.0.2/32")
    running.command("--zone=internal", "--add-source=fd00:22::2/128")
    before = running.sources(), running.sources("internal"), elements(net.host)
    error = net.run("ADD").error()
    assert error["msg"].startswith(
        "failed to add the address fd00:22::2/128 to trusted zone: ZONE_CONFLICT: 'fd00:22::2/128' already bound to"
    )
    assert error["details"] == "find the zone that has it: firewall-cmd --get-active-zones"
    assert (running.sources(), running.sources("internal"), elements(net.host)) == before
    assert len(running.sources()) == bool(there)
    net.delete()
    assert running.sources("internal") == ["fd00:22::2/128"]


def test_a_zone_that_is_not_there(net, running):
    """ADD, CHECK and STATUS refuse a zone that firewalld does not have; DEL succeeds."""
    absent = net.having(firewalldZone="absent")
    error = absent.having(DUAL[0]).run("ADD").error()
    assert error["msg"] == "failed to add the address 10.22.0.2/32 to absent zone: INVALID_ZONE: absent"
    assert "firewall-cmd --get-zones" in error["details"]
    assert "INVALID_ZONE" in absent.run("CHECK").error()["msg"]
    absent.delete()
    status = absent.having(cniVersion="1.1.0", prevResult=None).run("STATUS").error()
    assert (status["code"], 'firewalld has no zone "absent"' in status["msg"]) == (50, True)
    net.having(cniVersion="1.1.0", prevResult=None).run("STATUS").assert_silent()
    assert elements(net.host) == []


def test_a_name_that_no_zone_has(net, running):
    """A zone's name with NUL, which would end the conversation with the bus, is refused (code 7); DEL succeeds."""
    odd = net.having(firewalldZone="a\0b")
    assert odd.run("ADD").error()["code"] == 7
    odd.delete()


def test_delete_without_prev_result(net, running):
    """DEL needs no prevResult: what was added is remembered."""
    net.add()
    net.having(prevResult=None).delete("another")
    assert running.sources() == SOURCES
    net.having(prevResult=None).delete()
    assert running.sources() == []


def test_a_late_delete(net, running):
    """DEL leaves an address that was given to another attachment meanwhile."""
    net.add("one")
    net.add("two")
    net.delete("one")
    assert running.sources() == SOURCES
    net.check("two")
    net.delete("two")
    assert running.sources() == []


def test_gc(net, running):
    """GC takes out what belongs to none of the network's listed attachments, and nothing of other networks."""
    net.add("one")
    net.having("10.22.0.3/16").add("two")
    net.having("10.22.0.4/16", name="other").add("one")
    running.command("--zone=trusted", "--add-source=10.22.0.5/32")
    keys = {"cniVersion": "1.1.0", "prevResult": None}
    valid = [{"containerID": "two", "ifname": "eth0"}]
    net.having(**keys, **{"cni.dev/valid-attachments": valid}).run("GC").assert_silent()
    assert running.sources() == ["10.22.0.3/32", "10.22.0.4/32", "10.22.0.5/32"]
    assert len(elements(net.host)) == 2


def test_check_wants_every_source(net, running):
    """CHECK names the address that is in the zone no more, and changes nothing."""
    net.add()
    running.command("--zone=trusted", "--remove-source=fd00:22::2/128")
    error = net.run("CHECK").error()
    assert (error["code"], error["msg"]) == (999, "failed to find the address fd00:22::2/128 in trusted zone")
    assert running.sources() == SOURCES[:1]


def test_the_reference_made_it(net, running, reference):
    """What the reference added is accepted by CHECK and ADD, and removed by DEL."""
    theirs = replace(net, bin_dir=reference)
    theirs.add()
    net.check()
    net.delete()
    assert running.sources() == []
    theirs.add()
    net.add()
    net.delete()
    assert running.sources() == []


def test_the_reference_takes_over(net, running, reference):
    """What we added is accepted by the reference's CHECK, and removed by its DEL; our DEL after that succeeds."""
    theirs = replace(net, bin_dir=reference)
    net.add()
    theirs.check()
    theirs.delete()
    assert running.sources() == []
    net.delete()
    assert elements(net.host) == []


def test_no_backend_named(net, running):
    """Without a backend it is firewalld where that runs, without a word."""
    automatic = net.having(backend=None)
    outcome = automatic.run("ADD")
    assert (outcome.result(), outcome.stderr) == (net.config["prevResult"], "")
    assert running.sources() == SOURCES
    assert "CNI-FORWARD" not in net.host.run("nft", "list", "ruleset")
    automatic.check()
    automatic.delete()
    assert running.sources() == []


@pytest.mark.parametrize("there", [True, False])
def test_no_firewalld_and_no_backend_named(net, there):
    """Where nobody is firewalld, or there is no bus, ADD without a backend takes another one, without a word."""
    bus = net.bus if there else firewalld.Bus(NO_BUS)
    outcome = replace(net.having(backend=None), bus=bus).run("ADD")
    assert (outcome.result(), outcome.stderr) == (net.config["prevResult"], "")


def test_no_bus(net):
    """Without a bus ADD, CHECK and STATUS name the one that they looked for, and DEL succeeds."""
    lost = replace(net, bus=firewalld.Bus(NO_BUS))
    text = f"D-Bus: no system bus at {NO_BUS}: no such file or directory"
    error = lost.run("ADD").error()
    assert (error["code"], error["msg"]) == (999, text)
    assert "start dbus and firewalld" in error["details"]
    assert lost.run("CHECK").error()["msg"] == text
    status = lost.having(cniVersion="1.1.0", prevResult=None).run("STATUS").error()
    assert (status["code"], text in status["msg"]) == (50, True)
    lost.delete()
    lost.having(prevResult=None).delete()


def test_firewalld_stopped(net):
    """Where firewalld does not run ADD and STATUS say so; DEL succeeds, and what was remembered goes."""
    with net.bus.firewalld(net.host):
        net.add()
    assert len(elements(net.host)) == 2
    assert "firewalld does not run" in net.run("CHECK").error()["msg"]
    net.delete()
    assert elements(net.host) == []
    error = net.run("ADD").error()
    assert error["msg"].startswith("failed to add the address 10.22.0.2/32 to trusted zone: firewalld does not run: ")
    assert elements(net.host) == []
    status = net.having(cniVersion="1.1.0", prevResult=None).run("STATUS").error()
    assert (status["code"], "firewalld does not run" in status["msg"]) == (50, True)


def test_a_firewalld_that_hangs(net, running):
    """A firewalld that hangs is waited for 10 seconds (code 11); going on it adds nothing, and DEL can be repeated."""
    fresh, other = net.having("10.22.0.9/16"), net.having("10.22.0.8/16")
    net.add("old")
    other.add("gone")
    how = {"host": net.host, "env": net.bus.env, "netns": "/run/netns/x"}
    with running.hanging(), ExitStack() as stack:
        runs = [(fresh, "ADD", "new"), (net, "ADD", "old"), (net, "CHECK", "old"), (other, "DEL", "gone")]
        started = [
            stack.enter_context(start_plugin("firewall", command, container_id=of, **how)) for _, command, of in runs
        ]
        for process, (asked, *_) in zip(started, runs, strict=True):
            feed(process, asked.config)
        outcomes = [finish(process) for process in started]
    assert [outcome.error()["code"] for outcome in outcomes] == [11, 11, 11, 11]
    assert set(running.sources()) - {"10.22.0.8/32"} == set(SOURCES)  # it may take that out, or not for who is gone
    net.check("old")
    assert len(elements(net.host)) == 3
    other.delete("gone")
    assert running.sources() == SOURCES
    assert len(elements(net.host)) == 2


def test_a_policy_beside_firewalld(net, running):
    """An ingressPolicy holds beside firewalld; where firewalld refuses, nothing of it is left, and DEL ends it."""
    ips = [{"address": address} for address in DUAL]
    result = {"cniVersion": "1.0.0", "interfaces": [{"name": "cni0", "mac": "02:00:00:00:00:09"}], "ips": ips}
    policed = net.having(ingressPolicy="same-bridge", prevResult=result)
    running.command("--zone=internal", "--add-source=fd00:22::2/128")
    assert "ZONE_CONFLICT" in policed.run("ADD").error()["msg"]
    assert "cni0" not in net.host.run("nft", "list", "ruleset")
    running.command("--zone=internal", "--remove-source=fd00:22::2/128")
    policed.add()
    assert running.sources() == SOURCES
    policed.check()
    assert "cni0" in net.host.run("nft", "list", "ruleset")
    policed.delete()
    assert running.sources() == []
