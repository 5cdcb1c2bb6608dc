"""The interfaces: bridges, their ports and addresses, MTU as far as the way out, addresses that two have.

One rule: of a bridge without pods only what an ADD would not mend is told.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from shlex import quote

from kernel.link import IFF_LOOPBACK, OPERSTATE_UP, OPERSTATES, Link
from podwire.attachments import CachedAttachment
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.kernel import ipv6_of
from podwire.doctor.node import Interface, Node, read_text

_GROUP = "links"
_ADDRESS_IS_SET = "3"  # NET_ADDR_SET (linux/netdevice.h)
_SYS = "/sys/class/net"
_NETWORKD = ("/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network", "/lib/systemd/network")
_NETWORK_MANAGER = ("/etc/NetworkManager", "/run/NetworkManager", "/usr/lib/NetworkManager")

_NO_BRIDGE = Fault(
    "bridge-missing",
    Severity.PROBLEM,
    "pods of a network live, and its bridge is not there: it was deleted, and with it their way out",
    "remove the pods and make them again: the first one makes the bridge",
)
_DOWN = Fault(
    "bridge-down", Severity.PROBLEM, "pods of a network live, and its bridge is down", "`ip link set BRIDGE up`"
)
_NO_ADDRESS = Fault(
    "gateway-missing",
    Severity.PROBLEM,
    "the address that pods have as their gateway is on no interface of the host",
    "`ip address add ADDRESS dev BRIDGE`",
)
_PORT = Fault(
    "pod-interface-down",
    Severity.PROBLEM,
    "a living pod's end on the host is down, or has no carrier because the interface in the pod is down",
    "`ip link set VETH up`; of the one in the pod: remove the container and create it again, as its routes are lost",
)
_NO_PORT = Fault(
    "port-lost",
    Severity.PROBLEM,
    "a living pod's end on the host is no port of the network's bridge any more",
    "`ip link set VETH master BRIDGE`",
)
_MTU = Fault(
    "mtu-too-large",
    Severity.WARNING,
    "pods send packets that are larger than what the host's way out takes: connections may hang",
    'set "mtu" of the plugin to that of the way out, and make the pods again',
)
_MAC = Fault(
    "bridge-address-changes",
    Severity.NOTE,
    "nobody has set the bridge's MAC address: it changes with its ports, and pods lose their gateway for a moment",
    "`ip link set BRIDGE address MAC`",
)
_DOUBLE = Fault(
    "address-twice",
    Severity.PROBLEM,
    "two living attachments have one address, or the host has a pod's",
    "remove one of the pods; of the host, if it does not need it: `ip address del`",
)
_MANAGED = Fault(
    "managed-by-others",
    Severity.NOTE,
    "NetworkManager or systemd-networkd may take bridges or pods' interfaces for theirs, and change or empty them",
    "mark them as unmanaged in their configuration",
)


def _bridges(node: Node) -> Iterator[Finding]:
    for item in _with_pods(node):
        if not item.bridge:
            continue
        bridge = node.link(item.bridge)
        if bridge is None:
            text = f'its bridge "{item.bridge}" is not there, and its pods live'
            yield _NO_BRIDGE.finding(item.network.name, text, _NO_BRIDGE.fix, objects=(item.bridge,))
        elif not bridge.is_up:
            fix = f"ip link set {quote(bridge.name)} up"
            yield _DOWN.finding(item.network.name, f'its bridge "{bridge.name}" is down', fix, objects=(bridge.name,))
        else:
            yield from _ports(node, item, bridge)
        if bridge is not None:
            yield from _mac(node, item, bridge)


def _ports(node: Node, item: Interface, bridge: Link) -> Iterator[Finding]:
    for one in node.living:
        if one.network_name != item.network.name:
            continue
        interfaces = one.typed_result.interfaces
        inside = next((own.name for own in interfaces if own.sandbox), "")
        for own in interfaces:
            end = node.link(own.name)
            if own.sandbox or end is None or end.kind != "veth" or own.name.startswith(f"{bridge.name}."):
                continue
            if end.master != bridge.index:
                text = f'"{end.name}" of {one.pod or one.attachment.container_id} is no port of "{bridge.name}"'
                yield _NO_PORT.finding(item.network.name, text, _joining(item, bridge, end), objects=(end.name,))
            elif not end.is_up:
                text = f'"{end.name}" of {one.pod or one.attachment.container_id} is down'
                fix = f"ip link set {quote(end.name)} up"
                yield _PORT.finding(item.network.name, text, fix, objects=(end.name,))
            elif end.operstate != OPERSTATE_UP and inside and not item.down_inside:
                text = f'"{end.name}" of {one.pod or one.attachment.container_id} is {OPERSTATES[end.operstate]}'
                fix = "remove the container and create it again: its routes went when its interface went down"
                yield _PORT.finding(item.network.name, text, fix, objects=(end.name,))


def _joining(item: Interface, bridge: Link, end: Link) -> str:
    """Returns what makes a pod's end a port again, with the settings that a port loses when it leaves."""
    if item.vlans:
        return "remove the container and make it again: the port's VLANs went, too"
    flags = "".join(f" {flag} on" for flag in item.port_flags)
    join = f"ip link set {quote(end.name)} master {quote(bridge.name)}"
    return f"{join} && ip link set {quote(end.name)} type bridge_slave{flags}" if flags else join


def _mac(node: Node, item: Interface, bridge: Link) -> Iterator[Finding]:
    """Looks into sysfs, which may be mounted for another namespace; then nothing is told.

    The address to set is the one that the pods know, as CHECK expects it.
    """
    about = f"{_SYS}/{bridge.name}"
    if read_text(f"{about}/ifindex").strip() != str(bridge.index):
        return
    if read_text(f"{about}/addr_assign_type").strip() != _ADDRESS_IS_SET:
        interfaces = (own for one in _pods(node, item) for own in one.typed_result.interfaces)
        known = next((own.mac for own in interfaces if own.name == bridge.name and own.mac and not own.sandbox), "")
        fix = f"ip link set {quote(bridge.name)} address {known or bridge.mac}"
        yield _MAC.finding(bridge.name, "its MAC address is not set, and follows from its ports", fix)


def _gateways(node: Node) -> Iterator[Finding]:
    """Compares the gateways that pods have with the host's addresses; another machine's may be meant without ours."""
    assigned = {one.address.ip for own in node.addresses.values() for one in own}
    for item in _with_pods(node):
        bridge = node.link(item.bridge) if item.bridge else None
        if bridge is None or not item.routed:
            continue
        wanted = {
            ip.gateway: ip.address.network.prefixlen
            for one in node.living
            if one.network_name == item.network.name
            for ip in one.typed_result.ips
            if ip.gateway and ip.gateway not in assigned
        }
        for gateway, length in wanted.items():
            text = f"{gateway}, the gateway of its pods, is on no interface of the host"
            fix = f"ip address add {gateway}/{length} dev {quote(bridge.name)}"
            behind = (ipv6_of(bridge.name),) if gateway.version == 6 else ()
            yield _NO_ADDRESS.finding(item.network.name, text, fix, objects=(bridge.name,), behind=behind)


def _mtu(node: Node) -> Iterator[Finding]:
    if not node.used_uplinks:
        return
    out = min(node.used_uplinks, key=lambda link: link.mtu)
    for item in node.interfaces:
        names = {
            own.name
            for one in node.living
            if one.network_name == item.network.name
            for own in one.typed_result.interfaces
            if not own.sandbox
        }
        ends = [link for name in names if (link := node.link(name)) and link.kind == "veth"]
        large = [link for link in ends if link.mtu > out.mtu]
        if large and item.routed:
            text = f'{len(large)} pod(s) have MTU {large[0].mtu}, and "{out.name}", the way out, has {out.mtu}'
            fix = f'set "mtu": {out.mtu} for the plugin {item.kind} in {item.network.path}, and make the pods again'
            yield _MTU.finding(item.network.name, text, fix)
        elif ends:
            yield ok_finding("mtu", item.network.name, f'pods {ends[0].mtu}, "{out.name}" {out.mtu}')


def _twice(node: Node) -> Iterator[Finding]:
    host = {one.address.ip: (one.address, index) for index, own in node.addresses.items() for one in own}
    seen: dict[object, str] = {}
    for one in node.living:
        for ip in one.typed_result.ips:
            pod = f"{one.pod or one.attachment.container_id} {one.attachment.ifname}"
            address = ip.address.ip
            if address.is_loopback:
                continue  # everybody has it
            present, index = host.get(address, (None, 0))
            link = node.link_of(index)
            if link:
                fix = f"ip address del {present} dev {quote(link.name)}"
                if not link.flags & IFF_LOOPBACK:  # the host may be reached by it, or be the pods' gateway
                    fix = f"remove the pod of {pod}; only if the host does not need the address: {fix}"
                yield _DOUBLE.finding(str(address), f'{pod} has it, and the host on "{link.name}"', fix)
            if address in seen and seen[address] != pod:
                yield _DOUBLE.finding(str(address), f"{seen[address]} and {pod} have it", f"remove the pod of {pod}")
            seen[address] = pod


def _managed(node: Node) -> Iterator[Finding]:
    names = [item.bridge for item in node.interfaces if item.bridge]
    if not names:
        return
    if _runs("/run/NetworkManager") and not _mentions(_NETWORK_MANAGER, "unmanaged-devices", ("veth", *names)):
        line = ";".join(f"interface-name:{name}" for name in ("veth*", *dict.fromkeys(names)))
        fix = f"into /etc/NetworkManager/conf.d/cni.conf: [keyfile] unmanaged-devices={line}"
        yield _MANAGED.finding("NetworkManager", f"it runs, and is not told to leave {', '.join(names)} alone", fix)
    if not _runs("/run/systemd/netif"):
        return
    for path in _files(_NETWORKD, ".network"):
        for pattern in _patterns(read_text(path)):
            taken = [name for name in (*names, "veth0123abcd") if fnmatch.fnmatchcase(name, pattern)]
            if taken:
                fix = f'"Unmanaged=yes" in [Link] of a file before {os.path.basename(path)} that matches them'
                yield _MANAGED.finding("systemd-networkd", f"{path} matches {taken[0]} (Name={pattern})", fix)


def _runs(directory: str) -> bool:
    """Tells whether a daemon runs, by the directory that it makes."""
    return os.path.isdir(directory)


def _patterns(text: str) -> list[str]:
    """Returns the patterns of names of a .network file that is not about unmanaged interfaces, or about a kind."""
    if "Unmanaged=yes" in text or any(line.startswith(("Type=", "Kind=", "MACAddress=")) for line in text.splitlines()):
        return []
    lines = [line.partition("=")[2] for line in text.splitlines() if line.startswith("Name=")]
    return [word for line in lines for word in line.split()]


def _mentions(directories: tuple[str, ...], key: str, names: tuple[str, ...]) -> bool:
    for path in _files(directories, ".conf"):
        for line in read_text(path).splitlines():
            if line.strip().startswith(key) and any(name in line for name in names):
                return True
    return False


def _files(directories: tuple[str, ...], suffix: str) -> Iterator[str]:
    for top in directories:
        for directory in (top, f"{top}/conf.d"):
            if os.path.isdir(directory):
                for name in sorted(os.listdir(directory)):
                    if name.endswith(suffix):
                        yield os.path.join(directory, name)


def _pods(node: Node, item: Interface) -> list[CachedAttachment]:
    return [one for one in node.living if one.network_name == item.network.name]


def _with_pods(node: Node) -> list[Interface]:
    return [item for item in node.interfaces if node.has_pods(item.network.name)]


CHECKS = (
    Check(_GROUP, "bridges", "bridges are up, with their pods", _bridges, (_NO_BRIDGE, _DOWN, _NO_PORT, _PORT, _MAC)),
    Check(_GROUP, "gateways", "the pods' gateways are on the host", _gateways, (_NO_ADDRESS,)),
    Check(_GROUP, "mtu", "no default route, or no pods: MTUs were not compared", _mtu, (_MTU,)),
    Check(_GROUP, "twice", "no address is there twice", _twice, (_DOUBLE,)),
    Check(_GROUP, "managed", "nobody else manages the pods' interfaces", _managed, (_MANAGED,)),
)
