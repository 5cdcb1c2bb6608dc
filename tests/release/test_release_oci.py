"""The image: its layout, and its use by podman."""

import gzip
import hashlib
import io
import json
import tarfile

import pytest

from pack.release.product import BUILT
from tests.clients.images import extract
from tests.clients.podman import PROGRAMS, configure
from tests.release.conftest import EPOCH_S


@pytest.fixture(scope="module")
def layout(release):
    """The files of the layout by name."""
    with tarfile.open(release.one("podwire-[0-9]*-oci.tar")) as archive:
        return {member.name: extract(archive, member).read() for member in archive.getmembers()}


def blob(layout, descriptor):
    """Returns the blob of a descriptor, after a check of its size and checksum."""
    algorithm, digest = descriptor["digest"].split(":")
    content = layout[f"blobs/{algorithm}/{digest}"]
    assert (len(content), hashlib.sha256(content).hexdigest()) == (descriptor["size"], digest)
    return content


def test_index_has_an_image_for_each_machine(layout):
    """The index has an image for each built machine: one layer, the executable as its entry point."""
    assert json.loads(layout["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (outer,) = json.loads(layout["index.json"])["manifests"]
    images = json.loads(blob(layout, outer))["manifests"]
    used = {"oci-layout", "index.json", "blobs/sha256/" + outer["digest"][7:]}
    machines = []
    for image in images:
        manifest = json.loads(blob(layout, image))
        config, (layer,) = json.loads(blob(layout, manifest["config"])), manifest["layers"]
        used |= {"blobs/sha256/" + one["digest"][7:] for one in (image, manifest["config"], layer)}
        machine = image["platform"]["architecture"]
        assert (config["architecture"], config["os"]) == (machine, "linux")
        assert config["config"]["Entrypoint"] == ["/podwire"]
        with tarfile.open(fileobj=io.BytesIO(blob(layout, layer))) as archive:
            members = {member.name: (member.mode, member.uid, member.mtime) for member in archive.getmembers()}
            assert extract(archive, "podwire").read() == (BUILT[machine] / "podwire").read_bytes()
        uncompressed = gzip.decompress(blob(layout, layer))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(uncompressed).hexdigest()}"]
        assert members == {
            "podwire": (0o755, 0, EPOCH_S),
            "LICENSE": (0o644, 0, EPOCH_S),
            "THIRD-PARTY-NOTICES.md": (0o644, 0, EPOCH_S),
        }
        machines.append(machine)
    assert machines == [machine for machine, path in BUILT.items() if (path / "podwire").exists()]
    assert used == layout.keys()


def test_podman_installs_the_plugins_with_the_image(release, empty_machine, needs_programs, tmp_path, program, plugins):
    """Podman loads and runs the image with the node's directory, and the image installs all plugins there."""
    needs_programs(*PROGRAMS)
    (tmp_path / "bin").mkdir()
    podman = configure(empty_machine)
    loaded = podman("load", "--quiet", "--input", str(release.one("podwire-[0-9]*-oci.tar"))).removeprefix(
        "Loaded image: "
    )
    start = ("run", "--rm", "--pull=never", "--network=none", f"--cgroup-parent=/{empty_machine.cgroup}")
    podman(*start, f"--volume={tmp_path / 'bin'}:/host", loaded, "install", "--bin-dir=/host")
    files = {path.name: path for path in (tmp_path / "bin").iterdir() if path.is_file()}
    assert sorted(files) == sorted([*plugins, "podwire"])
    assert {path.stat().st_ino for path in files.values()} == {files["podwire"].stat().st_ino}
    assert files["podwire"].read_bytes() == program.read_bytes()
