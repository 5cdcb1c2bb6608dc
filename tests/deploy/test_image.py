"""The image: the executable and nothing else, which a real runtime runs as the manifest says."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support import binaries, manifests
from tests.support.api_server import NODE
from tests.support.binaries import ROOT

# Private: what podman keeps in /run, its network, its processes; its cgroups are swept by the fixture.
INSIDE = """
root=$1; shift
mount --make-rprivate /
mount -t tmpfs podwire /run
runtime=$(command -v runc) && set -- --runtime "$runtime" "$@"
exec podman --root "$root/storage" --runroot /run/podwire --storage-driver vfs --events-backend file \
    --cgroup-manager cgroupfs "$@"
"""
NAME = "localhost/podwire"
LICENCES = ("LICENSE", "THIRD-PARTY-NOTICES.md")
CGROUP = f"podwire-{os.getpid()}"


@pytest.fixture(scope="module")
def podman(root, bin_dir, tmp_path_factory):
    """A function that runs podman with a storage of its own, in which the image is, and returns what came of it."""
    if not shutil.which("podman"):
        problem = "no podman: use `make needs-runtimes`"
        binaries.leave_out(problem)
    if bin_dir != ROOT / "dist" / "bin":
        pytest.skip("the image is made of dist/bin")
    directory = tmp_path_factory.mktemp("podman")
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(directory), "TMPDIR": str(directory)}

    def run(*words):
        alone = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
        line = [*alone, "sh", "-euc", INSIDE, "sh", str(directory), *map(str, words)]
        return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)

    if (info := run("info")).returncode:
        pytest.skip(f"podman does not run here: {info.stderr.strip()[-400:]}")
    built = run("build", "--quiet", "--isolation", "chroot", "--tag", NAME, "--file", "deploy/Containerfile", ".")
    assert built.returncode == 0, built.stderr
    yield run
    for top in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}"):
        for group in sorted((path for path in [top, *top.rglob("*")] if path.is_dir()), reverse=True):
            group.rmdir()


def blob(archive, descriptor):
    """Returns the file of an archive that a descriptor names."""
    return archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))


def test_the_image_is_the_executable(podman, bin_dir, tmp_path):
    """The only layer has the executable, byte by byte, which is the entry point, and the licences; all are root's."""
    saved = podman("save", "--quiet", "--format", "oci-archive", "--output", tmp_path / "image.tar", NAME)
    assert saved.returncode == 0, saved.stderr
    with tarfile.open(tmp_path / "image.tar") as image:
        (found,) = json.load(image.extractfile("index.json"))["manifests"]
        manifest = json.load(blob(image, found))
        config = json.load(blob(image, manifest["config"]))
        assert (config["os"], config["architecture"], config["config"]["Entrypoint"]) == (
            "linux",
            "amd64",
            ["/podwire"],
        )
        (layer,) = manifest["layers"]
        with tarfile.open(fileobj=blob(image, layer)) as files:
            expected = {"podwire": bin_dir / "podwire", **{name: ROOT / name for name in LICENCES}}
            assert {entry.name: (entry.uid, entry.gid) for entry in files} == dict.fromkeys(expected, (0, 0))
            assert files.getmember("podwire").mode & 0o7777 == 0o755
            for name, path in expected.items():
                assert files.extractfile(name).read() == path.read_bytes()


def test_a_runtime_runs_it_as_the_manifest_says(podman, bin_dir, tmp_path):
    """With the manifest's user, capabilities, mounts and the runtime's seccomp profile the image installs itself."""
    start = ("run", "--rm", "--pull", "never", "--network", "host", "--cgroup-parent", f"/{CGROUP}")
    probe = podman(*start, "--security-opt", "seccomp=unconfined", NAME, "list")
    if probe.returncode:
        pytest.skip(f"podman runs no container here: {probe.stderr.strip()[-400:]}")
    install = manifests.pod(manifests.INSTALL)["initContainers"][1]
    rights = install["securityContext"]
    options = ["--read-only", "--security-opt", "no-new-privileges"]
    options += ["--user", f"{rights['runAsUser']}:{rights['runAsGroup']}"]
    options += [f"--cap-drop={name}" for name in rights["capabilities"]["drop"]]
    options += [f"--cap-add={name}" for name in rights["capabilities"]["add"]]
    for mount in install["volumeMounts"]:
        (tmp_path / mount["name"]).mkdir()
        mode = "ro" if mount.get("readOnly") else "rw"
        options.append(f"--volume={tmp_path / mount['name']}:{mount['mountPath']}:{mode}")
    (tmp_path / "node" / "node.json").write_text(json.dumps(NODE))
    shutil.copy(manifests.INSTALL / "10-podwire.conflist", tmp_path / "network")
    done = podman(*start, *options, NAME, *install["args"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bin" / "bridge").read_bytes() == (bin_dir / "podwire").read_bytes()
    assert [path.name for path in (tmp_path / "net-d").iterdir()] == ["10-podwire.conflist"]
