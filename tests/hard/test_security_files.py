"""Files and processes: file modes, links in the store, the environment of child processes, hostile variables."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import xtables
from tests.support.attaching import Network
from tests.support.invocation import environment, run_plugin
from tests.support.results import prev_result

IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}]]}
# Variables of the caller that would change the behaviour of Python, libc or the loader.
INFLUENCES = {
    **dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE"), "/tmp/evil"),
    **dict.fromkeys(("PYTHONINSPECT", "PYTHONVERBOSE", "PYTHONDEBUG", "PYTHONDUMPREFS", "PYTHONMALLOCSTATS"), "1"),
    **dict.fromkeys(("PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH", "LOCPATH", "GCONV_PATH", "NLSPATH"), "/tmp/evil"),
    **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT"), "/tmp/evil.so"),
    "PYTHONMALLOC": "debug", "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-16", "PYTHONWARNINGS": "error",
    "PYTHONUTF8": "0", "PYTHONTRACEMALLOC": "20", "PYTHONPROFILEIMPORTTIME": "1", "PYTHONBREAKPOINT": "os.abort",
    "GLIBC_TUNABLES": "glibc.malloc.check=3", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "85", "MALLOC_ARENA_MAX": "1",
    "LD_DEBUG": "all", "LC_ALL": "tr_TR.UTF-8", "LANG": "zh_CN.GB18030", "TZ": ":/etc/x", "RES_OPTIONS": "debug",
    "HOSTALIASES": "/tmp/evil", "TMPDIR": "/nowhere", "HOME": "/nowhere",
}  # fmt: skip


@pytest.fixture
def net(bin_dir, host, store):
    """An IPv4 network with host-local."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": True}
    return Network(host, {**config, "ipam": {**IPAM, "dataDir": str(store)}})


def lease(net, command, container_id="cid", **options):
    """Runs a verb of host-local alone."""
    options = {"host": net.host, "netns": "/run/netns/x", "container_id": container_id, **options}
    return run_plugin("host-local", command, net.config, **options)


def modes(directory):
    """Returns the modes of a directory and of everything in it."""
    paths = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


@contextlib.contextmanager
def masked(umask):
    """Sets the umask inside the block."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_of_the_store(net, store, umask):
    """Reservations have mode 0600, the lock 0750, directories 0755, the index 0600 in 0700, minus the umask."""
    with masked(umask):
        lease(net, "ADD").result()
    expected = {"net": 0o755, "net/lock": 0o750, "net/10.22.0.2": 0o600, "net/last_reserved_ip.0": 0o600, ".": 0o755}
    assert modes(store) == {name: mode & ~umask for name, mode in expected.items()}
    assert modes(Path(f"{store}.podwire")) == {".": 0o700, "net": 0o600}
    lease(net, "DEL").assert_silent()


# What a link in a directory of podwire points to, created at a path with a text.
TARGETS = {
    "file": Path.write_text,
    "directory": lambda path, _: path.mkdir(),
    "absent": lambda path, _: None,
    "fifo": lambda path, _: os.mkfifo(path),
}
LINKED = ["lock", "last_reserved_ip.0", "10.22.0.2"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*LINKED, "net", "~net"])
def test_links_in_the_store_are_not_followed(net, store, tmp_path, name, target):
    """Through a link in the store's directory nothing is read, written or created elsewhere."""
    (store / "net").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "victim"
    TARGETS[target](victim, "cid\r\neth0")
    place = store / "net" / name if name in LINKED else Path(f"{store}.podwire") / name  # the index, or a draft of it
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(victim)
    before = contents(elsewhere)
    outcomes = [lease(net, command) for command in ("ADD", "CHECK", "DEL", "STATUS", "GC")]
    for outcome in outcomes:
        if outcome.status:
            assert str(store) in json.dumps(outcome.error())
    if name == "lock":
        assert outcomes[0].error()["code"] == 5
    else:
        address = "10.22.0.3/24" if name == "10.22.0.2" else "10.22.0.2/24"
        assert outcomes[0].result()["ips"][0]["address"] == address
        assert not list((store / "net").glob("10.22.0.3"))
    assert contents(elsewhere) == before
    assert place.is_symlink() == (name != "net")  # an index is replaced by a rename


def contents(directory):
    """Returns the inodes and texts of the files in a directory."""
    files = {path.name: path.lstat() for path in directory.iterdir()}
    text = {name: (directory / name).read_text() for name, info in files.items() if stat.S_ISREG(info.st_mode)}
    return {name: (info.st_ino, info.st_mode, info.st_mtime_ns) for name, info in files.items()}, text


@pytest.mark.parametrize("level", ["dataDir", "network"])
def test_store_directory_may_be_a_link(net, store, tmp_path, level):
    """The dataDir, or a network's directory in it, may be a link to another disk, as with the reference plugin."""
    disk = tmp_path / "disk"
    (disk / "net").mkdir(parents=True)
    if level == "dataDir":
        store.symlink_to(disk)
    else:
        store.mkdir()
        (store / "net").symlink_to(disk / "net")
    lease(net, "ADD").result()
    lease(net, "CHECK").assert_silent()
    assert (disk / "net" / "10.22.0.2").read_bytes() == b"cid\r\neth0"
    lease(net, "DEL").assert_silent()
    assert not (disk / "net" / "10.22.0.2").exists()


@pytest.mark.parametrize("content", ["fifo", "/dev/zero", "directory", "sparse", "link"])
def test_endless_resolver_file(net, tmp_path, content):
    """The file of resolvConf is read up to 1 MiB and never blocks the plugin."""
    place = tmp_path / "resolv.conf"
    if content == "fifo":
        os.mkfifo(place)
    elif content == "directory":
        place.mkdir()
    elif content == "sparse":
        place.touch()
        os.truncate(place, 1 << 40)
    else:
        place.symlink_to("/dev/zero" if content.startswith("/") else tmp_path / "true")
        (tmp_path / "true").write_text("nameserver 192.0.2.53\n")
    with_resolver = replace(net, config={**net.config, "ipam": {**net.config["ipam"], "resolvConf": str(place)}})
    outcome = lease(with_resolver, "ADD")
    if content in ("fifo", "link"):
        assert outcome.result().get("dns", {}).get("nameservers", []) == ["192.0.2.53"][content == "fifo" :]
    else:
        assert (outcome.error()["code"], str(place) in outcome.json["msg"]) == (5, True)


@pytest.mark.needs("syscall_injection")
def test_environment_has_no_effect(net, sandbox, bin_dir, tmp_path):
    """Variables for Python, libc and the loader have no effect: same output, empty stderr, no file access."""
    plain = net.run("ADD", sandbox)
    net.delete(sandbox)
    trace = tmp_path / "trace"
    preloaded = [word for name, value in INFLUENCES.items() for word in ("-E", f"{name}={value}")]
    line = ["strace", "-f", "-o", str(trace), *preloaded, "-E", "CNI_COMMAND=VERSION", str(bin_dir / "bridge")]
    done = subprocess.run(line, capture_output=True, check=True)
    assert done.stderr == b""
    assert "/evil" not in trace.read_text()
    influenced = net.run("ADD", sandbox, env=INFLUENCES)
    assert influenced.stderr == plain.stderr == ""
    assert [item["address"] for item in influenced.result()["ips"]] == ["10.22.0.3/24"]
    assert influenced.stdout.isascii()
    net.delete(sandbox)


def test_delegate_gets_the_environment_and_no_other_descriptor(net, sandbox, bin_dir, tmp_path):
    """An IPAM plugin gets the whole environment, as from libcni, three descriptors, and no blocked signal."""
    answer = 'echo \'{"cniVersion": "1.1.0", "ips": [{"address": "10.22.0.9/24"}]}\''
    read_notes = recording_program(tmp_path / "ipam", "noting", answer)
    net = net.having(ipam={"type": "noting"})
    net = replace(net, path=f"{tmp_path / 'ipam'}:{bin_dir}", env={"SECRET": "a b\nc", "LD_LIBRARY_PATH": "/x"})
    assert net.run("ADD", sandbox).status == 0
    record = read_notes()
    assert record["environ"] == environment(
        "ADD", CNI_CONTAINERID=sandbox.name, CNI_NETNS=sandbox.path, CNI_IFNAME="eth0", CNI_PATH=net.path, **net.env
    )
    assert_clean_start(record)
    net.delete(sandbox)


def test_iptables_gets_a_path_and_no_other_descriptor(net, sandbox, tmp_path):
    """The iptables programs get PATH, LC_ALL and their own variables; none of the container's or the loader's."""
    tools = tmp_path / "tools"
    read_notes = recording_program(tools, "iptables-restore", 'exec /usr/sbin/iptables-restore "$@"')
    net = net.having(ipMasq=True, ipMasqBackend="iptables")
    path = xtables.path(tools)
    net = replace(net, env={**INFLUENCES, **path, "XTABLES_LOCKFILE": str(tmp_path / "lock"), "SECRET": "x"})
    net.add(sandbox)
    record = read_notes()
    assert record["environ"] == {**path, "LC_ALL": "C", "XTABLES_LOCKFILE": str(tmp_path / "lock")}
    assert record["argv"][0] == str(tools / "iptables-restore")
    assert_clean_start(record)
    net.delete(sandbox)


def test_programs_in_relative_directories_are_ignored(net, sandbox, tmp_path, monkeypatch):
    """Empty and relative entries of PATH, which depend on the caller's directory, are skipped."""
    monkeypatch.chdir(tmp_path)
    read_notes = recording_program(tmp_path / "bin", "iptables-restore", "exit 1")
    (tmp_path / "iptables-restore").symlink_to(tmp_path / "bin" / "iptables-restore")
    net = replace(net.having(ipMasq=True, ipMasqBackend="iptables"), env={"PATH": ":bin:.:/usr/sbin"})
    net.add(sandbox)
    net.delete(sandbox)
    assert read_notes() == {}


def recording_program(directory, name, then):
    """Creates a program that records its environment, then runs `then`; returns a function that reads the record."""
    directory.mkdir()
    notes = directory / f"{name}.notes"
    program = directory / name
    # A shell adds variables; /proc has those that the program got.
    script = f"#!/bin/bash\ncat /proc/$$/environ > {notes}.env; tr '\\0' '\\n' < /proc/$$/cmdline > {notes}.argv\n"
    script += f"grep Sig /proc/$$/status > {notes}.signals; ls -l /proc/$$/fd > {notes}.fd\n{then}\n"
    program.write_text(script)
    program.chmod(0o755)

    def read():
        if not Path(f"{notes}.fd").exists():
            return {}
        pairs = Path(f"{notes}.env").read_text().split("\0")[:-1]
        descriptors = re.findall(r" (\d+) -> (\S+)", Path(f"{notes}.fd").read_text())
        masks = dict(line.split(":\t") for line in Path(f"{notes}.signals").read_text().splitlines())
        return {
            "environ": dict(pair.split("=", 1) for pair in pairs),
            "argv": Path(f"{notes}.argv").read_text().splitlines()[1:],
            "signals": {name: int(mask, 16) for name, mask in masks.items() if name != "SigQ"},
            "descriptors": {number: target for number, target in descriptors if target != str(program)},  # bash's
        }

    return read


def assert_clean_start(record):
    """Asserts three descriptors, no blocked signal, and no signal ignored that is not ignored by default."""
    assert set(record["descriptors"]) == {"0", "1", "2"}, record["descriptors"]
    assert record["signals"]["SigBlk"] in (0, 1 << signal.SIGCHLD - 1)  # bash blocks it while it waits
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
        assert not record["signals"]["SigIgn"] >> number - 1 & 1, number


@pytest.fixture
def tune(bin_dir, host, sandbox, store):
    """A function that runs a verb of tuning on a pod, with the backup in `store`."""
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "h0", "netns", host.name)
    config = {"cniVersion": "1.1.0", "name": "net", "mtu": 1400, "dataDir": str(store), "cni.dev/valid-attachments": []}
    config["prevResult"] = prev_result("1.1.0")
    return lambda command: run_plugin("tuning", command, config, host=host, netns=sandbox)


BACKUP = "cid_eth0.json"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_of_a_backup(tune, store, umask):
    """A backup, its note and their directories are accessible to root only, and DEL deletes backup and note."""
    with masked(umask):
        tune("ADD").result()
    for directory in (store, Path(f"{store}.podwire")):
        assert modes(directory) == {".": 0o700 & ~umask, BACKUP: 0o600 & ~umask}
    tune("DEL").assert_silent()
    assert [list(directory.iterdir()) for directory in (store, Path(f"{store}.podwire"))] == [[], []]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("side", ["", ".podwire"])
@pytest.mark.parametrize("name", [BACKUP, f"~{BACKUP}"])
def test_links_among_backups_are_not_followed(tune, sandbox, store, tmp_path, name, side, target):
    """A link in the place of a backup, its note or a draft is not followed, and DEL restores the interface."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "victim"
    TARGETS[target](victim, '{"mtu": 1280}')
    place = Path(f"{store}{side}") / name
    place.parent.mkdir()
    place.symlink_to(victim)
    before = contents(elsewhere), sandbox.ip("link")
    for command in ("ADD", "CHECK", "STATUS", "DEL", "GC"):
        outcome = tune(command)
        if outcome.status:
            assert command in ("ADD", "CHECK")
            assert command == "CHECK" or str(store) in json.dumps(outcome.error())
    assert (contents(elsewhere), sandbox.ip("link")) == before
