"""Multus' files: its configuration in net.d, and the configurations with which it began an ADD (docs/multus.md).

Multus is one plugin for the runtime. It runs the plugins of other networks, its delegates, by libcni and with another
cache: the pod network is in its configuration, further networks are in NetworkAttachmentDefinitions of the cluster.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Iterator, Mapping

from cni import gojson
from process import files

_TYPES = ("multus", "multus-shim")  # thin; thick, whose daemon runs the plugins
_CACHE_DIR = "/var/lib/cni/multus"
_CONF_DIR = "/etc/cni/multus/net.d"
_HOST = "/host"  # where the daemon of thick mode has the node's root


def find_multus(plugins: Iterable[Mapping[str, object]]) -> Mapping[str, object] | None:
    """Returns Multus' configuration among the plugins of a network, None without it."""
    return next((plugin for plugin in plugins if plugin.get("type") in _TYPES), None)


def cache_dir(multus: Mapping[str, object]) -> str:
    """Returns the directory that has the `results` of the delegates; runtimes start Multus in /."""
    path = multus.get("cniDir")
    return os.path.join("/", path) if path and isinstance(path, str) else _CACHE_DIR


def list_delegates(multus: Mapping[str, object]) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yields the configurations in "delegates", with their positions: the first is the pod network.

    Multus ignores them beside a "clusterNetwork".
    """
    listed = multus.get("delegates")
    if not multus.get("clusterNetwork") and isinstance(listed, list):
        yield from ((number, item) for number, item in enumerate(listed) if isinstance(item, dict))


def find_cluster_network(multus: Mapping[str, object]) -> tuple[str, str]:
    """Returns the file or directory of the network that "clusterNetwork" names, and its name, "" for the first one.

    As in Multus the value is a path, or the name of a network in "confDir". The path is "" if it does not exist.
    """
    value = multus.get("clusterNetwork")
    if not value or not isinstance(value, str):
        return "", ""
    name = "" if os.path.isabs(value) else value
    path = str(multus.get("confDir") or _CONF_DIR) if name else value
    return next((one for one in (path, path.removeprefix(_HOST)) if os.path.exists(one)), ""), name


def list_saved(directory: str) -> Iterator[bytes]:
    """Yields the networks' configurations that Multus saves in its cache directory, a file for each pod, before ADD.

    Skips files that cannot be read: they belong to pods that Multus may just be creating or deleting.
    """
    try:
        paths = [entry.path for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return
    for path in sorted(paths):
        try:
            items = gojson.loads(files.read(path, gojson.MAX_BYTES))
            texts = [item.get("Bytes") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            yield from (binascii.a2b_base64(text, strict_mode=True) for text in texts if isinstance(text, str))
        except (OSError, ValueError):
            continue
