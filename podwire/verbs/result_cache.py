"""Writes libcni's result cache, so that podwire, cnitool and the runtimes see each other's attachments.

An entry is written atomically (temporary file, rename). Keys, their order and the mode are libcni's
(cachedInfo in libcni/api.go, kind cniCacheV1).
"""

from __future__ import annotations

import binascii
import os
from contextlib import suppress

from cni import gojson
from podwire.layers import Layer
from podwire.networks import Network
from podwire.verbs.invoke import PodArgs
from process import directories, durable


def path_of(layer: Layer, network: str, pod: PodArgs) -> str:
    """Returns the path of an attachment's entry."""
    container_id, ifname = pod.attachment
    return os.path.join(layer.results_dir, f"{network}-{container_id}-{ifname}")


def entry_of(network: Network, pod: PodArgs, result: object) -> dict[str, object]:
    """Returns the content of an attachment's entry; empty values are left out, as in Go."""
    pairs = [pair.split("=", 1) for pair in pod.cni_args.split(";") if pair]
    filled = {"netns": pod.netns, "cniArgs": pairs, "capabilityArgs": dict(pod.capability_args), "result": result}
    return {
        "kind": "cniCacheV1",
        "containerId": pod.attachment.container_id,
        "config": binascii.b2a_base64(_whole(network), newline=False).decode(),
        "ifName": pod.attachment.ifname,
        "networkName": network.name,
        **{key: _sorted(value) for key, value in filled.items() if value},
    }


def write_entry(layer: Layer, network: Network, pod: PodArgs, result: object) -> None:
    """Writes the entry of an attachment, replacing an existing one; raises OSError."""
    path = path_of(layer, network.name, pod)
    directories.create(os.path.dirname(path), 0o700)
    content = gojson.dumps(entry_of(network, pod, result)).encode("utf-8", "replace")
    durable.write(path, content, 0o600, draft=os.path.join(os.path.dirname(path), f".podwire-{os.getpid()}"))


def delete_entry(layer: Layer, network: str, pod: PodArgs) -> None:
    """Deletes the entry of an attachment; a missing one is success. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path_of(layer, network, pod))


def _sorted(value: object) -> object:
    """Returns a value with the keys of its objects sorted, as Go writes a map."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _whole(network: Network) -> bytes:
    """Returns the self-contained list as JSON: with all plugins, also those from files beside it."""
    items: dict[str, object] = {"cniVersion": network.version, "name": network.name}
    items |= {"disableCheck": True} if network.disable_check else {}
    items |= {"disableGC": True} if network.disable_gc else {}
    items |= {"loadOnlyInlinedPlugins": True, "plugins": [dict(plugin) for plugin in network.plugins]}
    return gojson.dumps(items).encode("utf-8", "replace")
