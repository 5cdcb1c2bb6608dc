"""The firewall with firewalld: a real one on a separate bus, on the temporary host."""

import re
from dataclasses import dataclass, replace

import pytest

from tests.support import binaries, firewalld
from tests.support.attaching import reaches
from tests.support.bare_plugin import DUAL, run_in_parallel
from tests.support.firewall_tables import Firewall
from tests.support.publishing import CLIENT

pytestmark = pytest.mark.needs("nft_inet", "nft_nat")  # required by firewalld's rules

SOURCES = ["10.22.0.2/32", "fd00:22::2/128"]
NO_BUS = firewalld.Bus("unix:path=/run/absent/bus")


@dataclass(frozen=True)
class BusFirewall(Firewall):
    """A network's firewall whose plugin uses `bus`."""

    bus: firewalld.Bus = NO_BUS

    def arguments(self, container_id, **how):
        return {**super().arguments(container_id, **how), "env": self.bus.env}


@pytest.fixture
def bus():
    """A bus on which firewalld can be started."""
    if problem := firewalld.missing():
        binaries.skip_or_fail(problem)
    with firewalld.bus() as bus:
        yield bus


@pytest.fixture
def running(bus, host):
    """A firewalld on the temporary host."""
    with bus.firewalld(host) as running:
        yield running


@pytest.fixture
def net(bus, host, bin_dir):
    """The firewall of a dual-stack pod, with firewalld."""
    config = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "firewalld"}
    return BusFirewall(host, config, bus=bus).pod(*DUAL)


def list_table(host):
    """Returns the plugin's table as nft prints it, "" if it does not exist."""
    return host.run("nft", "list", "table", "inet", "podwire_firewall", check=False)


def list_records(host):
    """Returns the records of the sources."""
    return re.findall(r'\S+ comment "zone: [^"]*"', list_table(host))


def test_add_check_delete(net, running):
    """Each address is a source of the zone "trusted" until DEL, and other rules of the host do not change."""
    assert net.add() == net.config["prevResult"]
    assert running.sources() == SOURCES
    assert "hook" not in list_table(net.host)
    net.check()
    net.delete()
    assert running.sources() == []
    assert list_records(net.host) == []
    assert not re.search("10.22.0.2|fd00:22::2", net.host.run("nft", "list", "ruleset"))
    net.delete()


def test_packets_pass_after_add(network, client, bus, new_sandbox):
    """Packets that firewalld rejects by default pass after ADD, not after a reload, and again after a repeated ADD."""
    pod = new_sandbox()
    result = network.add(pod)
    client.ip("route", "add", "10.22.0.0/16", "via", "192.0.2.1")
    config = {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "firewalld", "prevResult": result}
    net = BusFirewall(network.host, config, bus=bus)
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


def test_configured_zone(net, running):
    """ADD adds the addresses to the configured zone, and DEL removes them from the zone of that ADD."""
    internal = net.having(firewalldZone="internal")
    internal.add()
    assert running.sources("internal") == SOURCES
    assert running.sources() == []
    net.delete()
    assert running.sources("internal") == []


@pytest.mark.long
@pytest.mark.parametrize("added_by", ["", "podwire", "the administrator"])
def test_address_in_another_zone(net, running, added_by):
    """ADD refuses an address that is in another zone and changes nothing, also not the sources of an earlier ADD."""
    if added_by == "podwire":
        net.pod(DUAL[0]).add()
    elif added_by:
        running.command("--zone=trusted", "--add-source=10.22.0.2/32")
    running.command("--zone=internal", "--add-source=fd00:22::2/128")
    before = running.sources(), running.sources("internal"), list_records(net.host)
    error = net.run("ADD").error()
    assert error["msg"].startswith(
        "failed to add the address fd00:22::2/128 to trusted zone: ZONE_CONFLICT: 'fd00:22::2/128' already bound to"
    )
    assert error["details"] == "find the zone that has it: firewall-cmd --get-active-zones"
    assert (running.sources(), running.sources("internal"), list_records(net.host)) == before
    assert len(running.sources()) == bool(added_by)
    net.delete()
    assert running.sources("internal") == ["fd00:22::2/128"]


def test_missing_zone(net, running):
    """ADD, CHECK and STATUS refuse a zone that firewalld does not have, and DEL succeeds."""
    absent = net.having(firewalldZone="absent")
    error = absent.pod(DUAL[0]).run("ADD").error()
    assert error["msg"] == "failed to add the address 10.22.0.2/32 to absent zone: INVALID_ZONE: absent"
    assert "firewall-cmd --get-zones" in error["details"]
    assert "INVALID_ZONE" in absent.run("CHECK").error()["msg"]
    absent.delete()
    status = absent.having(cniVersion="1.1.0", prevResult=None).run("STATUS").error()
    assert (status["code"], 'firewalld has no zone "absent"' in status["msg"]) == (50, True)
    net.having(cniVersion="1.1.0", prevResult=None).run("STATUS").assert_silent()
    assert list_records(net.host) == []


def test_delete_without_prev_result(net, running, tmp_path):
    """DEL without prevResult removes the recorded sources, also if `nft` has listed and loaded the records."""
    net.add()
    (tmp_path / "rules").write_text(f"delete table inet podwire_firewall\n{list_table(net.host)}")
    net.host.run("nft", "-f", str(tmp_path / "rules"))
    net.having(prevResult=None).delete("another")
    assert running.sources() == SOURCES
    net.having(prevResult=None).delete()
    assert running.sources() == []


def test_late_delete(net, running):
    """DEL keeps an address that another attachment has by now, whose record replaces the former one."""
    net.add("one")
    net.add("two")
    assert all("id: two" in record for record in list_records(net.host))
    net.delete("one")
    assert running.sources() == SOURCES
    net.check("two")
    net.delete("two")
    assert running.sources() == []


def test_gc_removes_stale_sources(net, running):
    """GC removes the sources of the network's unlisted attachments, and none of other networks."""
    net.add("one")
    net.pod("10.22.0.3/16").add("two")
    net.having(name="other").pod("10.22.0.4/16").add("one")
    running.command("--zone=trusted", "--add-source=10.22.0.5/32")
    net.gc("two")
    assert running.sources() == ["10.22.0.3/32", "10.22.0.4/32", "10.22.0.5/32"]
    assert len(list_records(net.host)) == 2


def test_check_reports_a_missing_source(net, running):
    """CHECK names an address that is no longer in the zone, and changes nothing."""
    net.add()
    running.command("--zone=trusted", "--remove-source=fd00:22::2/128")
    error = net.run("CHECK").error()
    assert (error["code"], error["msg"]) == (999, "failed to find the address fd00:22::2/128 in trusted zone")
    assert running.sources() == SOURCES[:1]


def test_sources_of_the_reference_plugin(net, running, reference):
    """ADD and CHECK accept sources that the reference plugin has added, DEL removes them, and the reverse."""
    reference_net = replace(net, bin_dir=reference)
    reference_net.add()
    net.check()
    net.delete()
    assert running.sources() == []
    reference_net.add()
    net.add()
    reference_net.check()
    reference_net.delete()
    assert running.sources() == []
    net.delete()
    assert list_records(net.host) == []


@pytest.mark.long
def test_firewalld_is_the_default_backend(net, running):
    """Without a configured backend ADD uses firewalld if it runs, and prints nothing."""
    automatic = net.having(backend=None)
    outcome = automatic.run("ADD")
    assert (outcome.result(), outcome.stderr) == (net.config["prevResult"], "")
    assert running.sources() == SOURCES
    assert "CNI-FORWARD" not in net.host.run("nft", "list", "ruleset")
    automatic.check()
    automatic.delete()
    assert running.sources() == []


@pytest.mark.parametrize("has_bus", [True, False])
def test_other_default_backend_without_firewalld(net, has_bus):
    """Without firewalld, or without a bus, and without a configured backend ADD uses another one and prints nothing."""
    bus = net.bus if has_bus else NO_BUS
    outcome = replace(net.having(backend=None), bus=bus).run("ADD")
    assert (outcome.result(), outcome.stderr) == (net.config["prevResult"], "")


def test_no_bus(net):
    """Without a bus ADD, CHECK and STATUS fail with its address, and DEL succeeds."""
    busless = replace(net, bus=NO_BUS)
    text = f"D-Bus: no system bus at {NO_BUS.address}: no such file or directory"
    error = busless.run("ADD").error()
    assert (error["code"], error["msg"]) == (999, text)
    assert "start dbus and firewalld" in error["details"]
    assert busless.run("CHECK").error()["msg"] == text
    status = busless.having(cniVersion="1.1.0", prevResult=None).run("STATUS").error()
    assert (status["code"], text in status["msg"]) == (50, True)
    busless.delete()
    busless.having(prevResult=None).delete()


def test_firewalld_is_not_running(net):
    """If firewalld is not running ADD, CHECK and STATUS fail, and DEL succeeds and deletes the records."""
    with net.bus.firewalld(net.host):
        net.add()
    assert len(list_records(net.host)) == 2
    assert "firewalld does not run" in net.run("CHECK").error()["msg"]
    net.delete()
    assert list_records(net.host) == []
    error = net.run("ADD").error()
    assert error["msg"].startswith("failed to add the address 10.22.0.2/32 to trusted zone: firewalld does not run: ")
    assert list_records(net.host) == []
    status = net.having(cniVersion="1.1.0", prevResult=None).run("STATUS").error()
    assert (status["code"], "firewalld does not run" in status["msg"]) == (50, True)


@pytest.mark.long
def test_firewalld_hangs(net, running):
    """Verbs wait 10 s for a hanging firewalld, then fail with code 11; nothing is added later, DEL can be repeated."""
    fresh, other = net.pod("10.22.0.9/16"), net.pod("10.22.0.8/16")
    net.add("old")
    other.add("deleted")
    with running.stopped():
        outcomes = run_in_parallel(
            ("ADD", "new", fresh), ("ADD", "old", net), ("CHECK", "old", net), ("DEL", "deleted", other)
        )
    assert [outcome.error()["code"] for outcome in outcomes] == [11, 11, 11, 11]
    # firewalld may execute or ignore a call of a client that has disconnected
    assert set(running.sources()) - {"10.22.0.8/32"} == set(SOURCES)
    net.check("old")
    assert len(list_records(net.host)) == 3
    other.delete("deleted")
    assert running.sources() == SOURCES
    assert len(list_records(net.host)) == 2


@pytest.mark.long
def test_policy_with_firewalld(net, running):
    """ADD adds rules for an ingressPolicy to the sources, but none if firewalld refuses these, and DEL removes them."""
    policed = net.having(ingressPolicy="same-bridge")
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
