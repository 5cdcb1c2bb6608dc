"""The networks of this node that use pools, and the store, from the agent's options and the network's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from agent.kubernetes import ApiClient
from agent.pools.etcd import etcd_store
from agent.pools.kubernetes_store import KubernetesStore
from agent.pools.network_blocks import NetworkOptions
from agent.pools.options import ETCD, PoolOptions
from agent.pools.store import Store
from agent.settings import Settings
from cni.errors import CniError, Code
from ipam.host_local.conf import DATA_DIR
from process import files

_CONF_BYTES = 1 << 20


def open_store(options: PoolOptions, client: ApiClient | None) -> Store:
    """Returns the store that the options name; raises CniError(7). Makes no request."""
    etcd = options.etcd
    if options.store != ETCD:
        assert client  # options.py refuses --store kubernetes without an API server
        return KubernetesStore(client, options.space)
    try:
        return etcd_store(
            etcd.endpoints,
            ca=_path(etcd.ca_file),
            cert=_path(etcd.cert_file),
            key=_path(etcd.key_file),
            user=etcd.user,
            password_file=_path(etcd.password_file),
            space=options.space,
        )
    except ValueError as error:
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"etcd: {error}", "see podwire-agent --help") from error


def list_networks(settings: Settings) -> tuple[NetworkOptions, ...]:
    """Returns the networks of this node that use pools; raises CniError(7) if there are none, CniError(5)."""
    results_dir = f"{settings.cache_dir}/results"
    networks = [NetworkOptions(name, pool, DATA_DIR, results_dir) for name, pool in settings.pools.networks]
    if settings.install:
        networks.append(_network_of_conf(settings.conf, results_dir))
    if not networks:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG, "no network of this node uses a pool", "set --pool-network NETWORK=POOL"
        )
    return tuple(networks)


def _network_of_conf(path: str, results_dir: str) -> NetworkOptions:
    """Returns the network that the agent installs; raises CniError(7) if its host-local names no pool."""
    try:
        conf = json.loads(files.read(path, _CONF_BYTES))
    except (OSError, ValueError) as error:
        raise CniError(Code.IO_FAILURE, f"cannot read the network {path}: {error}", "set --conf") from error
    plugins = conf.get("plugins") if isinstance(conf, Mapping) else None
    for plugin in plugins if isinstance(plugins, list) else []:
        ipam = plugin.get("ipam") if isinstance(plugin, Mapping) else None
        if isinstance(ipam, Mapping) and ipam.get("type") == "host-local" and ipam.get("pool"):
            return NetworkOptions(
                str(conf.get("name")), str(ipam["pool"]), str(ipam.get("dataDir") or DATA_DIR), results_dir
            )
    raise CniError(
        Code.INVALID_NETWORK_CONFIG,
        f"the network {path} uses no pool",
        'write "ipam": {"type": "host-local", "pool": "default"}, without ranges',
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None
