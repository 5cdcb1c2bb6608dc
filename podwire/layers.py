"""The layers that attach this node's pods: the container runtimes, and Multus below them.

Each layer runs plugins by libcni and records the attachments in a cache of its own. A runtime's cache has Multus itself
as a network; the networks behind it are in Multus' cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from cni.errors import CniError
from podwire import multus, networks

CACHE_DIR = "/var/lib/cni"


class Layer(NamedTuple):
    """A layer: `cache_dir` has libcni's `results`; `source` is "" for a runtime.

    For Multus `source` is the file that configures it, or `cache_dir` if Multus saves its pods' networks there.
    """

    cache_dir: str = CACHE_DIR
    source: str = ""

    @property
    def results_dir(self) -> str:
        """The directory in which libcni has a file for each attachment."""
        return os.path.join(self.cache_dir, "results")


RUNTIME = Layer()


def read_layers(conf_dir: str, cache_dirs: Iterable[str]) -> tuple[Layer, ...]:
    """Returns the layers whose caches are `cache_dirs`, and those of Multus, which net.d configures.

    One of `cache_dirs` is Multus' if Multus saves files there: the daemon's "cniDir" is not always in net.d.
    A net.d that cannot be read has no Multus here; its readers report the reason.
    """
    layers = {os.path.normpath(path): Layer(path, path if any(multus.list_saved(path)) else "") for path in cache_dirs}
    with suppress(CniError):
        for file in networks.read_directory(conf_dir):
            if file.network and (plugin := multus.find_multus(file.network.plugins)):
                path = multus.cache_dir(plugin)
                layers[os.path.normpath(path)] = Layer(path, file.path)
    return tuple(layers.values())


def describe_caches(layers: Iterable[Layer]) -> str:
    """Returns the paths of the caches as text."""
    return " and ".join(layer.results_dir for layer in layers)
