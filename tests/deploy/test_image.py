"""The plugins' image contains only the executable and licences; a real runtime runs the agent's image."""

import json
import tarfile

import pytest

from tests.clients.images import extract
from tests.clients.podman import PROGRAMS, configure
from tests.support import manifests
from tests.support.binaries import ROOT

NAME = "localhost/podwire"
LICENCES = ("LICENSE", "THIRD-PARTY-NOTICES.md")


@pytest.fixture(scope="module")
def podman(empty_machine, needs_programs, bin_dir):
    """Podman on a private machine, which has built the image."""
    needs_programs(*PROGRAMS)
    if bin_dir != ROOT / "dist" / "bin":
        pytest.skip("the image is built from dist/bin")
    client = configure(empty_machine)
    containerfile = f"--file={ROOT / 'deploy' / 'Containerfile'}"
    client("build", "--quiet", "--isolation=chroot", f"--tag={NAME}", containerfile, str(ROOT))
    return client


def blob(archive, descriptor):
    """Returns the file of an archive that a descriptor names."""
    return extract(archive, "blobs/" + descriptor["digest"].replace(":", "/"))


def test_image_is_the_executable_and_its_licences(podman, bin_dir, tmp_path):
    """The only layer contains the unchanged executable, which is the entry point, and the licences, owned by root."""
    podman("save", "--quiet", "--format=oci-archive", f"--output={tmp_path / 'image.tar'}", NAME)
    with tarfile.open(tmp_path / "image.tar") as image:
        (descriptor,) = json.load(extract(image, "index.json"))["manifests"]
        manifest = json.load(blob(image, descriptor))
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
                assert extract(files, name).read() == path.read_bytes()


def test_runtime_runs_the_agents_image_with_the_manifests_permissions(podman, packed_image, tmp_path):
    """With the manifest's user, capabilities, mounts and the runtime's seccomp profile the agent starts."""
    loaded = podman("load", "--quiet", "--input", str(packed_image)).removeprefix("Loaded image: ").strip()
    start = ("run", "--rm", "--pull=never", "--network=host", f"--cgroup-parent=/{podman.machine.cgroup}")
    if problem := podman.machine.problem("podman", *start, "--security-opt=seccomp=unconfined", loaded, "--help"):
        pytest.skip(f"podman runs no container here: {problem}")
    (agent,) = manifests.pod(manifests.INSTALL)["containers"]
    rights = agent["securityContext"]
    options = ["--read-only", "--security-opt", "no-new-privileges"]
    options += ["--user", f"{rights['runAsUser']}:{rights['runAsGroup']}"]
    options += [f"--cap-drop={name}" for name in rights["capabilities"]["drop"]]
    options += [f"--cap-add={name}" for name in rights["capabilities"]["add"]]
    for mount in agent["volumeMounts"]:
        (tmp_path / mount["name"]).mkdir()
        mode = "ro" if mount.get("readOnly") else "rw"
        options.append(f"--volume={tmp_path / mount['name']}:{mount['mountPath']}:{mode}")
    done = podman.machine.done("podman", *start, *options, "--env=NODE_NAME=worker-1", loaded, *agent["args"])
    assert (done.returncode, "the API server is unknown" in done.stdout + done.stderr) == (1, True), done
    assert (tmp_path / "run" / "agent.lock").exists()
