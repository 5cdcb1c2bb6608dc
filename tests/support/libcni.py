"""libcni's result cache, for plugins that run without libcni.

One rule: the path /var/lib/cni is fixed, so a plugin sees another directory there only in its own mount namespace.
"""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.support import mount_wrapper

# A missing path beside the namespace of a running pod: that proves, in a container too, that the namespace is missing.
MISSING_NETNS = f"/proc/{os.getpid()}/ns/absent"
_OTHER_NETWORK = "other-network"


def install_with_cache(directory: Path, *plugins: str, bin_dir: Path | None = None) -> Path:
    """Creates `directory` with `plugins` whose cache is `<directory>/results`, still empty; returns it."""
    (directory / "results").mkdir(parents=True)
    cache = f"mount -t tmpfs podwire /var/lib; mkdir /var/lib/cni; ln -s {directory}/results /var/lib/cni"
    for name in plugins:
        mount_wrapper.install(directory, name, cache, bin_dir=bin_dir)
    return directory


def write_entry(
    directory: Path,
    network: str,
    container_id: str,
    *,
    netns: str = "",
    ifname: str = "eth0",
    result: object = None,
    config: object = None,
    capability_args: Mapping[str, object] | None = None,
    cni_args: Mapping[str, str] | None = None,
) -> Path:
    """Writes an attachment's entry into the cache in `directory`, by default with this process's namespace.

    `config` is the network's list, which libcni encodes in base64. Returns the file's path.
    """
    entry: dict[str, object] = {
        "kind": "cniCacheV1",
        "networkName": network,
        "containerId": container_id,
        "ifName": ifname,
        "netns": netns or f"/proc/{os.getpid()}/ns/net",
        "result": result,
    }
    if config is not None:
        entry["config"] = base64.b64encode(json.dumps(config).encode()).decode()
    if capability_args:
        entry["capabilityArgs"] = dict(capability_args)
    if cni_args:
        entry["cniArgs"] = [list(pair) for pair in cni_args.items()]
    if netns == MISSING_NETNS and network != _OTHER_NETWORK:
        write_entry(directory, _OTHER_NETWORK, "other")
    path = directory / "results" / f"{network}-{container_id}-{ifname}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry))
    return path
