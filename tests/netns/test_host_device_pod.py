"""host-device: DEL restores the device, and changes nothing else, whatever names and flags the pod has set."""

from __future__ import annotations

import json

import pytest

from tests.support.host_device_network import files
from tests.support.injection import run_injected
from tests.support.namespaces import Namespace
from tests.support.netstate import links, shown, state


def create_in_pod(pod: Namespace, name: str, alias: str) -> None:
    """Creates a veth in the pod, with both ends there."""
    pod.ip("link", "add", name, "type", "veth", "peer", "name", "inner0")
    pod.ip("link", "set", name, "alias", alias)


@pytest.mark.parametrize("name", ["eth0", "foo"])
@pytest.mark.parametrize("renamed", [True, False])
def test_repeated_del_ignores_interfaces_of_the_pod(moved, host, sandbox, name, renamed):
    """A repeated DEL succeeds, and does not move an interface that the pod created with the device's name as alias."""
    moved.delete(sandbox, moved.add(sandbox))
    create_in_pod(sandbox, name, "hd0")
    if renamed:
        host.ip("link", "set", "hd0", "down")  # before Linux 6.4 an interface that is up cannot be renamed
        host.ip("link", "set", "hd0", "name", "other0")
    before = state(host), state(sandbox)
    moved.delete(sandbox)
    assert (state(host), state(sandbox)) == before


@pytest.mark.parametrize("keys", [{"runtimeConfig": {"deviceID": "0000:ff:00.0"}}, {"hwaddr": "02:00:00:00:00:d0"}])
def test_del_without_file_ignores_virtual_interfaces(moved, host, sandbox, keys):
    """DEL without a file does not move a virtual interface with an alias, which cannot be the configured device.

    `deviceID` selects physical devices; the other interface's MAC address is not `hwaddr`.
    """
    sandbox.ip("link", "add", "eth0", "type", "bridge")
    sandbox.ip("link", "set", "eth0", "alias", "eth9")
    before = state(host), state(sandbox)
    moved.having(device=None, **keys).delete(sandbox)
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
    assert state(host) == before
    assert files(moved) == []


def test_altname_is_the_interface_name(moved, host, sandbox):
    """ADD moves a device with an altname that is CNI_IFNAME; DEL and the rollback of a failed ADD restore it."""
    host.ip("link", "property", "add", "dev", "hd0", "altname", "lab0", "altname", "eth0")
    before = state(host)
    moved.having(ipam={"type": "no-such-ipam"}).run("ADD", sandbox).error()
    assert state(host) == before
    result = moved.add(sandbox)
    assert links(sandbox)["eth0"]["altnames"] == ["lab0"]
    moved.delete(sandbox, result)
    assert state(host) == before
    assert files(moved) == []


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


def test_failed_del_keeps_altnames(moved, host, sandbox):
    """If another interface has the device's name as altname, DEL fails, changes nothing and prints the fix."""
    moved.add(sandbox)
    sandbox.ip("link", "property", "add", "dev", "eth0", "altname", "cni0")
    host.ip("link", "property", "add", "dev", "hp0", "altname", "hd0")
    before = state(host), state(sandbox)
    error = moved.run("DEL", sandbox).error()
    assert error["msg"] == 'failed to move "hd0" to hostNS: file exists'
    assert 'ip link property del dev "hp0" altname "hd0"' in error["details"]
    assert (state(host), state(sandbox)) == before
    host.ip("link", "property", "del", "dev", "hp0", "altname", "hd0")
    moved.delete(sandbox)
    assert "altnames" not in shown(host, "hd0")


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


def test_del_without_namespace_of_a_running_pod(moved, host, sandbox):
    """DEL without CNI_NETNS keeps the file while the namespace exists, so that the next DEL restores the device."""
    before = state(host)
    moved.add(sandbox)
    outcome = moved.run("DEL", "", container_id=sandbox.name)
    outcome.assert_silent()
    assert '"hd0" is not on the host yet' in outcome.stderr
    moved.delete(sandbox)
    assert state(host) == before
    assert files(moved) == []


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


def test_device_in_a_third_namespace(moved, host, sandbox, new_sandbox):
    """If the pod moved the device to a third namespace, DEL keeps its file; a later DEL restores it on the host."""
    before = state(host)
    moved.add(sandbox)
    nested = new_sandbox()
    sandbox.ip("link", "set", "eth0", "netns", nested.name)
    outcome = moved.run("DEL", sandbox)
    outcome.assert_silent()
    assert '"hd0" is not on the host yet' in outcome.stderr
    assert files(moved) == [f"{sandbox.name}:eth0.json"]
    nested.ip("link", "set", "eth0", "netns", host.name)
    moved.delete(sandbox)
    assert state(host) == before
    assert files(moved) == []


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
