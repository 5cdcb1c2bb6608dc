"""host-device: DEL, GC and rollback bring the device back, whatever happened to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.host_device_network import MAC, files
from tests.support.injection import run_injected
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.netstate import links, state
from tests.support.repair_node import Node


def rename(pod: Namespace, name: str, alias: str) -> None:
    pod.ip("link", "set", "eth0", "down")
    pod.ip("link", "set", "eth0", "name", name)
    pod.ip("link", "set", name, "alias", alias)


@pytest.mark.parametrize("alias", ["hd0", "mine", ""])
def test_device_renamed_in_the_container(moved, host, sandbox, alias):
    """DEL finds a device that the pod renamed, also if the pod changed or deleted its alias."""
    before = state(host)
    result = moved.add(sandbox)
    rename(sandbox, "lan0", alias)
    moved.delete(sandbox, result)
    assert state(host) == before
    assert (moved.leases(), files(moved)) == ({}, [])


def test_used_name_on_the_host(moved, host, sandbox):
    """DEL fails while another interface has the name, the pod keeps the device and its address; then DEL succeeds."""
    result = moved.add(sandbox)
    host.ip("link", "add", "hd0", "type", "bridge")
    before = state(sandbox)
    error = moved.run("DEL", sandbox, prev_result=result).error()
    assert error["msg"] == 'failed to move "hd0" to hostNS: file exists'
    assert state(sandbox) == before
    assert len(moved.leases()) == 2
    moved.check(sandbox, result)
    run_hint(host, error["details"], "ip link set")
    moved.delete(sandbox, result)
    assert "192.0.2.7" in host.ip("address", "show", "hd0")
    assert (moved.leases(), files(moved)) == ({}, [])


def run_hint(host: Namespace, details: str, command: str) -> None:
    """Runs on the host the command in parentheses that begins with `command`."""
    (printed,) = (part.split(")")[0] for part in details.split("(") if part.startswith(command))
    host.run("sh", "-ec", printed)


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
    if as_altname:
        host.ip("link", "property", "add", "dev", "hp0", "altname", "hd0")
    else:
        host.ip("link", "add", "hd0", "up", "type", "bridge")
    before = state(host), state(sandbox)
    error = net.run("DEL", sandbox, prev_result=result).error()
    assert error["msg"] == 'failed to move "hd0" to hostNS: file exists'
    assert 'if "eth0" is the pod\'s own, delete it there; then DEL can be repeated' in error["details"]
    assert (state(host), state(sandbox)) == before
    run_hint(host, error["details"], "ip link")
    net.delete(sandbox, result)
    assert (links(host)["hd0"]["address"], set(links(sandbox))) == (MAC, {"lo"})


def test_altname_of_a_device_without_file(moved, host, sandbox, reference):
    """DEL recognizes a device that the reference plugin moved and that the configuration selects by an altname."""
    net = moved.having(cniVersion="1.0.0", ipam=None)
    host.ip("link", "property", "add", "dev", "hd0", "altname", "lab0")
    result = replace(net, bin_dir=reference, path=str(reference)).add(sandbox)
    net.having(device="lab0").delete(sandbox, result)
    assert links(host)["hd0"]["address"] == MAC


def leave_as_the_kernel(host: Namespace, sandbox: Namespace, name: str) -> None:
    """Does what the kernel does with a physical device whose namespace is deleted: moves it to the host, down."""
    if name != "eth0":
        sandbox.ip("link", "set", "eth0", "down")
        sandbox.ip("link", "set", "eth0", "name", name)
    sandbox.ip("link", "set", name, "netns", host.name)
    sandbox.delete()


@pytest.mark.parametrize("name", ["eth0", "dev21"])
@pytest.mark.parametrize("netns", ["path", "empty"])
def test_device_that_the_kernel_moved_back(moved, host, sandbox, name, netns):
    """After a crash of the pod DEL renames and restores the device that the kernel moved to the host."""
    before = state(host)
    result = moved.add(sandbox)
    path = sandbox.path
    leave_as_the_kernel(host, sandbox, name)
    moved.delete(path if netns == "path" else "", result, container_id=sandbox.name)
    assert state(host) == before
    assert (moved.leases(), files(moved)) == ({}, [])


def test_gc_brings_back_devices_of_deleted_containers(moved, host, sandbox):
    """GC restores the device of a container whose namespace no longer exists, and releases its addresses."""
    before = state(host)
    moved.add(sandbox)
    leave_as_the_kernel(host, sandbox, "eth0")
    moved.gc()
    assert state(host) == before
    assert (moved.leases(), files(moved)) == ({}, [])


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


def test_del_without_add_touches_nothing(moved, host, sandbox):
    """DEL of a container that was never attached succeeds, and leaves its interfaces alone."""
    sandbox.ip("link", "add", "eth0", "type", "bridge")
    before = state(host), state(sandbox)
    moved.delete(sandbox)
    moved.having(device=None, runtimeConfig={"deviceID": "0000:ff:00.0"}).delete(sandbox)
    assert (state(host), state(sandbox)) == before


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("number", range(1, 12))
def test_failed_exchange(moved, host, sandbox, number):
    """If the kernel does not take a request, ADD moves the device back, or DEL can be repeated."""
    before = state(host), state(sandbox)
    injection = f"sendto:error=ENOBUFS:when={number}"
    outcome = run_injected(host, "host-device", "ADD", moved.config, sandbox, injection)
    if outcome.status:
        assert "no buffer space available" in outcome.error()["msg"]
        assert (state(host), state(sandbox)) == before
        assert (moved.leases(), files(moved)) == ({}, [])
        moved.add(sandbox)
    run_injected(host, "host-device", "DEL", moved.config, sandbox, injection)
    moved.delete(sandbox)
    assert set(links(host)) == {"lo", "hd0", "hp0"}
    assert files(moved) == []


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
    assert state(host) == before
    assert (moved.leases(), files(moved)) == ({}, [])
