"""dummy: an interface with addresses only; its result, routes, rollback and verbs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import binaries, scripted_ipam
from tests.support.attaching import Network, address, reaches
from tests.support.kernels import has
from tests.support.netstate import links, shown, state

NEEDS = pytest.mark.needs("dummy")
IPV4 = {"address": "10.33.0.9/24"}


@pytest.fixture
def scripted(dummy, tmp_path):
    """A function that creates a dummy network with a scripted IPAM plugin."""

    def make(ips, *, body="", **rest):
        scripted_ipam.install(tmp_path / "ipam", {"cniVersion": "1.0.0", "ips": ips, **rest}, body)
        net = dummy.having(ipam={"type": scripted_ipam.NAME})
        return Network(net.host, net.config, path=f"{tmp_path / 'ipam'}:{binaries.directory()}")

    return make


@NEEDS
def test_add_creates_the_interface(dummy, sandbox):
    """The interface is up, with addresses, routes and a random MAC; the host and its own `eth0` do not change."""
    dummy.host.ip("link", "add", "eth0", "type", "dummy")
    before = state(dummy.host)
    result = dummy.having(cniVersion="1.1.0").add(sandbox)
    link = shown(sandbox, "eth0")
    assert (link["linkinfo"]["info_kind"], link["mtu"], "UP" in link["flags"]) == ("dummy", 1500, True)
    interface = {"name": "eth0", "mac": link["address"], "mtu": 1500, "sandbox": sandbox.path}
    assert result["interfaces"] == [interface]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.33.0.2/24", 0), ("fd00:33::2/64", 0)]
    assert "192.0.2.0/24 via 10.33.0.1 dev eth0" in sandbox.ip("route")
    assert state(dummy.host) == before
    dummy.check(sandbox, {**result, "cniVersion": "1.0.0"})
    dummy.delete(sandbox)
    assert set(links(sandbox)) == {"lo"}
    assert dummy.leases() == {}


@NEEDS
@pytest.mark.parametrize("addresses", [["169.254.169.254/32"], ["fd00:ec2::254/128"], ["10.9.9.9/32", "fd00:9::9/128"]])
def test_host_prefixes(dummy, sandbox, addresses):
    """Addresses with /32 and /128 are usable at once, answer, and pass CHECK."""
    net = dummy.having(ipam={"type": "static", "addresses": [{"address": item} for item in addresses]})
    result = net.add(sandbox)
    assert "tentative" not in sandbox.ip("address", "show", "dev", "eth0")
    sandbox.ip("link", "set", "lo", "up")
    for number in range(len(addresses)):
        assert reaches(sandbox, address(result, number))
    net.check(sandbox, result)
    net.delete(sandbox, result)


@NEEDS
def test_dns_is_that_of_ipam(scripted, sandbox):
    """The result has IPAM's DNS settings, and the key `dns` is ignored, as by the reference plugin."""
    net = scripted([IPV4], dns={"nameservers": ["10.0.0.53"]}).having(dns={"search": ["own.example"]})
    assert net.add(sandbox)["dns"] == {"nameservers": ["10.0.0.53"]}


def test_missing_ipam(dummy, sandbox):
    """ADD, CHECK and STATUS report a missing `ipam`, even with a wrong namespace; DEL succeeds."""
    net = dummy.having(ipam=None, cniVersion="1.1.0")
    before = state(sandbox)
    for command, pod in (("ADD", sandbox), ("ADD", "/nonexistent"), ("CHECK", sandbox), ("STATUS", None)):
        error = net.run(command, pod, prev_result={"cniVersion": "1.1.0"}).error()
        assert error["msg"].partition(";")[0] == "dummy interface requires an IPAM configuration"  # STATUS reports all
        assert error["code"] == (50 if command == "STATUS" else 7)
    net.delete(sandbox)
    net.delete("")
    assert state(sandbox) == before


def test_existing_name_is_refused(dummy, sandbox):
    """ADD leaves an existing interface of the name untouched, and allocates no address."""
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "p")
    before = state(sandbox)
    error = dummy.run("ADD", sandbox).error()
    assert error["msg"] == "failed to create dummy: file exists"
    assert "run DEL first" in error["details"]
    assert state(sandbox) == before
    assert dummy.leases() == {}


def test_kernel_without_dummy(dummy, sandbox):
    """On a kernel without dummy interfaces ADD names the missing module, and nothing changes."""
    if has("dummy"):
        dummy.add(sandbox)
        return
    before = state(sandbox)
    error = dummy.run("ADD", sandbox).error()
    assert error["msg"] == "failed to create dummy: operation not supported"
    assert error["details"] == "the kernel module dummy is not loaded: modprobe dummy"
    assert state(sandbox) == before
    assert dummy.leases() == {}


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "IPAM fails": ({"ips": [IPV4], "body": "[ $CNI_COMMAND != ADD ] || exit 1"}, "netplugin failed"),
    "no address": ({"ips": []}, "IPAM plugin returned missing IP config"),
    "address twice": ({"ips": [IPV4, IPV4]}, "failed to add IP addr 10.33.0.9/24"),
    "bad route": (
        {"ips": [IPV4], "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]},
        "failed to add route '192.0.2.0/24 via 203.0.113.1",
    ),
}


@NEEDS
@pytest.mark.parametrize("case", FAILURES)
def test_failed_add_leaves_nothing(scripted, sandbox, ipam_calls, case):
    """If a step after the creation fails, ADD deletes the interface and releases the addresses."""
    script, text = FAILURES[case]
    net = scripted(**script)
    before = state(net.host), state(sandbox)
    assert net.run("ADD", sandbox).error()["msg"].startswith(text)
    assert ipam_calls() == ["ADD", "DEL"]
    assert (state(net.host), state(sandbox)) == before


CHANGES = {
    "another MAC": ("link set eth0 address 02:00:00:00:00:09", "Interface eth0 Mac "),
    "down": ("link set eth0 down", "Interface eth0 is down"),
    "no address": ("addr del 10.33.0.2/24 dev eth0", "Expected address 10.33.0.2/24 is not on"),
    "no route": ("route del 192.0.2.0/24", "Expected route 192.0.2.0/24"),
    "deleted": ("link del eth0", "Container Interface name in prevResult: eth0 not found"),
}


@NEEDS
@pytest.mark.parametrize("case", CHANGES)
def test_check_reports_changes(dummy, sandbox, case):
    """CHECK passes after ADD, and reports what has changed since."""
    result = dummy.add(sandbox)
    dummy.check(sandbox, result)
    command, text = CHANGES[case]
    sandbox.ip(*command.split())
    assert dummy.run("CHECK", sandbox, prev_result=result).error()["msg"].startswith(text)


@NEEDS
def test_other_kinds(dummy, sandbox):
    """CHECK refuses an interface of another kind, and DEL leaves it alone."""
    result = dummy.add(sandbox)
    sandbox.ip("link", "del", "eth0")
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "p")
    error = dummy.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == "Error: Container interface eth0 not of type dummy"
    dummy.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo", "eth0", "p"}
    assert dummy.leases() == {}


@NEEDS
@pytest.mark.parametrize("missing", ["interface", "namespace", "path", "nothing"])
def test_del_succeeds_without(dummy, sandbox, missing):
    """DEL releases the addresses when the interface, the namespace or its path is missing, and twice."""
    result = dummy.add(sandbox)
    pod = sandbox
    if missing == "interface":
        sandbox.ip("link", "del", "eth0")
    elif missing == "namespace":
        sandbox.delete()
    elif missing == "path":
        pod = ""
    for _ in range(2):
        dummy.delete(pod, result, container_id=sandbox.name)
    assert dummy.leases() == {}
    if missing in ("interface", "nothing"):
        assert set(links(sandbox)) == {"lo"}


def test_status(dummy, tmp_path):
    """STATUS checks the kernel and IPAM, and prints nothing on success."""
    net = dummy.having(cniVersion="1.1.0")
    if has("dummy"):
        net.run("STATUS").assert_silent()
    else:
        error = net.run("STATUS").error()
        assert (error["code"], "modprobe dummy" in error["details"]) == (50, True)
    (tmp_path / "file").write_text("")
    broken = net.having(ipam={**net.config["ipam"], "dataDir": str(tmp_path / "file")})
    assert broken.run("STATUS").error()["code"] == 50


@NEEDS
def test_gc_releases_unlisted_addresses(dummy, new_sandbox):
    """GC keeps the listed attachments and releases the addresses of others."""
    net = dummy.having(cniVersion="1.1.0")
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    net.add(two)
    listed = [{"containerID": one.name, "ifname": "eth0"}]
    net.having(**{"cni.dev/valid-attachments": listed}).run("GC").assert_silent()
    assert net.leases() == {"10.33.0.2": one.name, "fd00:33::2": one.name}
