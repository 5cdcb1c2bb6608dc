"""What a node needs for network policies, and what excludes them: another program's policy engine.

This module only reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from attachment.policy.records import PodRecord
from kernel import sysctl
from kernel.netfilter import nft_chains
from kernel.netfilter.nft import NftSocket

# The beginnings of chains' and tables' names. Two engines on a node would each drop what only the other one allows.
_CHAINS = {
    "cali-": "Calico",
    "KUBE-NWPLCY": "kube-router",
    "CILIUM_": "Cilium",
    "cilium_": "Cilium",
    "WEAVE-NPC": "Weave",
}
_TABLES = {
    "kube-network-policies": "kube-network-policies",
    "kindnet-network-policies": "kindnet",
    "calico": "Calico",
}
_BRIDGE_NETFILTER = {4: "bridge/bridge-nf-call-iptables", 6: "bridge/bridge-nf-call-ip6tables"}


def find_engine(socket: NftSocket) -> str:
    """Returns why another program's policy engine excludes podwire's, "" if there is none; raises KernelError.

    Rules of iptables-legacy are not seen.
    """
    for chain in nft_chains.list_chains(socket, _may_be_engine):
        for name, owners in ((chain.name, _CHAINS), (chain.table.name, _TABLES)):
            for start, owner in owners.items():
                if name.startswith(start):
                    where = f"chain {chain.name} of table {chain.table.name}"
                    return f"{owner} enforces network policies on this node ({where}): remove it, or --network-policy"
    return ""


def _may_be_engine(message: bytes) -> bool:
    return any(name.encode() in message for name in (*_CHAINS, *_TABLES))


def find_unfiltered_bridge(pods: Iterable[PodRecord]) -> str:
    """Returns why policies do not hold between the pods of a bridge, "" if they do."""
    versions = {address.version for pod in pods if _is_bridge_port(pod.host_veth) for address in pod.addresses}
    for version in sorted(versions):
        name = _BRIDGE_NETFILTER[version]
        try:
            is_on = sysctl.get(name) == "1"
        except OSError:
            is_on = False
        if not is_on:
            setting = f"net.{name.replace('/', '.')}"
            return (
                f'{setting} is not 1, so policies do not hold between the pods of a bridge: set "bridgeNetfilter": true'
            )
    return ""


def find_missing_key(conf: str) -> str:
    """Returns why the pods of the network in the file `conf` get no policies, "" if they do."""
    try:
        with open(conf, encoding="utf-8") as file:
            network = json.load(file)
        if any(plugin.get("networkPolicy") is True for plugin in network["plugins"]):
            return ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""  # `podwire install` reports what is wrong with it
    return f'{conf} has no "networkPolicy": true, so new pods get no policies: add it to bridge or ptp'


def _is_bridge_port(interface: str) -> bool:
    return os.path.exists(f"/sys/class/net/{interface}/brport")
