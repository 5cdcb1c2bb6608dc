"""tap: a failed ADD leaves nothing; CHECK notices changes; DEL, GC and STATUS; devices of the reference plugin."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support import binaries, scripted_ipam
from tests.support.attaching import Network
from tests.support.invocation import Outcome, environment
from tests.support.netstate import links, shown, state
from tests.support.processes import output

IPV4 = {"address": "10.27.0.9/24", "gateway": "10.27.0.1"}
MAC = "02:00:00:00:00:77"


@pytest.fixture
def scripted(tap, tmp_path):
    """A function that creates a tap network with a scripted IPAM plugin."""

    def make(ips, *, body="", **rest):
        scripted_ipam.install(tmp_path / "ipam", {"cniVersion": "1.0.0", "ips": ips, **rest}, body)
        net = tap.having(ipam={"type": scripted_ipam.NAME})
        return Network(net.host, net.config, path=f"{tmp_path / 'ipam'}:{binaries.directory()}")

    return make


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "IPAM fails": ({"ips": [IPV4], "body": "[ $CNI_COMMAND != ADD ] || exit 1"}, "netplugin failed"),
    "no address": ({"ips": []}, "IPAM plugin returned missing IP config"),
    "address twice": ({"ips": [IPV4, IPV4]}, "failed to add IP addr 10.27.0.9/24"),
    "bad route": (
        {"ips": [IPV4], "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]},
        "failed to add route '192.0.2.0/24 via 203.0.113.1",
    ),
}


@pytest.mark.parametrize("keys", [{}, {"owner": 0, "group": 0, "mac": MAC}, {"multiQueue": True, "bridge": "br0"}])
@pytest.mark.parametrize("case", FAILURES)
def test_failed_add_leaves_nothing(scripted, sandbox, ipam_calls, case, keys):
    """If a step after the creation fails, ADD deletes the device and releases the addresses."""
    sandbox.ip("link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")  # else it takes a port's
    script, text = FAILURES[case]
    net = scripted(**script).having(**keys)
    before = state(net.host), state(sandbox)
    assert net.run("ADD", sandbox).error()["msg"].startswith(text)
    assert ipam_calls() == ["ADD", "DEL"]
    assert (state(net.host), state(sandbox)) == before


def test_refused_port_leaves_nothing(tap, sandbox):
    """If the bridge is full, ADD deletes the device, and IPAM is not called."""
    lines = ["link add name br0 address 02:00:00:00:00:01 type bridge"]
    for number in range(512):  # the bridge has no port for the last end of a veth
        lines.append(f"link add name a{number} type veth peer name b{number}")
        lines += [f"link set {end}{number} master br0" for end in "ab"]
    output("ip", "-n", sandbox.name, "-force", "-batch", "-", stdin="\n".join(lines), check=False)
    before = sandbox.ip("-brief", "link")
    error = tap.having(bridge="br0", mac=MAC, owner=0).run("ADD", sandbox).error()
    assert error["details"].endswith("the bridge is full: the kernel allows 1023 ports")
    assert sandbox.ip("-brief", "link") == before
    assert tap.leases() == {}


CHANGES: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "multiQueue": ((), {"multiQueue": True}, 'Tap eth0 has another "multiQueue" than the configuration'),
    "owner": ((), {"owner": 0}, 'Tap eth0 has another "owner" than the configuration'),
    "group": ((), {"group": 5}, 'Tap eth0 has another "group" than the configuration'),
    "no bridge": ((), {"bridge": "br0"}, "failed to get bridge br0: Link not found"),
    "another MAC": (("link", "set", "eth0", "address", "02:00:00:00:00:09"), {}, "Interface eth0 Mac "),
    "down": (("link", "set", "eth0", "down"), {}, "Interface eth0 is down"),
    "no address": (("addr", "del", "10.27.0.2/24", "dev", "eth0"), {}, "Expected address 10.27.0.2/24 is not on"),
    "deleted": (("link", "del", "eth0"), {}, "Container Interface name in prevResult: eth0 not found"),
}


@pytest.mark.parametrize("ipam", [True, False])
@pytest.mark.parametrize("case", CHANGES)
def test_check_reports_changes(tap, sandbox, case, ipam):
    """CHECK passes after ADD, and reports what has changed since, also without addresses."""
    net = tap if ipam else tap.having(ipam=None)
    result = net.add(sandbox)
    net.check(sandbox, result)
    command, keys, text = CHANGES[case]
    if case == "no address" and not ipam:
        return
    if command:
        sandbox.ip(*command)
    assert net.having(**keys).run("CHECK", sandbox, prev_result=result).error()["msg"].startswith(text)


def test_check_refuses_another_kind(tap, sandbox):
    """CHECK refuses a veth and a tun device, and DEL leaves a veth alone."""
    net = tap.having(ipam=None)
    result = net.having(mac=MAC).add(sandbox)
    sandbox.ip("link", "del", "eth0")
    text = "Error: Container interface eth0 not of type tap"
    sandbox.ip("tuntap", "add", "eth0", "mode", "tun")
    sandbox.ip("link", "set", "eth0", "up")
    interfaces = [{key: value for key, value in result["interfaces"][0].items() if key != "mac"}]
    without_mac = {**result, "interfaces": interfaces}
    assert net.run("CHECK", sandbox, prev_result=without_mac).error()["msg"] == text
    sandbox.ip("link", "del", "eth0")
    sandbox.ip("link", "add", "eth0", "up", "address", MAC, "type", "veth", "peer", "name", "p")
    assert net.run("CHECK", sandbox, prev_result=result).error()["msg"] == text
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo", "eth0", "p"}


@pytest.mark.parametrize("missing", ["device", "namespace", "path", "nothing"])
def test_del_succeeds_without(tap, sandbox, missing):
    """DEL releases the addresses when the device, the namespace or its path is missing, and twice."""
    result = tap.add(sandbox)
    pod = sandbox
    if missing == "device":
        sandbox.ip("link", "del", "eth0")
    elif missing == "namespace":
        sandbox.delete()
    elif missing == "path":
        pod = ""
    for _ in range(2):
        tap.having(mtu=-1, mac="?", owner=-1).delete(pod, result, container_id=sandbox.name)
    assert tap.leases() == {}
    if missing in ("device", "nothing"):
        assert set(links(sandbox)) == {"lo"}


def without_device(net: Network, command: str, pod: Any) -> Outcome:
    """Runs a verb on a host without /dev/net/tun."""
    script = f"mount -t tmpfs none /dev/net && exec {binaries.directory()}/tap"
    env = environment(
        command, CNI_CONTAINERID="c", CNI_NETNS=pod.path, CNI_IFNAME="eth0", CNI_PATH=str(binaries.directory())
    )
    with net.host.entered():
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            env=env,
            input=json.dumps(dict(net.config)).encode(),
            capture_output=True,
            check=False,
        )
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


def test_missing_device_file(tap, sandbox):
    """Without /dev/net/tun ADD and STATUS report the missing module, and nothing changes."""
    net = tap.having(cniVersion="1.1.0")
    before = state(sandbox)
    for command, code in (("ADD", 999), ("STATUS", 50)):
        error = without_device(net, command, sandbox).error()
        assert (error["code"], error["msg"]) == (code, "failed to open /dev/net/tun: no such file or directory")
        assert error["details"] == "the kernel module tun is not loaded: modprobe tun"
    assert state(sandbox) == before
    assert net.leases() == {}


def test_status(tap, tmp_path):
    """STATUS checks the configuration, SELinux, the device file and IPAM, and prints nothing on success."""
    net = tap.having(cniVersion="1.1.0")
    net.run("STATUS").assert_silent()
    (tmp_path / "file").write_text("")
    ipam = {**net.config["ipam"], "dataDir": str(tmp_path / "file")}
    for broken in (net.having(mtu=1), net.having(ipam=ipam), net.having(selinuxContext="a:b:c:s0")):
        assert broken.run("STATUS").error()["code"] == 50
    net.having(ipam=None).run("STATUS").assert_silent()


def test_gc_releases_unlisted_addresses(tap, new_sandbox):
    """GC keeps the listed attachments and releases the addresses of others."""
    net = tap.having(cniVersion="1.1.0")
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    net.add(two)
    listed = [{"containerID": one.name, "ifname": "eth0"}]
    net.having(**{"cni.dev/valid-attachments": listed}).run("GC").assert_silent()
    assert net.leases() == {"10.27.0.2": one.name}


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ({}, []),
        ({"multiQueue": True}, ["multi_queue"]),
        ({"owner": 0, "group": 0}, ["user", "0", "group", "0", "vnet_hdr"]),
    ],
)
def test_device_of_the_reference_plugin(tap, sandbox, keys, arguments):
    """A device made as the reference plugin makes it, with `ip tuntap` or virtio headers, passes CHECK and DEL."""
    net = tap.having(ipam=None, **keys)
    sandbox.ip("tuntap", "add", "mode", "tap", "name", "veth01234567", *arguments)
    sandbox.ip("link", "set", "veth01234567", "name", "eth0")
    sandbox.ip("link", "set", "eth0", "up")
    interface = {"name": "eth0", "mac": shown(sandbox, "eth0")["address"], "sandbox": sandbox.path}
    result = {"cniVersion": "1.0.0", "interfaces": [interface]}
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
