"""The veth pair of an attachment, from the host to the container: creating, checking and deleting it.

One request creates both ends in their namespaces, so that no link has to be moved or renamed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv6Interface
from typing import NamedTuple

from attachment.prev_result import OTHER_ATTACHMENT_HINT, RECREATE_HINT
from attachment.sandbox import Sandbox
from cni.address import Cidr, format_mac
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, Code, internal, invalid_conf
from cni.fields import Fields
from cni.result import Interface, IPConfig, Result
from kernel import address, link, system
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Deadline, Socket
from process import record
from process.undo import Undo

_NAME_TRIES = 10  # a random name collides once in millions of times
_MTU_MIN, _MTU_MAX = 68, 65535  # the kernel's limits for a veth (linux/if_ether.h)
_PORTS_MAX = 1023  # of a bridge: BR_PORT_BITS is 10, and port 0 does not exist
_IPV6_MTU_MIN = 1280  # RFC 8200
_CARRIER_TIMEOUT_S = 5.0  # the reference plugins poll for 2.55 s


class CreatedVeth(NamedTuple):
    """A new veth pair: the requested host end, and the links that the kernel reports, None for missing ones.

    `container_veth` is built from the requested attributes and the peer index of the host veth; None without that
    index. `master` is the bridge of the host veth after the creation; None without one.
    """

    host_end: VethEnd
    host_veth: Link | None
    container_veth: Link | None
    master: Link | None


def create(
    host: Socket, sandbox: Netns, ifname: str, undo: Undo, *, mac: bytes = b"", mtu: int = 0, master: Link | None = None
) -> CreatedVeth:
    """Creates the veth pair and reads it back, in one send; the host veth is up, and a port of `master` unless None.

    `mac` is the container veth's, b"" for a random one; `mtu` in bytes, 0 for the kernel's default. Raises
    CniError(999) when the container already has an interface called `ifname`, KernelError.
    """
    container_end = VethEnd(ifname, mac or link.random_mac())
    for tries_left in reversed(range(_NAME_TRIES)):
        host_end = VethEnd("veth" + system.current.random_bytes(4).hex(), link.random_mac())
        # Pushed before the request, whose answer may be lost; delete() recognizes the veth by its MAC address.
        undo.push(f'delete "{host_end.name}"', partial(delete, host, host_end))
        try:
            with record.timed_step("create the veth pair"):
                index = master.index if master else 0
                request = link.create_veth_request(host_end, container_end, sandbox, master=index, mtu=mtu)
                reads = [link.by_name_request(host_end.name)]
                reads += [link.by_index_request(index)] if index else []
                answers = host.change(request, then=reads)
        except KernelError as error:
            if error.errno == errno.EXFULL and master:
                raise full_bridge_error(master).prefixed("failed to make veth pair: ") from error
            if error.errno != errno.EEXIST:
                where = f'for bridge "{master.name}"' if master else f"for {sandbox.path}"
                msg = f"failed to make veth pair: {error}"
                raise internal(msg, error.details or where) from error
            with Sandbox(sandbox, ifname) as container:
                if container.find_link() or not tries_left:
                    raise internal(
                        f'container veth name ("{ifname}") peer provided ("{host_end.name}") already exists',
                        f"{sandbox.path} has an interface of this name: the container is attached already; "
                        "run DEL first, or set CNI_IFNAME to another name",
                    ) from error
        else:
            host_veth, *masters = [message and link.from_message(message) for message in answers]
            current_master = masters[0] if masters else None
            return CreatedVeth(host_end, host_veth, _container_veth(host_veth, container_end), current_master)
    raise AssertionError("unreachable")


def refuse_full_bridge(host: Socket, bridge: Link) -> None:
    """Raises KernelError, and CniError(50) for a bridge without a free port."""
    if link.count_ports(host, bridge.index) >= _PORTS_MAX:
        raise full_bridge_error(bridge)


def full_bridge_error(bridge: Link) -> CniError:
    """Returns the error of a bridge without a free port, which the kernel reports as "Exchange full" (EXFULL)."""
    return CniError(
        Code.PLUGIN_NOT_AVAILABLE,
        f'bridge "{bridge.name}" is full: it has {_PORTS_MAX} ports, and the kernel allows no more',
        f"each pod takes one port: run fewer pods on this node, or use ptp, which needs no bridge; "
        f'list the ports: ip -brief link show master "{bridge.name}"',
    )


def _container_veth(host_veth: Link | None, end: VethEnd) -> Link | None:
    """Returns the container veth of a new veth pair; before Linux 5.10, None when both ends have the same index."""
    if host_veth is None or not host_veth.iflink:
        return None
    kind, index = host_veth.kind, host_veth.index
    return Link(host_veth.iflink, end.name, format_mac(end.mac), host_veth.mtu, 0, kind, 0, index, None, 0)


def delete(host: Socket, host_end: VethEnd) -> None:
    """Deletes a veth that create() created, by its host end; a missing one is success. Raises KernelError."""
    (host_veth,) = link.get(host, link.by_name_request(host_end.name))
    if host_veth is not None and host_veth.mac == format_mac(host_end.mac):
        host.change(link.delete_request(host_veth))


def get_host_veth(host: Socket, name: str) -> Link:
    """Returns the host veth; raises KernelError, and CniError(999) when it no longer exists."""
    (host_veth,) = link.get(host, link.by_name_request(name))
    if host_veth is None:
        raise internal(f'failed to lookup "{name}": Link not found', "something else deleted it")
    return host_veth


def wait_carrier(socket: Socket, end: Link, name: str) -> None:
    """Waits until a veth whose ends are both up has a carrier; `end` is its end in the socket's namespace.

    The kernel updates the carrier in the background and announces it. Since Linux 6.8 reading the link updates it, too,
    so that there is mostly no wait. Raises CniError(999), "<name> in error state: ...", after 5 s.
    """
    if get_host_veth(socket, end.name).operstate == link.OPERSTATE_UP:
        return
    deadline = Deadline(_CARRIER_TIMEOUT_S)
    with record.timed_step("wait for the carrier"), Socket() as listener:
        listener.subscribe(link.RTNLGRP_LINK)
        while (end := get_host_veth(socket, end.name)).operstate != link.OPERSTATE_UP:
            if listener.wait_notifications(LinkMessage, deadline.remaining_s()) is None:
                state = link.OPERSTATES[end.operstate] if end.operstate < len(link.OPERSTATES) else "?"
                raise internal(f"{name} in error state: {state}", f'the host interface is "{end.name}"')


def delete_attachment_veth(
    args: CmdArgs, net_conf: NetConf, host: Socket, bridge: str | None = None
) -> tuple[Cidr, ...]:
    """Deletes the attachment's veth pair; returns the addresses of the container's other interfaces.

    The rules for those addresses belong to other attachments. Without a namespace the result is (). Root in the
    container may have renamed the interface, given its name to another interface (even to `lo`, which cannot be
    deleted), or moved its address. `bridge` is the bridge of the host veth, None for a plugin without bridges.
    """
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            container_veth = sandbox.find_link()
            others = list_other_addresses(sandbox, container_veth)
            if container_veth is None or not container_veth.kind or not sandbox.delete_link(container_veth, host):
                _delete_host_veth(args, net_conf, host, bridge, namespace)
            return _exclude_attached(others, net_conf)
    except NetnsMissingError:
        _delete_host_veth(args, net_conf, host, bridge, None)
        return ()


def list_other_addresses(sandbox: Sandbox, container_veth: Link | None) -> tuple[Cidr, ...]:
    """Returns the addresses of the container's interfaces other than `container_veth`; raises KernelError."""
    return tuple(item.address for item in address.list_elsewhere(sandbox.socket, container_veth))


def result_interface(net_conf: NetConf, iface: Link, sandbox: str = "") -> Interface:
    """Returns a link as an interface of a CNI result, with its MTU since CNI 1.1.0."""
    return Interface(iface.name, iface.mac, iface.mtu if net_conf.version == "1.1.0" else 0, sandbox)


def parse_mtu(fields: Fields, hint: str = "leave it out for the kernel's default") -> int:
    """Reads the key `mtu`, in bytes, 0 for the kernel's default; raises CniError(7)."""
    mtu = fields.integer("mtu") or 0
    if mtu and not _MTU_MIN <= mtu <= _MTU_MAX:
        raise fields.error("mtu", f"must be 0 or between {_MTU_MIN} and {_MTU_MAX}, not {mtu}", hint)
    return mtu


def refuse_small_mtu(mtu: int, ips: Iterable[IPConfig], hint: str = "") -> None:
    """Raises CniError(7) for an MTU at which the kernel removes IPv6 addresses from the interface."""
    if 0 < mtu < _IPV6_MTU_MIN and any(isinstance(ip.address, IPv6Interface) for ip in ips):
        msg = f'"mtu" {mtu} is too small for the IPv6 addresses that IPAM allocates'
        raise invalid_conf(msg, f"IPv6 needs {_IPV6_MTU_MIN} bytes (RFC 8200){hint}")


def listed_container_interface(args: CmdArgs, prev_result: Result) -> Interface:
    """Returns the container's interface in prevResult; raises CniError(999)."""
    for item in prev_result.interfaces:
        if item.name == args.ifname and item.sandbox:
            if item.sandbox != args.netns:
                msg = f"Sandbox in prevResult {item.sandbox} doesn't match configured netns: {args.netns}"
                raise internal(msg, RECREATE_HINT)
            return item
    raise internal(f"Interface name {args.ifname} not found in prevResult", OTHER_ATTACHMENT_HINT)


def check_host_veth(host_veth: Link, prev_result: Result) -> str:
    """Checks that the host veth is up and has the MAC address that prevResult lists.

    Returns "", or the problem when prevResult does not list it. Raises CniError(999).
    """
    listed = next((item for item in prev_result.interfaces if item.name == host_veth.name and not item.sandbox), None)
    if listed is None:
        return f'"{host_veth.name}" is not in prevResult: {OTHER_ATTACHMENT_HINT}'
    if listed.mac and host_veth.mac != listed.mac:
        details = f'it is {host_veth.mac}; set it back: ip link set "{host_veth.name}" address {listed.mac}'
        raise internal(f"Interface {host_veth.name} Mac doesn't match: {listed.mac} not found", details)
    if not host_veth.is_up:
        details = f'bring it up: ip link set "{host_veth.name}" up'
        raise internal(f"Interface {host_veth.name} is down", details)
    return ""


def _exclude_attached(addresses: tuple[Cidr, ...], net_conf: NetConf) -> tuple[Cidr, ...]:
    """Returns `addresses` without those that prevResult, if readable, lists for this attachment."""
    if all(item.ip.is_loopback for item in addresses):
        return addresses  # most containers have no others, and parsing prevResult takes time
    prev_result = net_conf.lenient_prev_result()
    attached = {item.address.ip for item in prev_result.ips} if prev_result else set()
    return tuple(item for item in addresses if item.ip not in attached)


def _delete_host_veth(
    args: CmdArgs, net_conf: NetConf, host: Socket, bridge: str | None, namespace: Netns | None
) -> None:
    """Deletes the host veth that prevResult lists, if the kernel confirms that it is this attachment's.

    A namespace without its file exists while a process is in it, and so does the veth pair with its addresses. An
    unconfirmed veth stays: an uplink may be a veth, too (kind, LXC), and prevResult may be another attachment's.
    """
    prev_result = net_conf.lenient_prev_result() or Result()
    for item in prev_result.interfaces:
        if not item.sandbox and item.name.startswith("veth") and is_interface_name(item.name):
            (veth,) = link.get(host, link.by_name_request(item.name))
            if not veth or veth.kind != "veth" or veth.mac != item.mac:
                continue
            try:
                if _is_peer_in_container(host, veth, args, prev_result, namespace) and _is_unused(
                    host, veth, prev_result, bridge
                ):
                    host.change(link.delete_request(veth))
            except KernelError as error:
                if error.errno != errno.ENODEV:  # ENODEV: another DEL of this attachment has just deleted it
                    raise


def _is_peer_in_container(
    host: Socket, veth: Link, args: CmdArgs, prev_result: Result, namespace: Netns | None
) -> bool:
    """Returns whether a veth's peer is in `namespace`, or has the MAC address of the container's interface."""
    namespace_id = link.get_namespace_ids(host, [namespace])[0] if namespace else None
    if namespace_id is not None and namespace_id == veth.iflink_nsid:
        return True
    peer = link.get_remote_peer(host, veth)
    return peer is not None and any(
        item.sandbox and item.name == args.ifname and item.mac == peer.mac and args.netns in ("", item.sandbox)
        for item in prev_result.interfaces
    )


def _is_unused(host: Socket, veth: Link, prev_result: Result, bridge: str | None) -> bool:
    """Returns whether a veth is as ADD left it: a port of `bridge` without addresses, or with gateway addresses only.

    The link-local IPv6 address, which the kernel adds to each interface, is ignored.
    """
    gateways = {ip.gateway for ip in prev_result.ips} if bridge is None else set()
    assigned = (item.address.ip for item in address.list_on_link(host, veth))
    if any(ip not in gateways and not (ip.version == 6 and ip.is_link_local) for ip in assigned):
        return False
    if bridge is None:
        return True
    (master,) = link.get(host, link.by_name_request(bridge)) if bridge and veth.master else [None]
    return master is not None and (master.index, master.kind) == (veth.master, "bridge")
