"""Builds a container image of the machine's static busybox, as an OCI archive for podman and containerd.

One rule: nothing is downloaded; the image contains only files of this machine.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.support.processes import PATH

BUSYBOX = Path("/bin/busybox")
PAGE = "podwire"  # the page of its web server
WEB_SERVER = ("busybox", "httpd", "-f", "-p", "80", "-h", "/www")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image."


def write_archive(
    path: Path,
    name: str,
    command: Sequence[str] = ("/bin/sh",),
    *,
    layers: Sequence[bytes] = (),
    entrypoint: Sequence[str] = (),
) -> None:
    """Writes the image `name` ("localhost/box:1"), whose containers run `command` by default; by default of busybox."""
    layers = layers or (_layer(),)
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": _OCI + kind, "digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": [f"PATH={PATH}"], "Entrypoint": list(entrypoint), "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]},
    }
    image = {
        "schemaVersion": 2,
        "mediaType": _OCI + "manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(layer, "layer.v1.tar") for layer in layers],
    }
    manifest = blob(json.dumps(image).encode(), "manifest.v1+json")
    manifest["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
        for digest, data in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", data)


def write_directory(path: Path) -> None:
    """Creates a directory with the root file system of the image."""
    with tarfile.open(fileobj=io.BytesIO(_layer())) as layer:
        layer.extractall(path)


def extract(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> IO[bytes]:
    """Returns a regular file of an archive."""
    file = archive.extractfile(member)
    assert file is not None, member
    return file


def _layer() -> bytes:
    """Returns the root file system as a tar archive: busybox under all of its names, and a web page."""
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var", "www"):
            member = tarfile.TarInfo(directory)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(member)
        _add(layer, "bin/busybox", BUSYBOX.read_bytes(), 0o755)
        for applet in sorted(set(applets) - {"busybox"}):
            member = tarfile.TarInfo(f"bin/{applet}")
            member.type, member.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(member)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _add(layer, "www/index.html", f"{PAGE}\n".encode())
    return content.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
