"""podwire install and uninstall: at any time each name is a working file, and no file of other programs is lost."""

import itertools
import json
import os
import re
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from podwire.networks import parse
from tests.support.binaries import ROOT

ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
INSTALLS = 10
LOOPS = 4
# The system calls that change files, as strace names them.
CALLS = ("mkdir", "openat", "fchmod", "fsync", "link", "linkat", "rename", "unlink", "rmdir", "write")


def run(program, *words, before=(), status=0):
    """Runs the tool and returns its output; another exit status fails the test."""
    line = [*before, str(program), *map(str, words)]
    done = subprocess.run(line, env=ENV, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == status, f"{line}: {done.returncode} {done.stdout} {done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def works(path):
    """Returns whether a file answers VERSION."""
    done = subprocess.run([path], env={**ENV, "CNI_COMMAND": "VERSION"}, capture_output=True, timeout=200, check=False)
    return done.returncode == 0 and "supportedVersions" in json.loads(done.stdout)


def listing(directory):
    """Returns type, permissions and content of everything in a directory."""
    files = {}
    for path in sorted(directory.iterdir()):
        mode = path.lstat().st_mode
        files[path.name] = (
            mode,
            os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes() if path.is_file() else "",
        )
    return files


@pytest.fixture
def names(podwire):
    """The plugins' names."""
    return run(podwire, "list").split()


@pytest.fixture
def older(podwire, tmp_path):
    """Another build: the same program with other bytes."""
    program = tmp_path / "older"
    program.write_bytes(podwire.read_bytes() + b"older")
    program.chmod(0o755)
    return program


@pytest.fixture
def others(tmp_path, names):
    """A directory with other plugins: a file, one with other permissions, a link, and one that podwire lacks."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, mode in (("bridge", 0o755), ("portmap", 0o700), ("flannel", 0o755)):
        program = directory / name
        program.write_text(f"""#!/bin/sh\necho '{{"supportedVersions": ["1.0.0"], "of": "{name}"}}'\n""")
        program.chmod(mode)
    (directory / "ptp").symlink_to("bridge")
    return directory


def test_install_creates_a_directory(podwire, names, tmp_path):
    """`install` creates a missing directory, in which all names are one file; a second installation changes nothing."""
    directory = tmp_path / "opt" / "cni" / "bin"
    would = run(podwire, "install", "--bin-dir", directory, "--dry-run")
    assert f"dry run: create {directory}/bridge" in would
    assert not directory.exists()
    run(podwire, "install", "--bin-dir", directory)
    files = [directory / name for name in (*names, "podwire")]
    assert {path.name for path in directory.iterdir()} == {*names, "podwire", ".podwire-replaced"}
    assert {(path.stat().st_ino, path.stat().st_mode & 0o7777) for path in files} == {(files[0].stat().st_ino, 0o755)}
    assert files[0].read_bytes() == podwire.read_bytes()
    assert all(works(path) for path in files[:-1])
    assert "nothing to do" in run(directory / "podwire", "install", "--bin-dir", directory)
    assert "dry run: remove" in run(podwire, "uninstall", "--bin-dir", directory, "--dry-run")
    assert len(list(directory.iterdir())) == len(files) + 1
    run(directory / "podwire", "uninstall", "--bin-dir", directory)
    assert list(directory.iterdir()) == []
    assert run(podwire, "uninstall", "--bin-dir", directory) == f"nothing to do: {directory} has no podwire\n"
    assert "nothing to do" in run(podwire, "uninstall", "--bin-dir", tmp_path / "absent")


def test_uninstall_restores_replaced_files(podwire, older, names, others):
    """`uninstall` restores the replaced files unchanged, also after an upgrade, and keeps the other files."""
    before = listing(others)
    run(older, "install", "--bin-dir", others)
    run(podwire, "install", "--bin-dir", others)
    run(podwire, "install", "--bin-dir", others)
    assert {(others / name).read_bytes() for name in (*names, "podwire")} == {podwire.read_bytes()}
    run(others / "podwire", "uninstall", "--bin-dir", others)
    assert listing(others) == before


def test_uninstall_names_another_directory_with_podwire(podwire, older, others, root):
    """If a directory of a runtime also has podwire, the command that removes it there is printed, and works."""
    line = f"""mount -t tmpfs podwire /opt
{older} install >/dev/null; {podwire} install --bin-dir {others} >/dev/null
{podwire} uninstall --bin-dir {others} --dry-run | tail -n 1
command=$({podwire} uninstall --bin-dir {others} | sed -n 's/^podwire is also in //p')
echo "$command"; ${{command#*: }} | tail -n 1; {podwire} uninstall"""
    text = run("sh", "-ec", line, before=("unshare", "--mount"))
    fix = "/opt/cni/bin; to remove it there: /opt/cni/bin/podwire uninstall --bin-dir /opt/cni/bin"
    assert text.splitlines() == [
        f"podwire is also in {fix}", fix, "removed /opt/cni/bin/podwire", "nothing to do: /opt/cni/bin has no podwire",
    ]  # fmt: skip


def test_a_plugin_that_replaced_podwires_stays(podwire, names, others):
    """`uninstall` keeps a plugin that has replaced podwire's, and the next installation restores it later."""
    before = listing(others)
    run(podwire, "install", "--bin-dir", others)
    (others / "new").write_text("#!/bin/sh\nexit 3\n")
    (others / "new").rename(others / "portmap")
    text = run(podwire, "uninstall", "--bin-dir", others)
    assert f"left {others}/portmap: it is not podwire's" in text
    assert (others / "portmap").read_text() == "#!/bin/sh\nexit 3\n"
    assert (others / ".podwire-replaced" / "portmap").read_bytes() == before["portmap"][1]
    run(podwire, "install", "--bin-dir", others)
    run(podwire, "uninstall", "--bin-dir", others)
    assert (others / "portmap").read_text() == "#!/bin/sh\nexit 3\n"


@pytest.mark.long
def test_install_while_verbs_run(podwire, older, names, tmp_path):
    """Verbs that start during installations never fail because of an incomplete file or one that cannot be executed."""
    directory = tmp_path / "bin"
    run(older, "install", "--bin-dir", directory)
    end = threading.Event()

    def verbs(number):
        for name in itertools.cycle(names[number:] + names[:number]):
            assert works(directory / name)
            if end.is_set():
                return

    with ThreadPoolExecutor(LOOPS) as pool:
        loops = [pool.submit(verbs, number) for number in range(LOOPS)]
        try:
            for count in range(INSTALLS):
                run((podwire, older)[count % 2], "install", "--bin-dir", directory)
        finally:
            end.set()
        for loop in loops:
            loop.result()


def sample(count, *, nightly):
    """Returns numbers of calls from 1 to `count`: all, or the first two, one in the middle and the last."""
    numbers = range(1, count + 1)
    return numbers if nightly else sorted({*numbers[:2], *numbers[count // 2 : count // 2 + 1], *numbers[-1:]})


@pytest.mark.long
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_killed_command_can_be_repeated(request, podwire, names, others, tmp_path, command):
    """A kill at any system call leaves every plugin working, and repeating the command completes it without losses."""
    nightly = request.config.getoption("--nightly")
    before = listing(others)
    words = (command, "--bin-dir", str(others))
    log = tmp_path / "strace"
    if command == "uninstall":
        run(podwire, "install", "--bin-dir", others)
    run(podwire, *words, before=("strace", "-f", "-o", log, "-e", f"trace={','.join(CALLS)}"))
    calls = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    assert {"rename", "unlink"} <= {*calls}
    points = [(call, number) for call in {*calls} for number in sample(calls.count(call), nightly=nightly)]
    run(podwire, "uninstall", "--bin-dir", others)
    assert listing(others) == before
    for call, number in points:
        if command == "uninstall":
            run(podwire, "install", "--bin-dir", others)
        inject = ("strace", "-f", "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={number}")
        done = subprocess.run(
            [*inject, str(podwire), *words], env=ENV, capture_output=True, timeout=200, check=False
        ).returncode
        assert done in (-9, 137, 0), (call, number, done)
        assert all(works(others / name) for name in before), (call, number)
        run(podwire, "install", "--bin-dir", others)
        assert {(others / name).read_bytes() for name in names} == {podwire.read_bytes()}, (call, number)
        run(podwire, "uninstall", "--bin-dir", others)
        assert listing(others) == before, (call, number)


@pytest.mark.parametrize("number", ["EPERM", "EMLINK"])
def test_without_hard_links(podwire, names, others, number):
    """Files are copied if hard links are refused or too many."""
    before = listing(others)
    inject = ("strace", "-f", "-o", "/dev/null", "-e", f"inject=link,linkat:error={number}")
    run(podwire, "install", "--bin-dir", others, before=inject)
    assert len({(others / name).stat().st_ino for name in names}) == len(names)
    assert all(works(others / name) for name in names)
    run(podwire, "uninstall", "--bin-dir", others)
    assert listing(others) == before


DISKS = {
    "size=60m,noexec": r"mounted noexec",
    "size=60m,ro": r"Read-only file system.*\n.*remount",
    "size=10m": r"No space left on device.*\n.*free 30 MB",
}


@pytest.mark.parametrize("options", DISKS)
def test_unusable_disks(podwire, root, tmp_path, options):
    """On a disk that is full, read-only or noexec, the message names the cause, and no file remains."""
    directory = tmp_path / "bin"
    directory.mkdir()
    script = 'mount -t tmpfs -o "$1" podwire "$2"; s=0; "$3" install --bin-dir "$2" || s=$?; ls -A "$2"; exit $s'
    before = ("unshare", "--mount", "sh", "-ec", script, "sh", options, directory)
    text = run(podwire, before=before, status=3)
    assert re.search(DISKS[options], text), text
    assert not re.search(r"^(bridge|\.podwire-new)", text, re.MULTILINE)


def test_refusals(podwire, others, tmp_path, root):
    """The message names the cause: missing rights, a file instead of the directory, a directory instead of a plugin."""
    tmp_path.chmod(0o755)
    copy = tmp_path / "podwire"
    copy.write_bytes(podwire.read_bytes())
    copy.chmod(0o755)
    parents = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    script = 'mount --bind "$1" /mnt; shift; exec "$@"'
    unprivileged = ("unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path), *parents)
    text = run("/mnt/podwire", "install", "--bin-dir", "/mnt/bin", before=unprivileged, status=3)
    assert "Permission denied" in text
    assert "needs root" in text
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in run(podwire, "install", "--bin-dir", file, status=3)
    (others / "tuning").mkdir()
    before = listing(others)
    assert "neither a file nor a link" in run(podwire, "install", "--bin-dir", others, status=3)
    assert listing(others) == before


def test_a_symbolic_link_to_the_directory(podwire, names, others, tmp_path):
    """A symbolic link to the directory of plugins is followed and not replaced."""
    link = tmp_path / "link"
    link.symlink_to(others)
    run(podwire, "install", "--bin-dir", link)
    assert link.is_symlink()
    assert works(others / names[0])


def test_install_conf(podwire, tmp_path):
    """`--conf` writes a valid network and needs --force to replace another; `uninstall` removes it if unchanged."""
    words = ("install", "--bin-dir", tmp_path / "bin", "--conf-dir", tmp_path / "net.d")
    assert "--subnet 10.22.0.0/16" in run(podwire, *words, "--conf", status=2)
    assert "is not a network" in run(podwire, *words, "--conf", "--subnet", "10.22.0.1/16", status=2)
    assert not (tmp_path / "bin").exists()
    run(podwire, *words, "--conf", "--subnet", "10.23.0.0/16", "--subnet", "fd00:23::/64")
    path = tmp_path / "net.d" / "10-podwire.conflist"
    ipam = parse(path.read_bytes(), str(path)).plugins[0]["ipam"]
    assert isinstance(ipam, dict)
    assert ipam["ranges"] == [[{"subnet": "10.23.0.0/16"}], [{"subnet": "fd00:23::/64"}]]
    other = ("--conf", "--subnet", "10.24.0.0/16")
    run(podwire, *words, *other)
    assert ("10.24.0.0" in path.read_text(), len(list(path.parent.iterdir()))) == (True, 1)
    path.write_text("of another program")
    assert "exists and is different" in run(podwire, *words, *other, status=3)
    run(podwire, *words, *other, "--force")
    backup = path.with_name(path.name + ".podwire-backup")
    assert ("10.24.0.0" in path.read_text(), backup.read_text()) == (True, "of another program")
    assert "nothing to do" in run(podwire, *words, *other)
    run(podwire, *words, "--conf", ROOT / "conf" / "99-loopback.conflist")
    (path.parent / "99-loopback.conflist").write_text("{}")
    text = run(podwire, "uninstall", "--bin-dir", tmp_path / "bin")
    assert f"removed {path}\n" in text
    assert "left" in text
    assert sorted(file.name for file in path.parent.iterdir()) == [backup.name, "99-loopback.conflist"]


def test_force_keeps_every_version_of_other_files(podwire, tmp_path):
    """--force keeps a backup of each file that an administrator wrote, and none of podwire's files."""
    directories = ("--bin-dir", tmp_path / "bin", "--conf-dir", tmp_path / "net.d")
    words = ("install", *directories, "--conf", "--force", "--subnet")
    (tmp_path / "net.d").mkdir()
    path = tmp_path / "net.d" / "10-podwire.conflist"
    path.write_text("first")
    run(podwire, *words, "10.22.0.0/16")
    run(podwire, *words, "10.23.0.0/16")
    path.write_text("second")
    run(podwire, *words, "10.24.0.0/16")
    kept = sorted(file.name for file in path.parent.iterdir() if file != path)
    assert kept == [f"{path.name}.podwire-backup", f"{path.name}.podwire-backup~2"]
    assert [(path.parent / name).read_text() for name in kept] == ["first", "second"]


def test_uninstall_restores_the_last_replaced_plugin(podwire, others):
    """After two replaced plugins, of which the first was restored by hand, `uninstall` restores the last one."""
    first = (others / "portmap").read_bytes()
    run(podwire, "install", "--bin-dir", others)
    put(others / "portmap", b"#!/bin/sh\nexit 3\n")
    run(podwire, "install", "--bin-dir", others)
    put(others / "portmap", first)
    run(podwire, "uninstall", "--bin-dir", others)
    run(podwire, "install", "--bin-dir", others)
    run(podwire, "uninstall", "--bin-dir", others)
    assert (others / "portmap").read_bytes() == first


def put(path, content):
    """Replaces a file atomically, as an administrator does."""
    draft = path.with_name("draft")
    draft.write_bytes(content)
    draft.chmod(0o700)
    draft.rename(path)


@pytest.mark.parametrize("command", ["install", "uninstall"])
@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_a_fifo_is_refused(podwire, others, command, option):
    """A name that is neither a file nor a link is reported, and nothing is changed."""
    os.mkfifo(others / "tuning")
    before = sorted(others.iterdir())
    text = run(podwire, command, "--bin-dir", others, *option, status=3)
    assert f"{others}/tuning is neither a file nor a link" in text
    assert sorted(others.iterdir()) == before


def test_an_interrupted_copy_is_removed(podwire, others):
    """A copy of a replaced file that a kill interrupted is not restored, and `uninstall` removes it."""
    before = listing(others)
    inject = ("strace", "-f", "-o", "/dev/null", "-e", "inject=link,linkat:error=EPERM")
    kill = (*inject, "-e", "inject=utimensat:signal=SIGKILL:when=1")
    line = [*kill, str(podwire), "install", "--bin-dir", str(others)]
    assert subprocess.run(line, env=ENV, capture_output=True, timeout=200, check=False).returncode in (-9, 137)
    assert [file.suffix for file in (others / ".podwire-replaced").iterdir()] == [".new"]
    run(podwire, "uninstall", "--bin-dir", others)
    assert listing(others) == before


@pytest.mark.long
def test_parallel_installations_write_one_network(podwire, tmp_path):
    """Each of several parallel installations succeeds or reports another one; the network is complete and recorded."""
    words = ("install", "--bin-dir", tmp_path / "bin", "--conf-dir", tmp_path / "net.d", "--conf", "--subnet")
    line = [str(podwire), *map(str, words), "10.22.0.0/16"]
    for _ in range(3):
        with ThreadPoolExecutor(LOOPS) as pool:
            installations = [
                pool.submit(subprocess.run, line, env=ENV, capture_output=True, timeout=200, check=False)
                for _ in range(2 * LOOPS)
            ]
        for one in installations:
            done = one.result()
            assert done.returncode == 0 or b"another podwire is installing" in done.stderr, done
        assert {one.result().returncode for one in installations} >= {0}
        assert [file.name for file in (tmp_path / "net.d").iterdir()] == ["10-podwire.conflist"]
        run(podwire, "uninstall", "--bin-dir", tmp_path / "bin")
        assert list((tmp_path / "net.d").iterdir()) == []
