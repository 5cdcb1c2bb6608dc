"""The archive for /opt/cni/bin: unpacked in an empty root, on a second kernel, and over running plugins."""

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.release.conftest import Release
from tests.support.invocation import feed, finish, start_plugin
from tests.support.processes import output

BIN = "opt/cni/bin"
LAYER_2 = {"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0"}
IPAM = {"type": "host-local", "dataDir": "/leases", "subnet": "10.9.0.0/24"}
LAYER_3 = {**LAYER_2, "isGateway": True, "ipam": IPAM}
# The root has the network namespaces of ip(8) and /proc, as every node has, and nothing else.
ENTER = """\
mkdir -p "$1/proc" "$1/netns" && mount -t proc proc "$1/proc" && mount --rbind /run/netns "$1/netns" &&
exec /usr/sbin/chroot "$1" /opt/cni/bin/bridge"""


def unpack(archive: Path, directory: Path) -> None:
    """Unpacks an archive as documented."""
    output("tar", "-xzf", str(archive), "-C", str(directory))


@pytest.fixture
def archive(release: Release) -> Path:
    """The archive for this machine."""
    return release.one("*-linux-amd64.tgz")


@pytest.fixture
def empty_root(archive: Path, tmp_path: Path) -> Path:
    """A root directory with only the unpacked files."""
    (tmp_path / "root" / BIN).mkdir(parents=True)
    unpack(archive, tmp_path / "root" / BIN)
    return tmp_path / "root"


def test_archive_contains_the_executable_once(release, archive, plugins):
    """The first member is the executable under the tool's name; root owns all files, and there is no directory."""
    for one in release.directory.glob("*.tgz"):
        with tarfile.open(one) as opened:
            members = opened.getmembers()
        assert [member.name for member in members if member.isreg() and member.mode == 0o755] == ["./podwire"]
        assert members[0].name == "./podwire"
        assert {member.name: member.linkname for member in members if member.islnk()} == {
            f"./{name}": "./podwire" for name in plugins
        }
        assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "root", "root")}
        others = {member.name for member in members if member.isreg() and member.mode == 0o644}
        assert others == {"./LICENSE", "./README.md", "./THIRD-PARTY-NOTICES.md"}
        assert len(members) == len(plugins) + 1 + len(others)


def test_pod_is_attached_from_an_empty_root(empty_root, host, sandbox):
    """With only the unpacked files bridge attaches a pod with an address, and detaches it."""
    (empty_root / "leases").mkdir()

    def bridge(command: str) -> bytes:
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_PATH": f"/{BIN}"}
        env["CNI_NETNS"] = f"/netns/{sandbox.name}"
        line = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", str(empty_root)]
        variables = {"PATH": os.environ["PATH"], **env}
        with host.entered():
            done = subprocess.run(
                line, env=variables, input=json.dumps(LAYER_3).encode(), capture_output=True, check=False
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    before = sandbox.ip("-o", "link", "show")
    assert [ip["address"] for ip in json.loads(bridge("ADD"))["ips"]] == ["10.9.0.2/24"]
    assert "2 received" in sandbox.run("ping", "-c", "2", "-i", "0.01", "-W", "5", "10.9.0.1")
    bridge("DEL")
    assert sandbox.ip("-o", "link", "show") == before
    assert [path.name for path in (empty_root / "leases/net").iterdir() if path.name.startswith("10.")] == []


def test_archive_is_unpacked_over_running_plugins(archive, program, plugins, host, sandbox, tmp_path):
    """A plugin that runs while tar replaces it finishes; the directory's mode stays, and uninstall works."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "bridge").write_text("the reference's")
    older = tmp_path / "older"
    older.write_bytes(program.read_bytes() + b"older")
    older.chmod(0o755)
    output(str(older), "install", "--bin-dir", str(directory))
    directory.chmod(0o711)
    inode = (directory / "bridge").stat().st_ino
    running = start_plugin("bridge", "ADD", netns=sandbox, host=host, bin_dir=directory)
    unpack(archive, directory)
    feed(running, LAYER_2)
    finish(running).result()
    assert directory.stat().st_mode & 0o7777 == 0o711
    assert {(directory / name).read_bytes() == program.read_bytes() for name in (*plugins, "podwire")} == {True}
    assert inode not in {(directory / name).stat().st_ino for name in (*plugins, "podwire")}
    output(str(directory / "podwire"), "uninstall", "--bin-dir", str(directory))
    left = {path.name: path.read_bytes()[:20] for path in directory.iterdir() if path.name in (*plugins, "podwire")}
    assert left == {"bridge": b"the reference's"}
