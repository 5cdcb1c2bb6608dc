"""Finds what keeps network policies from applying on a node: settings, other engines, ports, records.

This module only reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from attachment.policy import port_guard, records
from attachment.policy.records import PodRecord
from kernel import sysctl
from kernel.netfilter import nft, nft_chains
from kernel.netfilter.nft import NftSocket

# Prefixes of names of chains and tables. Of two engines on a node, each would drop packets that only the other allows.
_CHAIN_PREFIXES = {
    "cali-": "Calico",
    "KUBE-NWPLCY": "kube-router",
    "CILIUM_": "Cilium",
    "cilium_": "Cilium",
    "WEAVE-NPC": "Weave",
}
_TABLE_PREFIXES = {
    "kube-network-policies": "kube-network-policies",
    "kindnet-network-policies": "kindnet",
    "calico": "Calico",
}
_BRIDGE_NETFILTER = {4: "bridge/bridge-nf-call-iptables", 6: "bridge/bridge-nf-call-ip6tables"}


def find_other_engine(socket: NftSocket) -> str:
    """Returns a problem if another program enforces network policies on this node, else ""; raises KernelError.

    It does not see rules of iptables-legacy.
    """
    for chain in nft_chains.list_chains(socket, _may_be_engine):
        for name, prefixes in ((chain.name, _CHAIN_PREFIXES), (chain.table.name, _TABLE_PREFIXES)):
            for prefix, engine in prefixes.items():
                if name.startswith(prefix):
                    where = f"chain {chain.name} of table {chain.table.name}"
                    return f"{engine} enforces network policies on this node ({where}): remove it, or --network-policy"
    return ""


def _may_be_engine(message: bytes) -> bool:
    return any(name.encode() in message for name in (*_CHAIN_PREFIXES, *_TABLE_PREFIXES))


def find_unfiltered_bridge(pods: Iterable[PodRecord]) -> str:
    """Returns why policies do not apply between pods of one bridge, "" if they do."""
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
                f'{setting} is not 1, so policies do not apply between pods of one bridge: set "bridgeNetfilter": true'
            )
    return ""


def find_unguarded_ports(pods: Iterable[PodRecord]) -> set[PodRecord]:
    """Returns the pods whose port exists and is not guarded, as after `nft flush ruleset`; raises KernelError."""
    with nft.open_socket() as socket:
        guarded = port_guard.list_ports(socket)
    return {pod for pod in pods if pod.host_veth not in guarded and os.path.exists(f"/sys/class/net/{pod.host_veth}")}


def describe_unguarded(pods: Iterable[PodRecord]) -> str:
    """Returns a problem that names one of these pods, "" without any."""
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.pod)):
        text = f"the port {pod.host_veth} of pod {pod.namespace}/{pod.pod} is not guarded"
        return f"{text}, so the pod can use other addresses: podwire repair {pod.network}"
    return ""


def describe_damaged(names: Iterable[str], pods: Mapping[str, PodRecord]) -> str:
    """Returns a problem that names one of these files, which are not the records of their attachments, or ""."""
    for name in sorted(names):
        problem = f"{records.path_of(name)} is not the record of an attachment"
        if name in pods:
            return f"{problem}: podwire repair {pods[name].network}"
        return f"{problem}: its pod, if it has one, has no policies: podwire repair NETWORK, then delete the file"
    return ""


def find_missing_key(conf: str) -> str:
    """Returns why policies do not apply to pods of the network in the file `conf`, "" if they do."""
    try:
        with open(conf, encoding="utf-8") as file:
            network = json.load(file)
        if any(plugin.get("networkPolicy") is True for plugin in network["plugins"]):
            return ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""  # `podwire install` reports the fault of the file
    return f'{conf} has no "networkPolicy": true, so policies do not apply to new pods: add it to bridge or ptp'


def _is_bridge_port(interface: str) -> bool:
    return os.path.exists(f"/sys/class/net/{interface}/brport")
