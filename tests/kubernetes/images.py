"""The images of a cluster's pods, from programs of this machine; nothing is downloaded.

One rule: an image has upstream's name and, as far as its tests of the network use it, upstream's content.
"""

import io
import tarfile
from pathlib import Path

from pack.release import agent_image, product
from pack.release.product import Product
from tests.clients import images
from tests.kubernetes import plan
from tests.support import binaries, manifests

AGNHOST = "k8s.gcr.io/e2e-test-images/agnhost:2.21"
BUSYBOX = "docker.io/library/busybox:1.29"
PAUSE = "k8s.gcr.io/pause:3.2"
# Their tests run commands that agnhost's image has: dig, conntrack.
_SAME = (
    "gcr.io/kubernetes-e2e-test-images/jessie-dnsutils:1.0",
    "k8s.gcr.io/build-image/debian-iptables:buster-v1.3.0",
)
_VERSION = product.version()
_PODWIRE = f"localhost/podwire-agent:{_VERSION.replace('+', '-')}"


def aliases() -> dict[str, str]:
    """Returns further names of images, and the image of each: the name in deploy/install, and two of upstream."""
    (image,) = manifests.kustomization(manifests.INSTALL)["images"]
    agent = f"{image['newName']}:{image['newTag']}"
    return {agent: _PODWIRE, **dict.fromkeys(_SAME, AGNHOST)}


def write_archives(directory: Path) -> list[Path]:
    """Writes the archives of all images; the agent's has the built executable."""
    debian = (plan.PROGRAMS / "debian.tar").read_bytes()
    source = plan.PROGRAMS / "source"
    agnhost = _layer(plan.PROGRAMS / "agnhost", source / "localhost.crt", source / "localhost.key")
    paths = [directory / f"{name}.tar" for name in ("pause", "busybox", "agnhost")]
    images.write_archive(paths[0], PAUSE, (), layers=(_layer(plan.PROGRAMS / "pause"),), entrypoint=("/pause",))
    images.write_archive(paths[1], BUSYBOX, ("sh",))
    images.write_archive(paths[2], AGNHOST, ("pause",), layers=(debian, agnhost), entrypoint=("/agnhost",))
    built = Product(_VERSION, 1_780_000_000, "amd64", binaries.directory())
    layout, _ = agent_image.write([built], directory)
    return [*paths, layout]


def _layer(*files: Path) -> bytes:
    """Returns an archive with programs and data at the root."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in files:
            archive.add(file, file.name)
    return content.getvalue()
