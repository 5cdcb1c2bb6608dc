"""Checks the interfaces: bridges, their ports and addresses, MTUs up to the uplink, duplicate addresses.

For a bridge without pods, only faults that the next ADD does not repair are reported.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from shlex import quote

from kernel.address import IFA_F_DADFAILED
from kernel.link import IFF_LOOPBACK, OPERSTATE_UP, OPERSTATES, Link
from podwire.attachments import CachedAttachment
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.gateways import gateway_commands, gateways_of, ipv6_of, missing_gateways
from podwire.doctor.node import CheckedNode, InterfaceConf, read_text
from podwire.doctor.pods import list_pods
from podwire.doctor.shell_command import ShellCommand
from podwire.output import plural

_GROUP = "links"
_MOST_NAMED = 3
_ADDRESS_IS_SET = "3"  # NET_ADDR_SET (linux/netdevice.h)
_SYS = "/sys/class/net"
_NETWORKD = ("/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network", "/lib/systemd/network")
_NETWORK_MANAGER = ("/etc/NetworkManager", "/run/NetworkManager", "/usr/lib/NetworkManager")

_NO_BRIDGE = Fault(
    "bridge-missing",
    Severity.PROBLEM,
    "pods of a network are running, but its bridge was deleted: they have no connection",
)
_DOWN = Fault(
    "bridge-down",
    Severity.PROBLEM,
    "pods of a network are running, but its bridge is down",
)
_NO_ADDRESS = Fault(
    "gateway-missing",
    Severity.PROBLEM,
    "no interface of the host has the address that pods use as their gateway",
)
_DUPLICATE = Fault(
    "gateway-duplicate",
    Severity.PROBLEM,
    "the kernel does not use the IPv6 address of a bridge that is the pods' gateway (dadfailed): another machine on "
    "the bridge had the address",
)
_PORT = Fault(
    "pod-interface-down",
    Severity.PROBLEM,
    "a running pod's host veth is down, or has no carrier because the interface in the pod is down",
)
_NO_PORT = Fault(
    "port-lost",
    Severity.PROBLEM,
    "a running pod's host veth is no longer a port of the network's bridge",
)
_MTU = Fault(
    "mtu-too-large",
    Severity.WARNING,
    "pods send packets that are larger than the MTU of the host's uplink: connections may hang",
)
_MAC = Fault(
    "bridge-address-changes",
    Severity.NOTE,
    "the bridge's MAC address was never set: it changes with its ports, and pods lose their gateway for a moment",
)
_DOUBLE = Fault(
    "address-twice",
    Severity.PROBLEM,
    "two running attachments, or a pod and the host, have the same address",
)
_MANAGED = Fault(
    "managed-by-others",
    Severity.NOTE,
    "NetworkManager or systemd-networkd may manage bridges or pods' interfaces, and change or remove their addresses",
)


def _bridges(node: CheckedNode) -> Iterator[Finding]:
    for item in _with_pods(node):
        if not item.bridge:
            continue
        bridge = node.link(item.bridge)
        if bridge is None:
            text = f'its pods are running, but its bridge "{item.bridge}" does not exist'
            yield _NO_BRIDGE.finding(
                item.network.name,
                text,
                "remove the pods and create them again: the first one creates the bridge",
                objects=(item.bridge,),
            )
        elif not bridge.is_up:
            fix = ShellCommand(" && ".join([f"ip link set {quote(bridge.name)} up", *gateway_commands(node, item)]))
            yield _DOWN.finding(item.network.name, f'its bridge "{bridge.name}" is down', fix, objects=(bridge.name,))
        else:
            yield from _ports(node, item, bridge)
        if bridge is not None:
            yield from _mac(node, item, bridge)


def _ports(node: CheckedNode, item: InterfaceConf, bridge: Link) -> Iterator[Finding]:
    lost: list[tuple[Link, str]] = []
    for one in node.list_attached(item):
        interfaces = one.typed_result.interfaces
        has_container_veth = any(interface.sandbox for interface in interfaces)
        for interface in interfaces:
            host_veth = node.link(interface.name)
            if interface.sandbox or host_veth is None or host_veth.kind != "veth":
                continue
            if interface.name.startswith(f"{bridge.name}."):
                continue
            if host_veth.master != bridge.index:
                lost.append((host_veth, one.pod or one.attachment.container_id))
            elif not host_veth.is_up:
                text = f'"{host_veth.name}" of {one.pod or one.attachment.container_id} is down'
                fix = ShellCommand(f"ip link set {quote(host_veth.name)} up")
                yield _PORT.finding(item.network.name, text, fix, objects=(host_veth.name,))
            elif host_veth.operstate != OPERSTATE_UP and has_container_veth and not item.is_container_veth_down:
                state = OPERSTATES[host_veth.operstate]
                text = f'"{host_veth.name}" of {one.pod or one.attachment.container_id} is {state}'
                advice = "remove the container and create it again: its routes were lost when its interface went down"
                behind = (f"interior {host_veth.name}",)
                yield _PORT.finding(item.network.name, text, advice, objects=(host_veth.name,), behind=behind)
    if lost:
        yield _lost_ports(item, bridge, lost)


def _lost_ports(item: InterfaceConf, bridge: Link, lost: list[tuple[Link, str]]) -> Finding:
    """Returns one finding for all ports that a bridge has lost."""
    names = ", ".join(f'"{veth.name}" of {pod}' for veth, pod in lost[:_MOST_NAMED])
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    verb = "is not a port" if len(lost) == 1 else "are not ports"
    fixes = [_attach_fix(item, bridge, veth) for veth, _ in lost]
    fix = fixes[0] if item.vlans else ShellCommand(" && ".join(fixes))
    objects = [veth.name for veth, _ in lost]
    return _NO_PORT.finding(item.network.name, f'{names}{more} {verb} of "{bridge.name}"', fix, objects=objects)


def _attach_fix(item: InterfaceConf, bridge: Link, host_veth: Link) -> str:
    """Returns the command that makes a host veth a port again, with the settings that it lost when it was detached."""
    if item.vlans:
        return "remove the container and create it again: the port's VLANs are lost, too"
    flags = "".join(f" {flag} on" for flag in item.port_flags)
    join = f"ip link set {quote(host_veth.name)} master {quote(bridge.name)}"
    return ShellCommand(f"{join} && ip link set {quote(host_veth.name)} type bridge_slave{flags}" if flags else join)


def _mac(node: CheckedNode, item: InterfaceConf, bridge: Link) -> Iterator[Finding]:
    """Yields a finding if a bridge's MAC address was never set, by sysfs; none if sysfs is of another namespace.

    The fix sets the address that the pods know, which CHECK expects.
    """
    about = f"{_SYS}/{bridge.name}"
    if read_text(f"{about}/ifindex").strip() != str(bridge.index):
        return
    if read_text(f"{about}/addr_assign_type").strip() != _ADDRESS_IS_SET:
        interfaces = (interface for one in node.list_attached(item) for interface in one.typed_result.interfaces)
        on_host = (interface for interface in interfaces if interface.name == bridge.name and not interface.sandbox)
        known = next((interface.mac for interface in on_host if interface.mac), "")
        fix = ShellCommand(f"ip link set {quote(bridge.name)} address {known or bridge.mac}")
        yield _MAC.finding(bridge.name, "its MAC address was never set, and changes with its ports", fix)


def _gateways(node: CheckedNode) -> Iterator[Finding]:
    """Yields the pods' gateways that are not on the host, for networks whose gateway is the host."""
    for item in _with_pods(node):
        bridge = node.link(item.bridge) if item.bridge else None
        if bridge is None or not item.routed:
            continue
        for version in (4, 6):
            missing = [one for one in missing_gateways(node, item) if one.ip.version == version]
            if missing:
                gateways = ", ".join(str(one.ip) for one in missing)
                text = f"no interface of the host has {gateways}, the gateway of its pods"
                fix = ShellCommand(" && ".join(gateway_commands(node, item)))
                behind = (ipv6_of(bridge.name),) if version == 6 else ()
                behind = (*behind, *((bridge.name,) if not bridge.is_up else ()), gateways_of(bridge.name))
                objects = (gateways_of(bridge.name), *((bridge.name,) if bridge.is_up else ()))
                yield _NO_ADDRESS.finding(item.network.name, text, fix, objects=objects, behind=behind)


def _unusable(node: CheckedNode) -> Iterator[Finding]:
    """Yields the pods' gateways for which duplicate address detection has failed."""
    pods = list_pods(node)
    gateways = {gateway: pod for pod in reversed(pods) for gateway in pod.gateways}
    for index, assigned in node.addresses.items():
        bridge = node.link_of(index)
        for one in assigned:
            pod = gateways.get(one.address.ip) if one.flags & IFA_F_DADFAILED else None
            if pod is None or bridge is None:
                continue
            owned = node.pod_interfaces
            others = [link.name for link in node.links if link.master == bridge.index and link.name not in owned]
            text = f'{one.address.ip} on "{bridge.name}", the gateway of the pods, is not used (dadfailed): another '
            text += "machine on the bridge has it"
            where = f", perhaps behind {', '.join(others)}," if others else ""
            again = f"{one.address} dev {quote(bridge.name)}"
            fix = f"remove {one.address.ip} from that machine{where} then: "
            fix += f"ip address del {again} && ip address add {again} nodad"
            yield _DUPLICATE.finding(pod.item.network.name, text, fix, objects=(gateways_of(bridge.name),))


def _mtu(node: CheckedNode) -> Iterator[Finding]:
    if not node.used_uplinks:
        return
    uplink = min(node.used_uplinks, key=lambda link: link.mtu)
    for item in node.interfaces:
        names = {name for one in node.list_attached(item) for name in one.host_interfaces}
        veths = [link for name in names if (link := node.link(name)) and link.kind == "veth"]
        large = [link for link in veths if link.mtu > uplink.mtu]
        if large and item.routed:
            text = (
                f'{plural(len(large), "pod")} with MTU {large[0].mtu}, but the uplink "{uplink.name}" has {uplink.mtu}'
            )
            fix = (
                f'set "mtu": {uplink.mtu} for the plugin {item.kind} in {item.network.path}, and create the pods again'
            )
            yield _MTU.finding(item.network.name, text, fix)
        elif veths:
            yield ok_finding(
                "mtu", item.network.name, f'MTU {veths[0].mtu}; that of the uplink "{uplink.name}" is {uplink.mtu}'
            )


def _duplicates(node: CheckedNode) -> Iterator[Finding]:
    host = {one.address.ip: (one.address, index) for index, assigned in node.addresses.items() for one in assigned}
    seen: dict[object, list[CachedAttachment]] = {}
    for one in node.running:
        if one.is_confined:
            continue
        for ip in one.typed_result.ips:
            pod = _name(one)
            address = ip.address.ip
            present, index = host.get(address, (None, 0))
            link = node.link_of(index)
            if link:
                fix: str = ShellCommand(f"ip address del {present} dev {quote(link.name)}")
                if not link.flags & IFF_LOOPBACK:  # other machines may use it, or pods as their gateway
                    fix = f"remove the pod of {pod}; or, only if the host does not need the address: {fix}"
                yield _DOUBLE.finding(str(address), f'{pod} has it, and so has the host on "{link.name}"', fix)
            for other in [other for other in seen.get(address, ()) if _conflict(node, one, other)][-1:]:
                is_same = one.attachment.container_id == other.attachment.container_id
                fix = "give its networks other ranges, and create it again" if is_same else f"remove the pod of {pod}"
                yield _DOUBLE.finding(str(address), f"{_name(other)} and {pod} both have it", fix)
            seen.setdefault(address, []).append(one)


def _name(one: CachedAttachment) -> str:
    return f"{one.pod or one.attachment.container_id} {one.attachment.ifname}"


def _conflict(node: CheckedNode, one: CachedAttachment, other: CachedAttachment) -> bool:
    """Returns whether two attachments must not have one address; those of one pod never."""
    if one.attachment.container_id == other.attachment.container_id:
        return one.attachment != other.attachment
    return not (one.network and other.network and node.are_separate(one.network, other.network))


def _managed(node: CheckedNode) -> Iterator[Finding]:
    names = [item.bridge for item in node.interfaces if item.bridge]
    if not names:
        return
    if _is_running("/run/NetworkManager") and not _mentions(_NETWORK_MANAGER, "unmanaged-devices", ("veth", *names)):
        line = ";".join(f"interface-name:{name}" for name in ("veth*", *dict.fromkeys(names)))
        fix = f"put into /etc/NetworkManager/conf.d/cni.conf: [keyfile] unmanaged-devices={line}"
        yield _MANAGED.finding("NetworkManager", f"it is running, and may manage {', '.join(names)}", fix)
    if not _is_running("/run/systemd/netif"):
        return
    for path in _files(_NETWORKD, ".network"):
        for pattern in _patterns(read_text(path)):
            matched = [name for name in (*names, "veth0123abcd") if fnmatch.fnmatchcase(name, pattern)]
            if matched:
                fix = f'put "Unmanaged=yes" into [Link] of a file before {os.path.basename(path)} that matches them'
                yield _MANAGED.finding("systemd-networkd", f"{path} matches {matched[0]} (Name={pattern})", fix)


def _is_running(directory: str) -> bool:
    """Returns whether a daemon is running, by the directory that it creates."""
    return os.path.isdir(directory)


def _patterns(text: str) -> list[str]:
    """Returns the name patterns of a .network file, [] if it matches by type or leaves its interfaces unmanaged."""
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


def _with_pods(node: CheckedNode) -> list[InterfaceConf]:
    return [item for item in node.interfaces if node.list_attached(item)]


CHECKS = (
    Check(
        _GROUP,
        "bridges",
        "bridges are up, with their pods' ports",
        _bridges,
        (_NO_BRIDGE, _DOWN, _NO_PORT, _PORT, _MAC),
    ),
    Check(_GROUP, "gateways", "the host has the pods' gateway addresses", _gateways, (_NO_ADDRESS,)),
    Check(_GROUP, "duplicates", "no gateway address of pods is used twice", _unusable, (_DUPLICATE,)),
    Check(_GROUP, "mtu", "no default route, or no pods: MTUs were not compared", _mtu, (_MTU,)),
    Check(_GROUP, "twice", "no address is in use twice", _duplicates, (_DOUBLE,)),
    Check(_GROUP, "managed", "no daemon manages the pods' interfaces", _managed, (_MANAGED,)),
)
