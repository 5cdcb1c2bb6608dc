"""host-device: DEL, GC and rollback restore the device and nothing else, whatever pod or kernel did to it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.host_device_network import MAC, files
from tests.support.injection import run_injected
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.netstate import links, shown, state
from tests.support.repair_node import Node


@pytest.mark.parametrize("alias", ["hd0", "mine", ""])
def test_device_renamed_in_the_container(moved, host, sandbox, alias):
    """DEL finds a device that the pod renamed, also if the pod changed or deleted its alias."""
    before = state(host)
    result = moved.add(sandbox)
    sandbox.ip("link", "set", "eth0", "down")
    sandbox.ip("link", "set", "eth0", "name", "lan0", "alias", alias)
    moved.delete(sandbox, result)
    assert (state(host), moved.leases(), files(moved)) == (before, {}, [])


@pytest.mark.every_case
@pytest.mark.parametrize("as_altname", [False, True])
def test_used_name_on_the_host(moved, host, sandbox, as_altname):
    """DEL fails while another interface has the name, changes nothing and prints the fix; then DEL succeeds."""
    result = moved.add(sandbox)
    sandbox.ip("link", "property", "add", "dev", "eth0", "altname", "cni0")
    use_name(host, as_altname)
    before = state(host), state(sandbox)
    error = moved.run("DEL", sandbox, prev_result=result).error()
    assert error["msg"] == 'failed to move "hd0" to hostNS: file exists'
    assert (state(host), state(sandbox), len(moved.leases())) == (*before, 2)
    moved.check(sandbox, result)
    run_hint(host, error["details"])
    moved.delete(sandbox, result)
    assert "192.0.2.7" in host.ip("address", "show", "hd0")
    assert "altnames" not in shown(host, "hd0")
    assert (moved.leases(), files(moved)) == ({}, [])


def use_name(host: Namespace, as_altname: bool) -> None:
    """Gives another interface of the host the device's name."""
    if as_altname:
        host.ip("link", "property", "add", "dev", "hp0", "altname", "hd0")
    else:
        host.ip("link", "add", "hd0", "up", "type", "bridge")


def run_hint(host: Namespace, details: str) -> None:
    """Runs on the host the command of `ip` in parentheses."""
    (printed,) = (part.split(")")[0] for part in details.split("(") if part.startswith("ip link"))
    host.run("sh", "-ec", printed)


@pytest.mark.every_case
@pytest.mark.parametrize("keys", [{}, {"device": None, "hwaddr": MAC}, {"device": "lab0"}])
def test_renamed_network(moved, host, sandbox, keys):
    """DEL with another network name brings the device back if its configuration selects it, by an altname, too."""
    host.ip("link", "property", "add", "dev", "hd0", "altname", "lab0")
    before = state(host)
    result = moved.having(name="before").add(sandbox)
    moved.having(name="after", ipam=None, **keys).delete(sandbox, result)
    assert (state(host), files(moved)) == (before, [])


@pytest.mark.parametrize("keys", [{}, {"kernelpath": "/sys/devices/x"}, {"runtimeConfig": {"deviceID": "m.sf.1"}}])
def test_renamed_network_without_the_device(moved, host, sandbox, keys):
    """DEL with another network name fails if its configuration does not answer whether it is its device."""
    result = moved.having(name="before", ipam=None).add(sandbox)
    before = state(host), state(sandbox), files(moved)
    error = moved.having(name="after", ipam=None, device=None, **keys).run("DEL", sandbox).error()
    assert '"eth0" in the container is "hd0", which network "before" moved' in error["msg"]
    assert 'run DEL of network "before"' in error["details"]
    assert (state(host), state(sandbox), files(moved)) == before
    moved.having(name="before", ipam=None).delete(sandbox, result)


@pytest.mark.parametrize("as_altname", [False, True])
def test_used_name_of_a_device_without_file(moved, host, sandbox, reference, as_altname):
    """DEL of a device that the reference plugin moved fails while the host uses its name; the printed fix helps."""
    net = moved.having(cniVersion="1.0.0", ipam=None)
    result = replace(net, bin_dir=reference, path=str(reference)).add(sandbox)
    use_name(host, as_altname)
    before = state(host), state(sandbox)
    error = net.run("DEL", sandbox, prev_result=result).error()
    assert error["msg"] == 'failed to move "hd0" to hostNS: file exists'
    assert 'if "eth0" is the pod\'s own, delete it there; then DEL can be repeated' in error["details"]
    assert (state(host), state(sandbox)) == before
    run_hint(host, error["details"])
    net.delete(sandbox, result)
    assert (links(host)["hd0"]["address"], set(links(sandbox))) == (MAC, {"lo"})


def leave_as_the_kernel(host: Namespace, sandbox: Namespace, name: str) -> None:
    """Does what the kernel does with a physical device whose namespace is deleted: moves it to the host, down."""
    if name != "eth0":
        sandbox.ip("link", "set", "eth0", "down")
        sandbox.ip("link", "set", "eth0", "name", name)
    sandbox.ip("link", "set", name, "netns", host.name)
    sandbox.delete()


@pytest.mark.every_case
@pytest.mark.parametrize("name", ["eth0", "dev21"])
@pytest.mark.parametrize("way", ["DEL", "DEL without path", "GC"])
def test_device_that_the_kernel_moved_back(moved, host, sandbox, name, way):
    """After a crash of the pod DEL and GC rename and restore the device that the kernel moved to the host."""
    before = state(host)
    result = moved.add(sandbox)
    path = sandbox.path
    leave_as_the_kernel(host, sandbox, name)
    if way == "GC":
        moved.gc()
    else:
        moved.delete(path if way == "DEL" else "", result, container_id=sandbox.name)
    assert (state(host), moved.leases(), files(moved)) == (before, {}, [])


def test_file_of_an_earlier_boot(moved, host, sandbox):
    """DEL deletes the file of a device that was moved before a reboot: since then the device is on the host."""
    result = moved.add(sandbox)
    path = Path(moved.config["dataDir"], *files(moved))
    path.write_text(json.dumps({**json.loads(path.read_text()), "life": "earlier 1 1"}))
    sandbox.ip("link", "set", "eth0", "down")
    sandbox.ip("link", "set", "eth0", "name", "hd0", "netns", host.name)
    moved.delete(sandbox, result)
    assert files(moved) == []


@pytest.mark.parametrize("valid", [True, False])
def test_gc_leaves_the_device_of_a_running_container(moved, sandbox, valid):
    """GC does not move the device of a container whose namespace exists, listed or not."""
    result = moved.add(sandbox)
    moved.having(ipam=None).gc(*([sandbox] if valid else []))
    assert "eth0" in links(sandbox)
    moved.delete(sandbox, result)


def test_virtual_device_deleted_with_its_namespace(moved, host, sandbox):
    """DEL succeeds and releases the addresses if the kernel deleted the device with the namespace."""
    result = moved.add(sandbox)
    path = sandbox.path
    sandbox.delete()
    moved.delete(path, result, container_id=sandbox.name)
    assert (moved.leases(), files(moved)) == ({}, [])


def test_repair_brings_back_devices_of_deleted_containers(moved, host, sandbox, new_sandbox, tmp_path):
    """`podwire repair` restores the device of a crashed pod, before the runtime's DEL; a dry run only reports it."""
    before = state(host)
    config = {key: value for key, value in moved.config.items() if key not in ("name", "cniVersion")}
    node = Node(host, NetworkList("net", "1.1.0", (config,)), tmp_path / "cni")
    result = node.add(sandbox)
    container_id, path, running = sandbox.name, sandbox.path, new_sandbox()
    node.write_entry(running.path, running.name, result)  # proves that the runtime's directory is visible here
    leave_as_the_kernel(host, sandbox, "eth0")
    assert 'restore the device "hd0"' in node.tool("--dry-run").stdout.decode()
    assert "eth0" in links(host)
    assert node.repair() == {container_id: "gone", running.name: "fine"}
    assert state(host) == before
    moved.delete(path, result, container_id=container_id)
    assert (state(host), moved.leases(), files(moved)) == (before, {}, [])


@pytest.mark.parametrize("name", ["eth0", "foo"])
@pytest.mark.parametrize("renamed", [True, False])
def test_repeated_del_ignores_interfaces_of_the_pod(moved, host, sandbox, name, renamed):
    """A repeated DEL succeeds, and does not move an interface that the pod created with the device's name as alias."""
    moved.delete(sandbox, moved.add(sandbox))
    sandbox.ip("link", "add", name, "type", "veth", "peer", "name", "inner0")
    sandbox.ip("link", "set", name, "alias", "hd0")
    if renamed:
        host.ip("link", "set", "hd0", "down")  # before Linux 6.4 an interface that is up cannot be renamed
        host.ip("link", "set", "hd0", "name", "other0")
    before = state(host), state(sandbox)
    moved.delete(sandbox)
    assert (state(host), state(sandbox)) == before


@pytest.mark.parametrize(
    "keys",
    [{"device": "hd0"}, {"runtimeConfig": {"deviceID": "0000:ff:00.0"}}, {"hwaddr": "02:00:00:00:00:d0"}],
)
@pytest.mark.parametrize("alias", ["", "eth9"])
@pytest.mark.every_case
def test_del_without_add(moved, host, sandbox, keys, alias):
    """DEL without a file leaves a virtual interface of the pod alone, also one with an alias: it is not the device.

    `deviceID` selects physical devices; the other interface's MAC address is not `hwaddr`.
    """
    sandbox.ip("link", "add", "eth0", "type", "bridge")
    sandbox.ip("link", "set", "eth0", "alias", alias)
    before = state(host), state(sandbox)
    moved.having(**{"device": None, **keys}).delete(sandbox)
    assert (state(host), state(sandbox)) == before


def test_networks_with_the_same_interface(moved, host, sandbox):
    """After a failed ADD, DEL of its network does not move the device that another network moved to the pod."""
    host.ip("link", "add", "b0", "type", "bridge")
    first, second = moved.having(name="na", ipam=None), moved.having(name="nb", device="b0", ipam=None)
    result = first.add(sandbox)
    sandbox.ip("link", "set", "eth0", "down")
    sandbox.ip("link", "set", "eth0", "name", "lan0")
    before = state(host), state(sandbox), files(moved)
    assert second.run("ADD", sandbox).error()["msg"].endswith("to container NS: file exists")
    second.delete(sandbox)
    second.having(device=None, runtimeConfig={"deviceID": "0000:ff:00.0"}).delete(sandbox)
    assert (state(host), state(sandbox), files(moved)) == before
    first.delete(sandbox, result)
    assert {"hd0", "b0"} <= set(links(host))
    assert files(moved) == []


@pytest.mark.parametrize("name", ["hp0", "hd0", "cni0"])
@pytest.mark.parametrize("crashed", [True, False])
def test_altnames_of_the_pod(moved, host, sandbox, name, crashed):
    """DEL deletes altnames that the pod added and adds those that it deleted, also if its namespace was deleted."""
    host.ip("link", "property", "add", "dev", "hd0", "altname", "lab0", "altname", "lab1")
    before = state(host)
    result = moved.add(sandbox)
    path = sandbox.path
    if not crashed:
        sandbox.ip("link", "property", "add", "dev", "eth0", "altname", name)
    sandbox.ip("link", "property", "del", "dev", "eth0", "altname", "lab1")
    if crashed:
        sandbox.ip("link", "set", "eth0", "netns", host.name)
        host.ip("link", "property", "add", "dev", "eth0", "altname", "cni0" if name == "hp0" else name)
        sandbox.delete()
    moved.delete(path, result, container_id=sandbox.name)
    assert (state(host), files(moved)) == (before, [])


def test_altname_is_the_interface_name(moved, host, sandbox):
    """ADD moves a device with an altname that is CNI_IFNAME; DEL and the rollback of a failed ADD restore it."""
    host.ip("link", "property", "add", "dev", "hd0", "altname", "lab0", "altname", "eth0")
    before = state(host)
    moved.having(ipam={"type": "no-such-ipam"}).run("ADD", sandbox).error()
    assert state(host) == before
    result = moved.add(sandbox)
    assert links(sandbox)["eth0"]["altnames"] == ["lab0"]
    moved.delete(sandbox, result)
    assert (state(host), files(moved)) == (before, [])


def test_altname_in_use_in_the_container(moved, host, sandbox):
    """If an interface of the container has an altname of the device, ADD names it, and the printed command helps."""
    host.ip("link", "property", "add", "dev", "hd0", "altname", "inner0")
    sandbox.ip("link", "add", "inner0", "type", "bridge")
    before = state(host), state(sandbox)
    outcome = moved.run("ADD", sandbox)
    if outcome.status == 0:
        pytest.skip("before Linux 6.6 the kernel accepted altnames twice")
    error = outcome.error()
    assert (state(host), state(sandbox)) == before
    reason, command = error["details"].rsplit(": ", 1)
    assert 'has the name "inner0", which is an altname of "hd0"' in reason
    host.run("sh", "-ec", command)
    moved.delete(sandbox, moved.add(sandbox))


def test_interface_name_is_an_altname_in_the_container(moved, sandbox):
    """If CNI_IFNAME is an altname of an interface of the container, ADD names that interface."""
    sandbox.ip("link", "add", "lan0", "type", "bridge")
    sandbox.ip("link", "property", "add", "dev", "lan0", "altname", "eth0")
    assert '"eth0" is an altname of "lan0"' in moved.run("ADD", sandbox).error()["details"]


@pytest.mark.parametrize("on_host", [True, False])
def test_flags_of_the_pod(moved, host, sandbox, on_host):
    """DEL restores flags, queue length and group, whether the pod set or cleared them."""
    switches = ("arp", "promisc", "allmulticast", "multicast")
    changed = [*sum(zip(switches, ("off", "on", "on", "off"), strict=True), ()), "txqueuelen", "5", "group", "77"]
    cleared = [*sum(zip(switches, ("on", "off", "off", "on"), strict=True), ()), "txqueuelen", "1000", "group", "0"]
    if on_host:
        host.ip("link", "set", "hd0", *changed)
    before = state(host)
    moved.add(sandbox)
    sandbox.ip("link", "set", "eth0", *(cleared if on_host else changed))
    moved.delete(sandbox)
    assert state(host) == before


def test_del_leaves_another_interface_of_the_name(moved, host, sandbox):
    """A pod cannot make DEL change the host's interface that got the device's name, by choosing its MAC address."""
    moved.add(sandbox)
    host.ip("link", "add", "hd0", "address", "02:00:00:00:00:77", "type", "veth", "peer", "name", "hd9")
    sandbox.ip("link", "set", "eth0", "address", "02:00:00:00:00:77")
    assert moved.run("DEL", sandbox).error()["msg"] == 'failed to move "hd0" to hostNS: file exists'
    sandbox.ip("link", "del", "eth0")
    before = state(host)
    moved.delete(sandbox)
    assert state(host) == before


@pytest.mark.every_case
@pytest.mark.parametrize("nested", [True, False])
def test_device_that_is_not_on_the_host(moved, host, sandbox, new_sandbox, nested):
    """DEL keeps the file of a device that the pod moved to a third namespace, or has if CNI_NETNS is empty."""
    before = state(host)
    moved.add(sandbox)
    third = new_sandbox()
    if nested:
        sandbox.ip("link", "set", "eth0", "netns", third.name)
    outcome = moved.run("DEL", sandbox if nested else "", container_id=sandbox.name)
    outcome.assert_silent()
    assert '"hd0" is not on the host yet' in outcome.stderr
    assert files(moved) == [f"{sandbox.name}:eth0.json"]
    if nested:
        third.ip("link", "set", "eth0", "netns", host.name)
    moved.delete(sandbox)
    assert (state(host), files(moved)) == (before, [])


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("number", range(3, 13))
def test_killed_del(moved, host, sandbox, number):
    """The next DEL completes one that was killed at any request, also if the kernel changed the device's index."""
    before = links(host)["hd0"]
    moved.add(sandbox)
    sandbox.ip("link", "set", "eth0", "address", "02:00:00:00:00:77")
    (path,) = (f"{moved.config['dataDir']}/{name}" for name in files(moved))
    with open(path) as file:
        index = json.load(file)["containerIndex"]
    host.ip("link", "add", "x0", "index", str(index), "type", "bridge")
    run_injected(host, "host-device", "DEL", moved.config, sandbox, f"sendto:signal=KILL:when={number}")
    moved.delete(sandbox)
    assert links(host)["hd0"] == before
    assert files(moved) == []
