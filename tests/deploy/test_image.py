"""The image: the executable, and nothing else."""

import json
import shutil
import subprocess
import tarfile

import pytest

from tests.support.binaries import ROOT

# podman's own files are in the test's directory, and what it makes in /run besides is private.
INSIDE = """
root=$1
mount --make-rprivate /
mount -t tmpfs podwire /run
private() { podman --root "$root/storage" --runroot /run/podwire --storage-driver vfs --events-backend file "$@"; }
private info >/dev/null || exit 77
private build --quiet --isolation chroot --tag localhost/podwire --file deploy/Containerfile .
private save --quiet --format oci-archive --output "$root/image.tar" localhost/podwire
"""
CANNOT = 77


@pytest.fixture
def image(bin_dir, root, tmp_path):
    """The image as podman builds it of this tree, as an archive of the OCI layout."""
    if not shutil.which("podman"):
        pytest.skip("no podman")
    if bin_dir != ROOT / "dist" / "bin":
        pytest.skip("the image is made of dist/bin")
    line = ["unshare", "--mount", "--net", "sh", "-euc", INSIDE, "sh", str(tmp_path)]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == CANNOT:
        pytest.skip(f"podman does not run here: {done.stderr.strip()[-400:]}")
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "image.tar") as archive:
        yield archive


def blob(archive, descriptor):
    """Returns the file of an archive that a descriptor names."""
    return archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))


def test_the_image_is_the_executable(image, bin_dir):
    """The only layer has one file, root's and executable, which is ours byte by byte and the entry point."""
    (found,) = json.load(image.extractfile("index.json"))["manifests"]
    manifest = json.load(blob(image, found))
    config = json.load(blob(image, manifest["config"]))
    assert (config["os"], config["architecture"], config["config"]["Entrypoint"]) == ("linux", "amd64", ["/podwire"])
    (layer,) = manifest["layers"]
    with tarfile.open(fileobj=blob(image, layer)) as files:
        (entry,) = files.getmembers()
        assert (entry.name, entry.uid, entry.gid, entry.mode & 0o7777) == ("podwire", 0, 0, 0o755)
        assert files.extractfile(entry).read() == (bin_dir / "podwire").read_bytes()
