"""The node agent's image, unpacked: the layers of `make release`, from the present code."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.clients.images import extract


def read_image(layout: Path, machine: str = "amd64") -> tuple[dict[str, Any], list[bytes]]:
    """Returns the configuration and the layers, compressed, of a machine's image in a layout."""
    with tarfile.open(layout) as archive:

        def blob(descriptor: dict[str, Any]) -> bytes:
            return extract(archive, "blobs/" + descriptor["digest"].replace(":", "/")).read()

        (outer,) = json.loads(extract(archive, "index.json").read())["manifests"]
        images = json.loads(blob(outer))["manifests"]
        (image,) = (one for one in images if one["platform"]["architecture"] == machine)
        manifest = json.loads(blob(image))
        return json.loads(blob(manifest["config"]))["config"], [blob(layer) for layer in manifest["layers"]]


def unpack(layout: Path, directory: Path, machine: str = "amd64") -> dict[str, Any]:
    """Unpacks a machine's image in a layout; returns its configuration."""
    config, layers = read_image(layout, machine)
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            archive.extractall(directory)
    return config
