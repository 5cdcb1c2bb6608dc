"""The files of net.d against each other and against the host: which wins, which name or subnet is there twice.

One rule: a file by itself is `podwire lint`'s; here stands what only the whole node shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from shlex import quote

from cni.address import Network as Subnet
from kernel.link import IFF_LOOPBACK
from podwire.attachments import CachedAttachment
from podwire.doctor.finding import UNSEEN, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import Interface, Node, overlapping, types_of
from podwire.output import plural

_GROUP = "configuration"

_NONE = Fault(
    "no-network",
    Severity.PROBLEM,
    "net.d is not there, or has no file that a runtime can use: pods wait for a network, nodes are not ready",
    "put a configuration there (`podwire lint` reads it)",
)
_UNUSABLE = Fault(
    "file-unusable",
    Severity.WARNING,
    "a file that runtimes read cannot be used; containerd then takes none of the files",
    "`podwire lint FILE` tells why; mend it, or move it out of net.d",
)
_TWICE = Fault(
    "same-name",
    Severity.WARNING,
    "two files have a network of one name: which one is used differs between runtimes, and they share their addresses",
    "rename one of the networks, or move its file out of net.d",
)
_TOGETHER = Fault(
    "subnets-overlap",
    Severity.WARNING,
    "two networks give addresses of one subnet, each without knowing of the other's: pods get the same address",
    'change "subnet" in one of the files',
)
_TAKEN = Fault(
    "subnet-taken",
    Severity.WARNING,
    "the host itself reaches a pod subnet by another interface: packets for the pods, or for the others, go wrong",
    'change "subnet" in the file, or take the address or route off the host',
)
_FORGOTTEN = Fault(
    "network-not-configured",
    Severity.NOTE,
    "pods of a network live that no file of net.d has any more: they work on, by what the cache knows of them",
    "put its file back, or make the pods again",
)
_OTHERS = Fault(
    "other-cni",
    Severity.NOTE,
    "another CNI has left files or interfaces, and no network uses it; its rules and routes may still be there, too",
    "remove it as its documentation says; a reboot takes its interfaces away",
)

# What they leave on a node, by the name of their plugin.
_STATE = {
    "calico": ("/var/lib/calico", "/run/calico", "/etc/cni/net.d/calico-kubeconfig"),
    "cilium-cni": ("/run/cilium", "/sys/fs/bpf/tc/globals/cilium_ipcache"),
    "flannel": ("/run/flannel/subnet.env",),
    "weave-net": ("/var/lib/weave",),
    "antrea": ("/run/antrea",),
}
_LINKS = {
    "calico": ("vxlan.calico", "wireguard.cali"),
    "cilium-cni": ("cilium_host", "cilium_vxlan"),
    "flannel": ("flannel.1", "flannel-v6.1", "flannel-wg"),
    "weave-net": ("weave",),
    "antrea": ("antrea-gw0",),
}
_LINK_PREFIXES = {"calico": "cali", "cilium-cni": "lxc_health"}


def _files(node: Node) -> Iterator[Finding]:
    if os.path.lexists(node.conf_dir) and not os.path.isdir(os.path.realpath(node.conf_dir)):
        directory = quote(node.conf_dir)
        yield _NONE.finding(node.conf_dir, "it is no directory", f"mv {directory} {directory}.old; mkdir {directory}")
        return
    usable = [file for file in node.files if file.network]
    for file in node.files:
        if file.problem and file.is_hidden:
            yield UNSEEN.finding(file.path, f"it {file.problem.msg}", UNSEEN.fix)
        elif file.problem:
            yield _UNUSABLE.finding(
                file.path, f"it cannot be used: {file.problem.msg}", f"podwire lint {quote(file.path)}"
            )
    if not usable:
        why = "it is not there" if not os.path.isdir(node.conf_dir) else "it has no configuration that can be used"
        fix = f"put a file like 10-podwire.conflist into {node.conf_dir}, then: podwire lint {node.conf_dir}"
        yield _NONE.finding(node.conf_dir, why, fix)
    elif usable[0].network:
        wins = f"Kubernetes' runtimes take it, the first of {len(node.files)}: network {usable[0].network.name}"
        yield ok_finding("files", usable[0].path, wins)


def _names(node: Node) -> Iterator[Finding]:
    paths: dict[str, list[str]] = {}
    for file in node.files:
        if file.network and node.network in ("", file.network.name):
            paths.setdefault(file.network.name, []).append(file.path)
    for name, found in paths.items():
        if len(found) > 1:
            others = ", ".join(found[1:])
            yield _TWICE.finding(
                name, f"it is in {found[0]} and in {others}", f"move away or rename the one in {others}"
            )


def _forgotten(node: Node) -> Iterator[Finding]:
    names = {file.network.name for file in node.files if file.network}
    counts: dict[str, int] = {}
    for one in node.living:
        if one.network_name not in names and not _is_podmans_default(one):
            counts[one.network_name] = counts.get(one.network_name, 0) + 1
    for name, number in counts.items():
        yield _FORGOTTEN.finding(
            name, f"{plural(number, 'living attachment')}, and {node.conf_dir} has no such network", _FORGOTTEN.fix
        )


def _is_podmans_default(one: CachedAttachment) -> bool:
    """Tells whether this is the network that podman has in no file until somebody changes it."""
    bridge = one.network.plugins[0].get("bridge") if one.network else None
    return (one.network_name, bridge) == ("podman", "cni-podman0")


def _subnets(node: Node) -> Iterator[Finding]:
    for one, other in combinations(node.interfaces, 2):
        if one.network.name == other.network.name:
            continue
        for own in one.subnets:
            found = overlapping(own, other.subnets)
            if found:
                text = f"{own} of {one.network.path} and {found} of {other.network.path} overlap"
                fix = f'change "subnet" in {other.network.path}'
                yield _TOGETHER.finding(f"{one.network.name}, {other.network.name}", text, fix)


def _host(node: Node) -> Iterator[Finding]:
    for item in node.interfaces:
        for own in item.subnets:
            where = _taken(node, item, own)
            if where:
                fix = f'change "subnet" in {item.network.path}, or take that off the host'
                yield _TAKEN.finding(item.network.name, f"{own} overlaps with {where}", fix)


def _taken(node: Node, item: Interface, own: Subnet) -> str:
    """Tells what of the host overlaps with a subnet: the network of an interface's address, or a route by one.

    Not the network's bridge and what stands on it, nor pairs (routed pods, other plugins' gateways), nor single
    addresses (an overlay's own), nor routes to more than the subnet: they are the way to the rest of it.
    """
    for index, assigned in node.addresses.items():
        link = node.link_of(index)
        if link is None or link.kind == "veth" or _is_ours(link.name, item) or link.flags & IFF_LOOPBACK:
            continue
        for one in assigned:
            network = one.address.network
            if 0 < network.prefixlen < network.max_prefixlen and overlapping(own, [network]):
                return f'{one.address} of interface "{link.name}"'
    for route in node.routes:
        link, network = node.link_of(route.index), route.dst.network
        if link is None or link.kind == "veth" or _is_ours(link.name, item):
            continue
        if own.prefixlen <= network.prefixlen < network.max_prefixlen and overlapping(own, [network]):
            return f'the route to {network} by interface "{link.name}"'
    return ""


def _is_ours(name: str, item: Interface) -> bool:
    return bool(item.bridge) and (name == item.bridge or name.startswith(f"{item.bridge}."))


def _leftovers(node: Node) -> Iterator[Finding]:
    used = {kind for network in node.networks for kind in types_of(network)}
    for name, paths in _STATE.items():
        if any(name in kind or kind in name for kind in used):
            continue
        found = [path for path in paths if os.path.exists(path)]
        names = _LINKS[name]
        prefix = _LINK_PREFIXES.get(name)
        found += [
            f'interface "{link.name}"'
            for link in node.links
            if link.name in names or (prefix and link.name.startswith(prefix) and link.kind == "veth")
        ]
        if found:
            more = f" and {len(found) - 4} more" if len(found) > 4 else ""
            yield _OTHERS.finding(name, f"it has left {', '.join(found[:4])}{more}", _OTHERS.fix)


CHECKS = (
    Check(_GROUP, "files", "net.d has a network", _files, (_NONE, _UNUSABLE)),
    Check(_GROUP, "names", "each network is in one file", _names, (_TWICE,)),
    Check(_GROUP, "forgotten", "the networks of living pods are configured", _forgotten, (_FORGOTTEN,)),
    Check(_GROUP, "subnets", "no two networks give the same addresses", _subnets, (_TOGETHER,)),
    Check(_GROUP, "host", "the host has no other way to the pods' subnets", _host, (_TAKEN,)),
    Check(_GROUP, "leftovers", "no other CNI has left anything", _leftovers, (_OTHERS,)),
)
