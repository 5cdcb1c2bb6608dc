"""`podwire ipam` tells who has which address, what is wrong, and frees those of the dead, never those of the living."""

import json
import os
import re
import time
from ipaddress import ip_address

import pytest

from ipam.host_local.store import Store
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
    """A node with the whole chain, its range of twenty addresses."""
    twenty = {"rangeStart": f"{NET}.2", "rangeEnd": f"{NET}.21"}
    return Node(host, tmp_path / "node", backend=request.param, range_keys=twenty)


def reserve(node, name, content, *, old=True):
    """Writes a reservation by hand, of two minutes ago or of now; returns its path."""
    path = node.store / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if old:
        os.utime(path, (time.time() - 120,) * 2)
    return path


def states(node):
    """Returns the state of each address that `list` tells, without where the next search begins."""
    done = node.tool("ipam", "list", "--json")
    assert done.status == 0, done
    return {line["address"]: line["state"] for line in done.json if line["state"] != "last_reserved"}


def kinds(node):
    """Returns what `verify` finds, by address."""
    done = node.tool("ipam", "verify", "--json")
    found = {(finding["kind"], finding["address"]) for finding in done.json["findings"]}
    assert done.status == bool(found), done
    return found


def test_every_file_is_what_it_is(node, sandbox, new_sandbox):
    """The list tells addresses of the living, the dead, of remarks, of residue and of files that name nobody."""
    dead = new_sandbox()
    living, gone = address(node.attach(sandbox, name="web")), address(node.attach(dead))
    delete_and_wait(dead, node.host)
    reserve(node, f"{NET}.15", b"kept for the printer")
    reserve(node, f"{NET}.16", b"")
    reserve(node, f"{NET}.17", b" \n")
    reserve(node, f"{NET}.18", b"unknown\r\neth0")
    reserve(node, f"{NET}.19", b"unknown\r\neth0", old=False)
    assert states(node) == {
        living: "living",
        gone: "gone",
        f"{NET}.15": "remark",
        f"{NET}.16": "empty",
        f"{NET}.17": "foreign",
        f"{NET}.18": "new",  # its container may be in the midst of an ADD that has reserved another address
        f"{NET}.19": "new",
    }
    (line,) = [line for line in node.tool("ipam", "list", "--json").json if line["address"] == living][:1]
    assert (line["containerID"], line["ifname"], line["pod"]) == (sandbox.name, "eth0", "default/web")
    assert abs(time.time() - os.stat(node.store / living).st_mtime) < 300
    assert line["since"].startswith(time.strftime("%Y-%m-", time.gmtime()))
    assert living in node.tool("ipam", "list").stdout


def test_a_healthy_network_has_no_findings(node, sandbox, new_sandbox):
    """Of living pods, remarks and residue nothing is found wrong."""
    for pod in (sandbox, new_sandbox()):
        node.attach(pod)
    reserve(node, f"{NET}.15", b"kept for the printer")
    reserve(node, f"{NET}.16", b"")
    assert kinds(node) == set()


def test_each_wrong_is_found(node, sandbox, new_sandbox):
    """Addresses of the dead, unreserved ones, ones of another, foreign files and full ranges are found, with cures."""
    dead, robbed, shared = new_sandbox(), new_sandbox(), new_sandbox()
    node.attach(sandbox)
    gone, lost, taken = (address(node.attach(pod)) for pod in (dead, robbed, shared))
    delete_and_wait(dead, node.host)
    (node.store / lost).unlink()
    reserve(node, taken, f"{sandbox.name}\r\neth0".encode())
    (node.store / "notes.txt").write_text("mine")
    reserve(node, f"{NET}.17", b"\n")
    expected = {("gone", gone), ("not reserved", lost), ("of another", taken), ("foreign", "")}
    assert kinds(node) == expected | {("foreign", f"{NET}.17")}
    for number in range(7, 22):
        reserve(node, f"{NET}.{number}", b"kept by hand")
    assert ("full", "") in kinds(node)
    for finding in node.tool("ipam", "verify", "--json").json["findings"]:
        assert finding["cure"], finding


def test_an_address_of_two_pods_is_found(node, sandbox, new_sandbox):
    """Two living attachments with one address are found."""
    other = new_sandbox()
    result = node.attach(sandbox)
    node.attach(other)
    entry = json.loads(node.entry(other).read_text())
    entry["result"]["ips"] = result["ips"]
    node.entry(other).write_text(json.dumps(entry))
    assert ("twice", address(result)) in kinds(node)


def test_an_index_that_does_not_agree_is_found(node, sandbox):
    """A reservation that somebody has given to another by hand is found, as the index does not know that."""
    given = address(node.attach(sandbox))
    path = node.store / given
    path.write_bytes(b"somebody-else\r\neth0")
    assert ("index", given) in kinds(node)


def test_the_dead_are_freed_and_nobody_else(node, sandbox, new_sandbox):
    """--gone frees what dead containers have left, and the next pods may have it again."""
    dead = new_sandbox()
    living, gone = address(node.attach(sandbox)), address(node.attach(dead))
    delete_and_wait(dead, node.host)
    reserve(node, f"{NET}.15", b"kept for the printer")
    reserve(node, f"{NET}.19", b"unknown\r\neth0", old=False)
    done = node.tool("ipam", "free", "--gone", "podnet", "--json")
    assert done.status == 0
    assert [item["address"] for item in done.json["freed"]] == [gone]
    assert done.json["kept"] == []
    assert states(node) == {living: "living", f"{NET}.15": "remark", f"{NET}.19": "new"}
    # As after DEL: the index tells the truth, so that nothing need be scanned.
    with Store(str(node.store.parent), "podnet").locked() as held:
        assert held.find(f"{dead.name}\r\neth0".encode()) == []
        assert held.find(f"{sandbox.name}\r\neth0".encode()) == [living]


def test_the_living_are_refused(node, sandbox):
    """A living container's address is kept, said why, with exit status 1, and freed only by --force."""
    own = address(node.attach(sandbox))
    for words in ((own,), (own, "podnet"), ("--container", sandbox.name)):
        done = node.tool("ipam", "free", *words)
        assert done.status == 1, done
        assert own in done.stdout
    assert states(node) == {own: "living"}
    assert node.tool("ipam", "free", own, "--force").status == 0
    assert states(node) == {}
    # It was released as DEL does it, so that the index still proves itself.
    index = Store(str(node.store.parent), "podnet").open_index()
    assert index.complete
    index.close()


def test_a_living_container_that_the_cache_forgot_is_refused(node, sandbox):
    """An address that is configured in a namespace is kept, whatever the cache says and however old it is."""
    own = address(node.attach(sandbox))
    os.utime(node.store / own, (time.time() - 120,) * 2)
    node.entry(sandbox).unlink()
    done = node.tool("ipam", "free", own)
    assert done.status == 1
    assert "configured on eth0" in done.stdout
    node.write_entry(sandbox, {}, {})
    entry = json.loads(node.entry(sandbox).read_text())
    node.entry(sandbox).write_text(json.dumps({**entry, "netns": "/run/netns/gone"}))
    assert node.tool("ipam", "free", own).status == 1
    assert node.tool("ipam", "free", "--gone").status == 0
    assert (node.store / own).exists()


@pytest.mark.parametrize("text", ["", '{"cniVersion": "1.0.0"}'], ids=["cut off", "before CNI 0.8"])
def test_a_living_container_whose_entry_cannot_be_read_is_refused(node, sandbox, text):
    """An address that is configured nowhere is kept as long as the cache has a file of its container's name."""
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


def test_who_is_not_on_the_host_frees_nobody(node, sandbox):
    """In another namespace than the pods' host, and without the runtime's cache, nothing is free."""
    path = node.store / address(node.attach(sandbox))
    os.utime(path, (time.time() - 120,) * 2)
    (node.entry(sandbox)).unlink()
    # As in a container that has the stores: neither the pods' namespaces nor their processes are to be seen.
    away = ("unshare", "-n", "-m", "-p", "-f", "--mount-proc", "sh", "-c", 'mount -t tmpfs none /run; exec "$@"', "sh")
    assert node.tool("ipam", "free", "--gone", before=away).status == 0
    assert node.tool("ipam", "free", path.name, before=away).status == 1
    assert path.exists()
    assert node.tool("show", "--json", before=away).json["leaks"] == []


def test_remarks_are_kept(node):
    """An administrator's remark is kept without --force."""
    path = reserve(node, f"{NET}.15", b"kept for the printer")
    assert node.tool("ipam", "free", f"{NET}.15").status == 1
    assert path.exists()
    assert node.tool("ipam", "free", f"{NET}.15", "--force").status == 0
    assert not path.exists()


def test_what_was_just_reserved_is_kept(node, sandbox):
    """A young reservation that the cache does not know is kept: its ADD may be under way."""
    node.attach(sandbox)
    reserve(node, f"{NET}.19", b"unknown\r\neth0", old=False)
    for words in ((f"{NET}.19",), ("--gone",), ("--container", "unknown")):
        node.tool("ipam", "free", *words)
    assert (node.store / f"{NET}.19").exists()


def test_nobody_s_address_is_an_error(node):
    """An address without a reservation is exit status 3, a command line that names none is exit status 2."""
    reserve(node, f"{NET}.15", b"kept for the printer")
    for words, status in (
        ((f"{NET}.99",), 3),
        (("--container", "nobody"), 3),
        ((), 2),
        (("--gone", "podnet", "more"), 2),
    ):
        done = node.tool("ipam", "free", *words)
        assert (done.status, done.stdout) == (status, ""), words
        assert done.stderr.startswith("podwire: "), words


def test_addresses_are_not_freed_under_an_add(node, new_sandbox, sandbox):
    """While ADDs reserve addresses that dead containers had, --gone frees none of theirs.

    Each round the dead hold most of the range; ADDs and --gone run at the same time.
    """
    node.attach(sandbox)
    ipam = {**node.config["plugins"][0]["ipam"]}
    config = {"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": ipam}
    for round_number in range(3):
        for number in range(4, 20):
            reserve(node, f"{NET}.{number}", f"dead-{round_number}-{number}\r\neth0".encode())
        names = [f"new-{round_number}-{number}" for number in range(4)]
        adds = [
            start_plugin("host-local", "ADD", container_id=name, netns="/run/netns/x", host=node.host) for name in names
        ]
        done = None
        results = []
        for number, process in enumerate(adds):
            if number == 2:
                done = node.tool("ipam", "free", "--gone", "--json")
            results.append(finish(process, config))
        assert done
        freed = {item["containerID"] for item in done.json["freed"]}
        assert freed.isdisjoint(names)
        given = {name: address(result.json) for name, result in zip(names, results, strict=True) if result.status == 0}
        assert given
        assert len(set(given.values())) == len(given)
        for name, own in given.items():
            assert (node.store / own).read_bytes() == f"{name}\r\neth0".encode()
            assert ip_address(own)
            (node.store / own).unlink()


def test_a_reservation_that_changed_meanwhile_is_kept(node, sandbox):
    """An address that somebody else has got since it was looked at is not taken from him, not even by force."""
    node.attach(sandbox)
    path = reserve(node, f"{NET}.15", b"dead\r\neth0")
    with node.host.entered():
        where = Directories(str(node.directory / "net.d"), str(node.directory), str(node.store.parent))
        snapshot = read_snapshot(where, rules=False)
        chosen = [item for pool in snapshot.records.pools for item in pool.reservations if item.file.name == path.name]
        assert release.refusal_reason(snapshot, chosen[0]) == ""
        path.unlink()
        reserve(node, f"{NET}.15", b"dead\r\neth0", old=False)
        for force in (False, True):
            (outcome,) = release.release(snapshot, chosen, where.cache_dir, force=force)
            assert "anew" in outcome.reason
    assert path.exists()


def test_a_container_that_came_into_the_cache_meanwhile_is_kept(node, sandbox, new_sandbox):
    """Between the look and the release an ADD may end: then the cache knows its container, which is left alone."""
    node.attach(sandbox)
    other = new_sandbox()
    path = reserve(node, f"{NET}.15", f"{other.name}\r\neth0".encode())
    with node.host.entered():
        where = Directories(str(node.directory / "net.d"), str(node.directory), str(node.store.parent))
        snapshot = read_snapshot(where, rules=False)
        chosen = [item for pool in snapshot.records.pools for item in pool.reservations if item.file.name == path.name]
        node.write_entry(other, {}, {})
        (outcome,) = release.release(snapshot, chosen, where.cache_dir, force=False)
    assert "cache meanwhile" in outcome.reason
    assert path.exists()


def test_the_commands_that_a_full_range_prints_release_only_what_is_not_running(node, sandbox, new_sandbox):
    """The error of ADD names commands; run as printed, they free a lost pod's address and keep a running pod's."""
    lost = new_sandbox()
    kept, freed = address(node.attach(sandbox)), address(node.attach(lost))
    delete_and_wait(lost, node.host)
    for number in range(2, 22):
        if f"{NET}.{number}" not in (kept, freed):
            reserve(node, f"{NET}.{number}", b"kept for the printer")
    ipam = node.config["plugins"][0]["ipam"]
    config = {"cniVersion": "1.1.0", "name": node.name, "ipam": ipam}
    details = run_plugin("host-local", "ADD", config, netns=new_sandbox(), host=node.host).error()["details"]
    commands = re.findall(r"podwire ((?:ipam list|gc) \S+)", details)
    assert commands == [f"ipam list {node.name}", f"gc {node.name}"]
    assert "file" not in details
    for command in commands:
        assert node.tool(*command.split(), directories=command.startswith("ipam")).status == 0
    assert kept in states(node)
    assert freed not in states(node)
