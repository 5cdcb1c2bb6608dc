"""`podwire ipam` lists and verifies addresses, and releases only those of containers that are no longer running."""

import json
import os
import re
import time
from ipaddress import ip_address

import pytest

from ipam.host_local.store import ReservationStore
from podwire.layers import Layer
from podwire.node import release
from podwire.node.inspection import read_snapshot
from podwire.node.records import Directories
from tests.netns.conftest import NFTABLES
from tests.support.attaching import address
from tests.support.invocation import finish, run_plugin, start_plugin
from tests.support.namespaces import delete_and_wait
from tests.support.node import NET, Node


@pytest.fixture(params=[NFTABLES])
def node(request, bin_dir, host, tmp_path):
    """A node with a list of all plugins, and a range of twenty addresses."""
    twenty = {"rangeStart": f"{NET}.2", "rangeEnd": f"{NET}.21"}
    return Node(host, tmp_path / "node", backend=request.param, range_keys=twenty)


def reserve(node, name, content, *, old=True):
    """Writes a reservation by hand, `old` with a time two minutes ago; returns its path."""
    path = node.store / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if old:
        os.utime(path, (time.time() - 120,) * 2)
    return path


def states(node):
    """Returns the state of each address that `list` prints, without `last_reserved`."""
    done = node.tool("ipam", "list", "--json")
    assert done.status == 0, done
    return {line["address"]: line["state"] for line in done.json if line["state"] != "last_reserved"}


def kinds(node):
    """Returns the findings of `verify`, as (kind, address)."""
    done = node.tool("ipam", "verify", "--json")
    findings = {(finding["kind"], finding["address"]) for finding in done.json["findings"]}
    assert done.status == bool(findings), done
    return findings


def test_list_shows_the_state_of_every_file(node, sandbox, new_sandbox):
    """The list has addresses of running and stopped containers, remarks, residue, and files without an owner."""
    stopped = new_sandbox()
    running, released_address = address(node.attach(sandbox, name="web")), address(node.attach(stopped))
    delete_and_wait(stopped, node.host)
    reserve(node, f"{NET}.15", b"kept for the printer")
    reserve(node, f"{NET}.16", b"")
    reserve(node, f"{NET}.17", b" \n")
    reserve(node, f"{NET}.18", b"unknown\r\neth0")
    reserve(node, f"{NET}.19", b"unknown\r\neth0", old=False)
    assert states(node) == {
        running: "running",
        released_address: "gone",
        f"{NET}.15": "remark",
        f"{NET}.16": "empty",
        f"{NET}.17": "foreign",
        f"{NET}.18": "new",  # its ADD may still be running, since the same container has a new reservation
        f"{NET}.19": "new",
    }
    (line,) = [line for line in node.tool("ipam", "list", "--json").json if line["address"] == running][:1]
    assert (line["containerID"], line["ifname"], line["pod"]) == (sandbox.name, "eth0", "default/web")
    assert abs(time.time() - os.stat(node.store / running).st_mtime) < 300
    assert line["since"].startswith(time.strftime("%Y-%m-", time.gmtime()))
    assert running in node.tool("ipam", "list").stdout


def test_verify_reports_each_fault(node, sandbox, new_sandbox):
    """Stale, unreserved and reassigned addresses, foreign files and full ranges have a fix; remarks are no fault."""
    stopped, unreserved, shared = new_sandbox(), new_sandbox(), new_sandbox()
    node.attach(sandbox)
    released_address, lost, reassigned = (address(node.attach(pod)) for pod in (stopped, unreserved, shared))
    delete_and_wait(stopped, node.host)
    (node.store / lost).unlink()
    reserve(node, reassigned, f"{sandbox.name}\r\neth0".encode())
    (node.store / "notes.txt").write_text("mine")
    reserve(node, f"{NET}.15", b"kept for the printer")
    reserve(node, f"{NET}.16", b"")
    reserve(node, f"{NET}.17", b"\n")
    expected = {("gone", released_address), ("not reserved", lost), ("of another", reassigned), ("foreign", "")}
    assert kinds(node) == expected | {("foreign", f"{NET}.17")}
    for number in range(7, 22):
        reserve(node, f"{NET}.{number}", b"kept by hand")
    assert ("full", "") in kinds(node)
    for finding in node.tool("ipam", "verify", "--json").json["findings"]:
        assert finding["cure"], finding


def test_verify_reports_an_address_of_two_pods(node, sandbox, new_sandbox):
    """Two running attachments with one address are reported."""
    other = new_sandbox()
    result = node.attach(sandbox)
    node.attach(other)
    entry = json.loads(node.entry(other).read_text())
    entry["result"]["ips"] = result["ips"]
    node.entry(other).write_text(json.dumps(entry))
    assert ("twice", address(result)) in kinds(node)


def test_verify_reports_an_inconsistent_index(node, sandbox):
    """A reservation whose owner was edited by hand is reported, since it differs from the index."""
    allocated = address(node.attach(sandbox))
    path = node.store / allocated
    path.write_bytes(b"another\r\neth0")
    assert ("index", allocated) in kinds(node)


def test_gone_releases_only_stale_addresses(node, sandbox, new_sandbox):
    """--gone releases the addresses of stopped containers, and no others."""
    stopped = new_sandbox()
    running, released_address = address(node.attach(sandbox)), address(node.attach(stopped))
    delete_and_wait(stopped, node.host)
    reserve(node, f"{NET}.15", b"kept for the printer")
    reserve(node, f"{NET}.19", b"unknown\r\neth0", old=False)
    done = node.tool("ipam", "free", "--gone", "podnet", "--json")
    assert done.status == 0
    assert [item["address"] for item in done.json["freed"]] == [released_address]
    assert done.json["kept"] == []
    assert states(node) == {running: "running", f"{NET}.15": "remark", f"{NET}.19": "new"}
    # As after DEL, the index is correct, so no scan is necessary.
    with ReservationStore(str(node.store.parent), "podnet").locked() as held:
        assert held.find(f"{stopped.name}\r\neth0".encode()) == []
        assert held.find(f"{sandbox.name}\r\neth0".encode()) == [running]


def test_address_of_a_running_container_is_kept(node, sandbox):
    """The address of a running container is kept, with a reason and exit status 1, and released only by --force."""
    pod_address = address(node.attach(sandbox))
    for words in ((pod_address,), (pod_address, "podnet"), ("--container", sandbox.name)):
        done = node.tool("ipam", "free", *words)
        assert done.status == 1, done
        assert pod_address in done.stdout
    assert states(node) == {pod_address: "running"}
    assert node.tool("ipam", "free", pod_address, "--force").status == 0
    assert states(node) == {}
    # It was released as by DEL, so the index is still valid.
    index = ReservationStore(str(node.store.parent), "podnet").open_index()
    assert index.complete
    index.close()


def test_configured_address_without_cache_entry_is_kept(node, sandbox):
    """An address that is configured in a namespace is kept, whatever the cache contains and however old it is."""
    pod_address = address(node.attach(sandbox))
    os.utime(node.store / pod_address, (time.time() - 120,) * 2)
    node.entry(sandbox).unlink()
    done = node.tool("ipam", "free", pod_address)
    assert done.status == 1
    assert "configured on eth0" in done.stdout
    node.write_entry(sandbox, {}, {})
    entry = json.loads(node.entry(sandbox).read_text())
    node.entry(sandbox).write_text(json.dumps({**entry, "netns": "/run/netns/gone"}))
    assert node.tool("ipam", "free", pod_address).status == 1
    assert node.tool("ipam", "free", "--gone").status == 0
    assert (node.store / pod_address).exists()


@pytest.mark.parametrize("text", ["", '{"cniVersion": "1.0.0"}'], ids=["truncated", "before CNI 0.8"])
def test_address_of_an_unreadable_cache_entry_is_kept(node, sandbox, text):
    """An address that is not configured is kept while the cache has an unreadable file of its container."""
    node.attach(sandbox)
    path = reserve(node, f"{NET}.177", b"unread\r\neth0")
    entry = node.directory / "results" / f"{node.name}-unread-eth0"
    entry.write_text(text)
    done = node.tool("ipam", "free", path.name)
    assert done.status == 1, done
    assert "not everything could be inspected" in done.stdout
    assert node.tool("ipam", "free", "--gone").status == 0
    assert "reservation" not in {leak["kind"] for leak in node.show()["leaks"]}
    entry.unlink()
    assert node.tool("ipam", "free", "--gone").status == 0
    assert not path.exists()


def test_address_without_a_reservation_is_an_error(node):
    """An address without a reservation is exit status 3, and a command line without an address 2."""
    reserve(node, f"{NET}.15", b"kept for the printer")
    for words, status in (
        ((f"{NET}.99",), 3),
        (("--container", "absent"), 3),
        ((), 2),
        (("--gone", "podnet", "more"), 2),
    ):
        done = node.tool("ipam", "free", *words)
        assert (done.status, done.stdout) == (status, ""), words
        assert done.stderr.startswith("podwire: "), words


def test_addresses_of_parallel_adds_are_kept(node, new_sandbox, sandbox):
    """While ADDs reserve addresses of stopped containers, --gone releases none of the new reservations.

    In each round stale addresses fill most of the range; ADDs and --gone run in parallel.
    """
    node.attach(sandbox)
    ipam = {**node.config["plugins"][0]["ipam"]}
    config = {"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": ipam}
    for round_number in range(3):
        for number in range(4, 20):
            reserve(node, f"{NET}.{number}", f"dead-{round_number}-{number}\r\neth0".encode())
        names = [f"new-{round_number}-{number}" for number in range(4)]
        how = {"netns": "/run/netns/x", "host": node.host}
        adds = [start_plugin("host-local", "ADD", container_id=name, **how) for name in names]
        done = None
        results = []
        for number, process in enumerate(adds):
            if number == 2:
                done = node.tool("ipam", "free", "--gone", "--json")
            results.append(finish(process, config))
        assert done
        freed = {item["containerID"] for item in done.json["freed"]}
        assert freed.isdisjoint(names)
        ends = zip(names, results, strict=True)
        allocated = {name: address(result.json) for name, result in ends if result.status == 0}
        assert allocated
        assert len(set(allocated.values())) == len(allocated)
        for name, pod_address in allocated.items():
            assert (node.store / pod_address).read_bytes() == f"{name}\r\neth0".encode()
            assert ip_address(pod_address)
            (node.store / pod_address).unlink()


def read_reservation(node, path):
    """Returns a snapshot of the node, and the reservation of a file in it."""
    where = Directories(str(node.directory / "net.d"), (Layer(str(node.directory)),), str(node.store.parent))
    snapshot = read_snapshot(where, rules=False)
    reservations = (item for pool in snapshot.records.pools for item in pool.reservations)
    return snapshot, [item for item in reservations if item.file.name == path.name]


def test_reservation_that_changed_meanwhile_is_kept(node, sandbox):
    """An address that was reserved anew since the snapshot is kept, even with --force."""
    node.attach(sandbox)
    path = reserve(node, f"{NET}.15", b"dead\r\neth0")
    with node.host.entered():
        snapshot, chosen = read_reservation(node, path)
        assert release.refusal_reason(snapshot, chosen[0]) == ""
        path.unlink()
        reserve(node, f"{NET}.15", b"dead\r\neth0", old=False)
        for force in (False, True):
            (outcome,) = release.release(snapshot, chosen, force=force)
            assert "anew" in outcome.reason
    assert path.exists()


def test_container_that_appeared_in_the_cache_meanwhile_is_kept(node, sandbox, new_sandbox):
    """An address whose ADD ended between snapshot and release is kept, since its container is in the cache."""
    node.attach(sandbox)
    other = new_sandbox()
    path = reserve(node, f"{NET}.15", f"{other.name}\r\neth0".encode())
    with node.host.entered():
        snapshot, chosen = read_reservation(node, path)
        node.write_entry(other, {}, {})
        (outcome,) = release.release(snapshot, chosen, force=False)
    assert "cache meanwhile" in outcome.reason
    assert path.exists()


def test_fix_of_a_full_range_releases_only_stale_addresses(node, sandbox, new_sandbox):
    """The commands in the error of ADD release the address of a stopped pod and keep that of a running pod."""
    lost = new_sandbox()
    kept, freed = address(node.attach(sandbox)), address(node.attach(lost))
    delete_and_wait(lost, node.host)
    for number in range(2, 22):
        if f"{NET}.{number}" not in (kept, freed):
            reserve(node, f"{NET}.{number}", b"kept for the printer")
    ipam = node.config["plugins"][0]["ipam"]
    config = {"cniVersion": "1.1.0", "name": node.name, "ipam": ipam}
    details = run_plugin("host-local", "ADD", config, netns=new_sandbox(), host=node.host).error()["details"]
    commands = re.findall(r"podwire (ipam (?:list|free --gone) \S+)", details)
    assert commands == [f"ipam list {node.name}", f"ipam free --gone {node.name}"]
    assert "file" not in details
    for command in commands:
        assert node.tool(*command.split()).status == 0
    assert kept in states(node)
    assert freed not in states(node)
