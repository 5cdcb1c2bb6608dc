"""The node agent's package and image: installed on Debian, started, removed; run with a read-only root."""

import importlib.util
import io
import json
import shutil
import subprocess
import tarfile

import pytest

from pack.release.agent_files import DIRECTORY
from pack.release.agent_image import BASES
from tests.release import roots
from tests.support import agent_image, binaries

DPKG = ("var/lib/dpkg", "var/log", "var/cache", "tmp")
NO_SERVER = ("podwire-agent", "--node-name", "worker-1", "--run-dir", "/run/podwire", "--once")


@pytest.fixture
def debian(root, tmp_path):
    """A Debian with Python, the libraries that the package depends on, and nothing of podwire."""
    with roots.unpacked(tmp_path / "debian", [BASES["amd64"]]) as system:
        for file in (system.path / "etc/dpkg/dpkg.cfg.d").iterdir():
            file.unlink()  # it omits documentation
        yield system


@pytest.fixture
def image(root, release, tmp_path):
    """The image, unpacked, with its configuration."""
    config, layers = agent_image.read_image(release.one("podwire-agent-*-oci.tar"))
    paths = [tmp_path / f"layer-{number}" for number in range(len(layers))]
    for path, layer in zip(paths, layers, strict=True):
        path.write_bytes(layer)
    with roots.unpacked(tmp_path / "image", paths) as system:
        yield config, system


def test_package_is_installed_started_and_purged(debian, release):
    """With Debian's libraries the installed agent starts and reports what is missing; a purge leaves no file."""
    before = debian.files(without=DPKG)
    debian.install(release.one("podwire_*_amd64.deb"))
    without_agent = debian.files(without=DPKG)
    debian.install(release.one("podwire-agent_*_amd64.deb"))
    assert "usage: podwire-agent" in debian.run("podwire-agent", "--help")
    assert debian.run("dpkg", "--verify", "podwire-agent") == ""
    done = debian.done(*NO_SERVER)
    (line,) = (done.stdout + done.stderr).splitlines()
    entry = json.loads(line)
    assert (done.returncode, entry["level"], entry["node"]) == (1, "error", "worker-1")
    assert "the API server is unknown: KUBERNETES_SERVICE_HOST is not set" in line
    compiled = [path for path in debian.files() if path.startswith(DIRECTORY) and path.endswith(".pyc")]
    assert f"{DIRECTORY}/agent/__pycache__/main.cpython-311.pyc" in compiled
    shutil.rmtree(debian.path / "run/podwire")
    debian.run("dpkg", "--remove", "podwire-agent")
    settings = {"etc/default/podwire-agent", "etc/podwire", "etc/podwire/10-podwire.conflist"}
    assert debian.files(without=DPKG) - without_agent == settings
    debian.run("dpkg", "--purge", "podwire-agent")
    assert debian.files(without=DPKG) ^ without_agent == set()
    debian.run("dpkg", "--purge", "podwire")
    assert debian.files(without=DPKG) ^ before <= {"opt"}  # an empty directory, which no package owns


def test_package_needs_the_same_version_of_the_plugins(debian, release):
    """Without podwire's package the agent's is not configured: it installs and runs that package's executable."""
    with pytest.raises(AssertionError, match=r"podwire-agent depends on podwire \(= "):
        debian.install(release.one("podwire-agent_*_amd64.deb"))


@pytest.mark.parametrize(("machine", "gnu"), [("amd64", "x86_64"), ("arm64", "aarch64")])
def test_package_contains_only_what_the_agent_imports(release, tmp_path, machine, gnu):
    """The package has the agent's rooms, three modules of pyroute2, and no module of the tool or of a plugin."""
    package = release.one(f"podwire-agent_*_{machine}.deb")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    tops = {path.name for path in (tmp_path / DIRECTORY).iterdir()}
    extension = f"_podwire.cpython-311-{gnu}-linux-gnu.so"
    assert tops == {extension, "agent", "attachment", "cni", "ipam", "kernel", "process", "pyroute2"}
    vendored = {
        str(path.relative_to(tmp_path / DIRECTORY)) for path in (tmp_path / DIRECTORY / "pyroute2").rglob("*.py")
    }
    assert vendored == {
        f"pyroute2/{name}.py" for name in ("__init__", "common", "netlink/__init__", "netlink/exceptions")
    }
    assert str(binaries.ROOT).encode() not in (tmp_path / DIRECTORY / extension).read_bytes()


def test_unit_is_valid(debian, release):
    """The installed unit is valid for systemd: every setting is known, and its program exists."""
    if not shutil.which("systemd-analyze"):
        binaries.skip_or_fail("no systemd-analyze: install systemd")
    debian.install(release.one("podwire_*_amd64.deb"), release.one("podwire-agent_*_amd64.deb"))
    unit = debian.path / "lib/systemd/system/podwire-agent.service"
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", f"--root={debian.path}", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_image_runs_with_a_read_only_root(image):
    """The image's entry point runs without writing, with the executable and iptables that it uses."""
    config, system = image
    (program,) = config["Entrypoint"]
    system.make_read_only()
    path = dict(item.split("=", 1) for item in config["Env"])
    assert "usage: podwire-agent" in system.run(program, "--help", env=path)
    assert "bridge" in system.run("podwire", "list", env=path).split()
    assert "nf_tables" in system.run("iptables", "--version", env=path)
    assert "Read-only file system" in system.done("touch", "/x", env=path).stderr


def test_image_has_compiled_modules(image):
    """Python uses the compiled modules in the image: agent.main and Debian's libraries are not compiled at a start."""
    _, system = image
    program = f"import sys; sys.path.insert(0, '/{DIRECTORY}'); import agent.main"
    lines = system.done("/usr/bin/python3", "-I", "-v", "-c", program).stderr
    assert f"matches /{DIRECTORY}/agent/main.py" in lines
    assert [line for line in lines.splitlines() if line.startswith("# wrote")] == []
    assert [line for line in lines.splitlines() if "code object from" in line and ".pyc'" not in line] == []


def test_images_have_the_same_files(release):
    """The image for arm64 has the files of amd64's, with the same owners and modes; only glibc's loader differs."""
    amd64, arm64 = (members(release, machine) for machine in ("amd64", "arm64"))
    differing = {path for path in amd64.keys() | arm64.keys() if amd64.get(path) != arm64.get(path)}
    loaders = {"lib/GNU/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2", "lib/GNU/ld-linux-aarch64.so.1"}
    assert differing == {*loaders, "lib/ld-linux-aarch64.so.1", "lib64", "lib/GNU/libmvec.so.1", "usr/bin/ld.so"}


def members(release, machine):
    """Returns type, mode, owner and target of each member of an image's layers, with one name for all machines."""
    _, layers = agent_image.read_image(release.one("podwire-agent-*-oci.tar"), machine)
    names = {"amd64": "x86_64", "arm64": "aarch64"}
    types = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            for one in archive:
                path, target = (
                    text.replace(f"{names[machine]}-linux-gnu", "GNU").replace(f":{machine}.", ":DEBIAN.")
                    for text in (one.name, one.linkname)
                )
                types[path] = (one.type, one.mode, one.uid, one.gid, target)
    return types


def test_compiled_modules_for_arm64_are_current(release, tmp_path):
    """Python accepts each compiled module of the image for arm64: its hash is that of the source beside it."""
    agent_image.unpack(release.one("podwire-agent-*-oci.tar"), tmp_path, "arm64")
    compiled = [*tmp_path.glob("usr/lib/python3*/**/*.pyc"), *tmp_path.glob(f"{DIRECTORY}/**/*.pyc")]
    assert len(compiled) > 700
    for path in compiled:
        source = path.parent.parent / path.name.replace(".cpython-311.pyc", ".py")
        assert path.read_bytes()[8:16] == importlib.util.source_hash(source.read_bytes()), path
