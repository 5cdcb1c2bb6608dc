"""Multus' configuration in net.d, as a pure function of its file (docs/multus.md).

Multus is one plugin for the runtime. It runs the plugins of other networks, its delegates, by libcni and with another
cache: the pod network is in its configuration, further networks are in NetworkAttachmentDefinitions of the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

_TYPES = ("multus", "multus-shim")  # thin; thick, whose daemon runs the plugins
_CACHE_DIR = "/var/lib/cni/multus"
_HOST = "/host"  # where the daemon of thick mode has the node's root


def find_multus(plugins: Iterable[Mapping[str, object]]) -> Mapping[str, object] | None:
    """Returns Multus' configuration among the plugins of a network, None without it."""
    return next((plugin for plugin in plugins if plugin.get("type") in _TYPES), None)


def cache_dir(multus: Mapping[str, object]) -> str:
    """Returns the directory that has the `results` of the delegates."""
    return str(multus.get("cniDir") or _CACHE_DIR)


def list_delegates(multus: Mapping[str, object]) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yields the configurations in "delegates", with their positions: the first is the pod network.

    Multus ignores them beside a "clusterNetwork".
    """
    listed = multus.get("delegates")
    if not multus.get("clusterNetwork") and isinstance(listed, list):
        yield from ((number, item) for number, item in enumerate(listed) if isinstance(item, dict))


def cluster_network_file(multus: Mapping[str, object]) -> str:
    """Returns the path of the file that "clusterNetwork" names, "" if it names none on this node."""
    path = str(multus.get("clusterNetwork") or "")
    candidates = (path, path.removeprefix(_HOST)) if os.path.isabs(path) else ()
    return next((one for one in candidates if os.path.isfile(one)), "")
