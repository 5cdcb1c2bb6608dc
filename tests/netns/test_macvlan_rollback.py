"""macvlan: a failed ADD leaves nothing; CHECK notices changes; DEL, GC and STATUS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import master_changes
from tests.support.attaching import address, reaches
from tests.support.master_changes import Change
from tests.support.netstate import links, state
from tests.support.uplink import UPLINK

pytestmark = pytest.mark.needs("macvlan")

IPV4 = {"address": "10.25.0.9/24", "gateway": "10.25.0.1"}
KINDS = ("podwire", "reference")


@pytest.fixture
def scripted(macvlan, scripted_network):
    """A function that creates a macvlan network with a scripted IPAM plugin."""

    def make(ips, **rest):
        network = scripted_network(ips, **rest)
        return network.having(type="macvlan", master=UPLINK, bridge=None, isDefaultGateway=None)

    return make


FAILURES: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "IPAM fails": ({"ips": [IPV4], "body": "[ $CNI_COMMAND != ADD ] || exit 1"}, "netplugin failed", ["ADD", "DEL"]),
    "no address": ({"ips": []}, "IPAM plugin returned missing IP config", ["ADD", "DEL"]),
    "address twice": ({"ips": [IPV4, IPV4]}, "failed to add IP addr 10.25.0.9/24", ["ADD", "DEL"]),
    "bad route": (
        {"ips": [IPV4], "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]},
        "failed to add route '192.0.2.0/24 via 203.0.113.1",
        ["ADD", "DEL"],
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failed_add_leaves_nothing(scripted, sandbox, ipam_calls, case):
    """If a step after the creation fails, ADD deletes the interface and releases the addresses."""
    keys, text, calls = FAILURES[case]
    net = scripted(**keys)
    before = state(net.host), state(sandbox)
    assert net.run("ADD", sandbox).error()["msg"].startswith(text)
    assert ipam_calls() == calls
    assert (state(net.host), state(sandbox)) == before


CHANGES = master_changes.CHANGES | {
    "another mode": Change(
        (), {"mode": "private"}, "container macvlan mode bridge does not match expected value: private"
    ),
    "another MAC": Change(("link", "set", "eth0", "address", "02:00:00:00:00:09"), {}, "Interface eth0 Mac "),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_check_reports_changes(macvlan, sandbox, change):
    """CHECK passes after ADD, and reports what has changed since."""
    master_changes.assert_reported(macvlan, sandbox, change)


def test_check_refuses_another_kind(macvlan, sandbox):
    """CHECK refuses an interface of another kind, and DEL leaves it alone."""
    master_changes.assert_another_kind_is_refused(macvlan, sandbox)


def test_check_needs_the_result_of_this_attachment(macvlan, sandbox, new_sandbox):
    """CHECK refuses a missing prevResult, and one of another namespace or interface."""
    result = macvlan.add(sandbox)
    assert macvlan.run("CHECK", sandbox).error()["msg"] == "required prevResult missing"
    other = new_sandbox()
    text = f"Sandbox in prevResult {sandbox.path} doesn't match configured netns: {other.path}"
    assert macvlan.run("CHECK", other, prev_result=result, container_id=sandbox.name).error()["msg"] == text
    error = macvlan.run("CHECK", sandbox, prev_result={**result, "interfaces": []}).error()
    assert error["msg"] == "Container Interface name in prevResult: eth0 not found"


@pytest.mark.parametrize("missing", ["interface", "namespace", "path", "master", "nothing"])
def test_del_succeeds_without(macvlan, sandbox, missing):
    """DEL releases the addresses when the interface, the namespace, its path or the master is missing, and twice."""
    result = macvlan.add(sandbox)
    pod = sandbox
    if missing == "interface":
        sandbox.ip("link", "del", "eth0")
    elif missing == "namespace":
        sandbox.delete()
    elif missing == "path":
        pod = ""
    elif missing == "master":
        macvlan.host.ip("link", "del", UPLINK)
        assert set(links(sandbox)) == {"lo"}
    for _ in range(2):
        macvlan.having(mode="?", mtu=-1, mac="?").delete(
            pod, result, container_id=sandbox.name, env={"CNI_ARGS": "X=1;IgnoreUnknown=1"}
        )
    assert macvlan.leases() == {}
    if missing != "path":
        assert missing == "namespace" or set(links(sandbox)) == {"lo"}


def test_status(macvlan, sandbox, tmp_path):
    """STATUS checks configuration, master and IPAM, and prints nothing on success."""
    net = macvlan.having(cniVersion="1.1.0")
    net.run("STATUS").assert_silent()
    (tmp_path / "file").write_text("")
    ipam = {**net.config["ipam"], "dataDir": str(tmp_path / "file")}
    for broken in (net.having(master="zz"), net.having(ipam=ipam), net.having(mode="x"), net.having(mtu=1501)):
        assert broken.run("STATUS").error()["code"] == 50
    net.having(ipam=None).run("STATUS").assert_silent()


def test_gc_releases_unlisted_addresses(macvlan, new_sandbox):
    """GC keeps the listed attachments and releases the addresses of others."""
    net = macvlan.having(cniVersion="1.1.0")
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    net.add(two)
    listed = [{"containerID": one.name, "ifname": "eth0"}]
    net.having(**{"cni.dev/valid-attachments": listed}).run("GC").assert_silent()
    assert net.leases() == {"10.25.0.2": one.name, "fd00:25::2": one.name}


@pytest.mark.parametrize("keys", [{}, {"mode": "private", "mtu": 1300}, {"ipam": None}])
@pytest.mark.parametrize(("created_by", "deleted_by"), [KINDS, KINDS[::-1]])
def test_pod_is_checked_and_deleted_by_the_other(macvlan, sandbox, bin_dir, reference, created_by, deleted_by, keys):
    """A pod of one implementation passes CHECK and DEL of the other."""
    directories = {"podwire": bin_dir, "reference": reference}
    net = macvlan.having(**keys)
    creator, deleter = (
        replace(net, bin_dir=directories[kind], path=str(directories[kind])) for kind in (created_by, deleted_by)
    )
    result = creator.add(sandbox)
    deleter.check(sandbox, result)
    creator.check(sandbox, result)
    assert deleter.run("ADD", sandbox, container_id="other").status == 1
    deleter.delete(sandbox, result)
    creator.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
    assert not net.config.get("ipam") or not [name for name, owner in net.leases().items() if owner == sandbox.name]


def test_both_share_a_master(macvlan, new_sandbox, bin_dir, reference):
    """Pods of both implementations on one master reach each other."""
    one, two = new_sandbox(), new_sandbox()
    macvlan.add(one)
    second = replace(macvlan, bin_dir=reference, path=str(reference)).add(two)
    assert reaches(one, address(second))
    assert reaches(one, address(second, 1))
