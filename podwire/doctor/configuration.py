"""Checks the files of net.d against each other and the host: which one runtimes use, duplicate names and subnets.

`podwire lint` checks single files; this module checks only what needs the whole node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_network
from itertools import combinations
from shlex import quote

from cni.address import Network as Subnet
from cni.errors import CniError
from kernel.fib import UNICAST
from kernel.link import IFF_LOOPBACK
from podwire import flannel
from podwire.attachments import CachedAttachment
from podwire.doctor.finding import UNSEEN, UNSEEN_FIX, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode, InterfaceConf
from podwire.doctor.shell_command import ShellCommand
from podwire.networks import with_delegates
from podwire.output import plural
from podwire.runtimes import CONF_DIR

_GROUP = "configuration"

_NONE = Fault(
    "no-network",
    Severity.PROBLEM,
    "net.d does not exist, or has no file that a runtime can use: pods wait for a network, nodes are not ready",
)
_UNUSABLE = Fault(
    "file-unusable",
    Severity.WARNING,
    "a file that runtimes read is invalid; containerd then uses none of the files",
)
_TWICE = Fault(
    "same-name",
    Severity.WARNING,
    "two files define networks of the same name: runtimes differ in which one they use, and both share their addresses",
)
_TOGETHER = Fault(
    "subnets-overlap",
    Severity.WARNING,
    "two networks allocate addresses of the same subnet independently: two pods can get the same address",
)
_ON_HOST = Fault(
    "subnet-taken",
    Severity.WARNING,
    "the host has an address in, or a route to, a pod subnet on another interface: packets reach the wrong destination",
)
_FORGOTTEN = Fault(
    "network-not-configured",
    Severity.NOTE,
    "pods of a network are running, but no file of net.d defines it any more: they work with the configuration in the "
    "cache",
)
_NEWER_FIRST = Fault(
    "other-network-first",
    Severity.WARNING,
    "Kubernetes' runtimes use the first file of net.d, and it has another network than the running pods: new pods get "
    "that one",
)
_OTHERS = Fault(
    "other-cni",
    Severity.NOTE,
    "files or interfaces of another CNI remain, and no network uses it; its rules and routes may also remain",
)
_NO_SUBNET = Fault(
    "flannel-subnet-missing",
    Severity.PROBLEM,
    "the file of flannel's daemon has no subnet of this node: flannel's plugin fails at ADD",
)

_KUBELET = "/var/lib/kubelet"
_SECOND_BYTES = range(22, 32)  # of the subnets to suggest: README's first

# Files and interfaces that other CNIs leave on a node, by the name of their plugin.
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


def _files(node: CheckedNode) -> Iterator[Finding]:
    if os.path.lexists(node.conf_dir) and not os.path.isdir(os.path.realpath(node.conf_dir)):
        directory = quote(node.conf_dir)
        yield _NONE.finding(
            node.conf_dir, "it is not a directory", ShellCommand(f"mv {directory} {directory}.old; mkdir {directory}")
        )
        return
    usable = [file for file in node.files if file.network]
    for file in with_delegates(node.files):
        if file.problem and file.is_hidden:
            yield UNSEEN.finding(file.path, f"it {file.problem.msg}", UNSEEN_FIX)
        elif file.problem:
            yield _UNUSABLE.finding(
                file.path, f"it cannot be used: {file.problem.msg}", f"podwire lint {quote(file.path)}"
            )
    if not usable:
        state = "it does not exist" if not os.path.isdir(node.conf_dir) else "it has no usable configuration"
        yield _NONE.finding(node.conf_dir, state, _suggest_network(node))
    elif usable[0].network:
        position = f"the first of {len(node.files)}" if len(node.files) > 1 else "the only one"
        text = f"Kubernetes' runtimes use this file, {position}: network {usable[0].network.name}"
        yield ok_finding("files", usable[0].path, text)


def _suggest_network(node: CheckedNode) -> str:
    """Returns the command that writes a first network, or lints the files that cannot be used.

    It is advice: another program may be about to write a network, and only people know which addresses are free.
    """
    option = "" if node.conf_dir == CONF_DIR else f" --conf-dir {quote(node.conf_dir)}"
    if node.files:
        return f"podwire lint {quote(node.conf_dir)}"
    if os.path.isdir(_KUBELET):
        line = f"podwire install --conf --node node.json{option}"
        return f"{line}, where node.json is the output of: kubectl get node NAME -o json"
    with suppress(CniError):
        if names := sorted({one.network_name for one in node.running}):
            return f"put the file of {', '.join(names)} back, with the ranges of the pods that run"
    local = [one.address.network for assigned in node.addresses.values() for one in assigned]
    used = [*local, *(one.destination for one in node.fib.routes if one.kind == UNICAST and one.destination.prefixlen)]
    free = (ip_network(f"10.{number}.0.0/16") for number in _SECOND_BYTES)
    unused = (one for one in free if not any(map(one.overlaps, used)))
    return f"podwire install --conf --subnet {next(unused, 'CIDR')}{option}"


def _names(node: CheckedNode) -> Iterator[Finding]:
    paths: dict[str, list[str]] = {}
    for file in node.files:
        if file.network and node.network in ("", file.network.name):
            paths.setdefault(file.network.name, []).append(file.path)
    for name, files in paths.items():
        if len(files) > 1:
            others = ", ".join(files[1:])
            yield _TWICE.finding(
                name,
                f"{files[0]} and {others} define it",
                f"rename the network in {others}, or move that file out of net.d",
            )


def _first(node: CheckedNode) -> Iterator[Finding]:
    """Reports a first file that no pod of Kubernetes has its network from, as one left from an earlier installation.

    The first file of a plugin that delegates to others (Multus) has no pods itself, so only podwire's are compared.
    """
    usable = [file for file in node.files if file.network]
    used = {one.network_name for one in node.running if "K8S_POD_NAMESPACE=" in one.cni_args and not one.is_loopback}
    first = usable[0].network if usable else None
    others = [file.path for file in usable[1:] if file.network and file.network.name in used]
    if first and others and first.name not in used and str(first.plugins[0]["type"]) in node.plugins:
        text = f'new pods get its network "{first.name}", and the running pods have that of {others[0]}'
        yield _NEWER_FIRST.finding(usable[0].path, text, f"move it out of net.d, or {others[0]} to a name before it")


def _forgotten(node: CheckedNode) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    for one in node.running:
        if one.needs_file and one.network_name not in node.configured_names and not _is_podmans_default(one):
            counts[one.network_name] = counts.get(one.network_name, 0) + 1
    for name, number in counts.items():
        yield _FORGOTTEN.finding(
            name,
            f"{plural(number, 'running attachment')}, but no file in {node.conf_dir} defines it",
            "put its file back, or create the pods again",
        )


def _is_podmans_default(one: CachedAttachment) -> bool:
    """Returns whether an attachment is of podman's default network, which has no file unless it was changed."""
    bridge = one.network.plugins[0].get("bridge") if one.network else None
    return (one.network_name, bridge) == ("podman", "cni-podman0")


def _subnets(node: CheckedNode) -> Iterator[Finding]:
    for one, other in combinations(node.interfaces, 2):
        if one.network.name == other.network.name or node.are_separate(one.network, other.network):
            continue
        for subnet in one.subnets:
            overlap = next(filter(subnet.overlaps, other.subnets), None)
            if overlap:
                text = f"{subnet} of {one.network.path} and {overlap} of {other.network.path} overlap"
                fix = f'change "subnet" in {other.network.path}'
                yield _TOGETHER.finding(f"{one.network.name}, {other.network.name}", text, fix)


def _host(node: CheckedNode) -> Iterator[Finding]:
    for item in node.interfaces:
        for subnet in item.subnets:
            where = _overlap_on_host(node, item, subnet)
            if where:
                fix = f'change "subnet" in {item.network.path}, or remove that address or route from the host'
                yield _ON_HOST.finding(item.network.name, f"{subnet} overlaps with {where}", fix)


def _overlap_on_host(node: CheckedNode, item: InterfaceConf, subnet: Subnet) -> str:
    """Describes the address or route of the host that overlaps with a subnet, "" if there is none.

    Without the network's bridge and its VLANs, veths (routed pods, other plugins' gateways), single addresses (an
    overlay's), and routes to more than the subnet, which are the way to the rest of it.
    """
    for index, assigned in node.addresses.items():
        link = node.link_of(index)
        if link is None or link.kind == "veth" or _is_ours(link.name, item) or link.flags & IFF_LOOPBACK:
            continue
        for one in assigned:
            network = one.address.network
            if 0 < network.prefixlen < network.max_prefixlen and subnet.overlaps(network):
                return f'{one.address} of interface "{link.name}"'
    for route in node.fib.routes:
        link, network = node.link_of(route.ifindex), route.destination
        if route.kind != UNICAST or link is None or link.kind == "veth" or _is_ours(link.name, item):
            continue
        if subnet.prefixlen <= network.prefixlen < network.max_prefixlen and subnet.overlaps(network):
            return f'the route to {network} by interface "{link.name}"'
    return ""


def _is_ours(name: str, item: InterfaceConf) -> bool:
    return bool(item.bridge) and (name == item.bridge or name.startswith(f"{item.bridge}."))


def _leftovers(node: CheckedNode) -> Iterator[Finding]:
    used = {kind for network in node.networks for kind in network.kinds}
    for name, paths in _STATE.items():
        if any(name in kind or kind in name for kind in used):
            continue
        remaining = [path for path in paths if os.path.exists(path)]
        names = _LINKS[name]
        prefix = _LINK_PREFIXES.get(name)
        remaining += [
            f'interface "{link.name}"'
            for link in node.links
            if link.name in names or (prefix and link.name.startswith(prefix) and link.kind == "veth")
        ]
        if remaining:
            more = f" and {len(remaining) - 4} more" if len(remaining) > 4 else ""
            yield _OTHERS.finding(
                name,
                f"no network uses it, but these remain: {', '.join(remaining[:4])}{more}",
                "remove it as its documentation says; a reboot removes its interfaces",
            )


def _flannel(node: CheckedNode) -> Iterator[Finding]:
    for network in node.networks:
        for plugin in filter(flannel.is_flannel, network.plugins):
            path = flannel.subnet_file(plugin)
            if flannel.has_ranges(flannel.resolve_delegate(plugin)):
                continue
            if os.path.lexists(path) and not os.access(path, os.R_OK):
                yield UNSEEN.finding(network.name, f"{path} cannot be read", UNSEEN_FIX)
                continue
            state = "names no subnet" if os.path.lexists(path) else "does not exist"
            yield _NO_SUBNET.finding(
                network.name,
                f"{path} {state}: ADD fails",
                "the daemon's log has the reason: kubectl -n kube-flannel logs ds/kube-flannel-ds, of k3s "
                "journalctl -u k3s",
            )


CHECKS = (
    Check(_GROUP, "files", "net.d has a network", _files, (_NONE, _UNUSABLE)),
    Check(_GROUP, "names", "each network is defined in one file", _names, (_TWICE,)),
    Check(_GROUP, "first", "new pods get the network of the running pods", _first, (_NEWER_FIRST,)),
    Check(_GROUP, "forgotten", "the networks of running pods are configured", _forgotten, (_FORGOTTEN,)),
    Check(_GROUP, "subnets", "no two networks allocate the same addresses", _subnets, (_TOGETHER,)),
    Check(_GROUP, "host", "the host has no other route to the pods' subnets", _host, (_ON_HOST,)),
    Check(_GROUP, "flannel", "no network of flannel lacks the node's subnet", _flannel, (_NO_SUBNET,)),
    Check(_GROUP, "leftovers", "no file or interface of another CNI remains", _leftovers, (_OTHERS,)),
)
