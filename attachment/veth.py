"""The pair of an attachment, from the host to the sandbox: made, found, and taken away whatever is left of it.

One rule: the pair is born in place, in one request; nothing is moved or renamed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv6Interface
from typing import NamedTuple

from attachment.sandbox import Sandbox
from cni.address import Interface as Cidr
from cni.address import format_mac
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.result import Interface, IPConfig, Result
from kernel import address, link
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Deadline, Socket
from process import record
from process.undo import Undo

_NAME_TRIES = 10  # a random name is taken once in millions of times
_MTU_MIN, _MTU_MAX = 68, 65535  # what the kernel lets a veth have (linux/if_ether.h)
_PORTS_MAX = 1023  # of a bridge: 10 bits (BR_PORT_BITS), of which 0 is no port
_IPV6_MTU_MIN = 1280  # RFC 8200
_CARRIER_TIMEOUT_S = 5.0  # the reference gives up after 2.55 s of sleeping in between
_AGAIN = "remove the container and create it again"


class CreatedVeth(NamedTuple):
    """A new pair: the end on the host as it was asked for, and the links as they are, None for what is gone again.

    Of the sandbox's end only what it was asked to be, and its index, which the host's end tells: None where it does
    not. `master` is the link of which the host's end is to be a port, None without one.
    """

    host_end: VethEnd
    host_veth: Link | None
    container_veth: Link | None
    master: Link | None


def create(
    host: Socket, sandbox: Netns, ifname: str, undo: Undo, *, mac: bytes = b"", mtu: int = 0, master: Link | None = None
) -> CreatedVeth:
    """Makes the pair, its host end up, a port of `master` if there is one, and looks it up, all in one send.

    `mac` is the sandbox's end's, b"" for any; `mtu` in bytes, 0 for the kernel's default. Raises CniError(999) when
    the sandbox has an interface of the name already, KernelError.
    """
    inside = VethEnd(ifname, mac or link.random_mac())
    for attempt in range(_NAME_TRIES):
        outside = VethEnd("veth" + os.urandom(4).hex(), link.random_mac())
        # Whatever becomes of the answer: the address tells our pair from another's of the same name.
        undo.push(f'delete "{outside.name}"', partial(delete, host, outside))
        try:
            with record.timed_step("make the pair"):
                pair = link.create_veth_request(outside, inside, sandbox, master=master.index if master else 0, mtu=mtu)
                of_master = [link.by_index_request(master.index)] if master else []
                found = host.change(pair, then=[link.by_name_request(outside.name), *of_master])
        except KernelError as error:
            if error.errno == errno.EXFULL and master:
                raise full_bridge_error(master).prefixed("failed to make veth pair: ") from error
            if error.errno != errno.EEXIST:
                where = f'for bridge "{master.name}"' if master else f"for {sandbox.path}"
                msg = f"failed to make veth pair: {error}"
                raise CniError(Code.INTERNAL, msg, error.details or where) from error
            with Sandbox(sandbox, ifname) as inner:
                if inner.find_link() or attempt == _NAME_TRIES - 1:
                    raise CniError(
                        Code.INTERNAL,
                        f'container veth name ("{ifname}") peer provided ("{outside.name}") already exists',
                        f"{sandbox.path} has an interface of this name: the container is attached already; "
                        "run DEL first, or set CNI_IFNAME to another name",
                    ) from error
        else:
            port, *others = [message and link.from_message(message) for message in found]
            return CreatedVeth(outside, port, _inside(port, inside), *others or [None])
    raise AssertionError("unreachable")


def refuse_full_bridge(host: Socket, bridge: Link) -> None:
    """Raises CniError(50) for a bridge on which `make` would find no free port, KernelError."""
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


def _inside(port: Link | None, asked: VethEnd) -> Link | None:
    """Returns the sandbox's end of a new pair; kernels before 5.10 do not tell its index when it is the port's, too."""
    if port is None or not port.lower:
        return None
    return Link(port.lower, asked.name, format_mac(asked.mac), port.mtu, 0, port.kind, 0, port.index, None, 0)


def delete(host: Socket, outside: VethEnd) -> None:
    """Deletes a pair that `make` made, by its host end; absent is success. Raises KernelError."""
    (port,) = link.get(host, link.by_name_request(outside.name))
    if port is not None and port.mac == format_mac(outside.mac):
        host.change(link.delete_request(port))


def get_host_veth(host: Socket, name: str) -> Link:
    """Returns the host end; raises CniError(999) when it is gone, KernelError."""
    (port,) = link.get(host, link.by_name_request(name))
    if port is None:
        raise CniError(Code.INTERNAL, f'failed to lookup "{name}": Link not found', "something else deleted it")
    return port


def wait_carrier(socket: Socket, end: Link, what: str) -> None:
    """Waits until an end of the pair, of `socket`'s namespace, passes packets, when both are up.

    The kernel notices the carrier in the background. Since Linux 6.8 asking for the link brings that up to date, so
    that mostly nothing is waited for; before, its announcement is. Raises CniError(999), "<what> in error state: ...",
    when it does not come to that.
    """
    if get_host_veth(socket, end.name).operstate == link.OPERSTATE_UP:
        return
    deadline = Deadline(_CARRIER_TIMEOUT_S)
    with record.timed_step("wait for the carrier"), Socket() as news:
        news.subscribe(link.RTNLGRP_LINK)
        while (end := get_host_veth(socket, end.name)).operstate != link.OPERSTATE_UP:
            if news.wait_notifications(LinkMessage, deadline.remaining_s()) is None:
                state = link.OPERSTATES[end.operstate] if end.operstate < len(link.OPERSTATES) else "?"
                raise CniError(Code.INTERNAL, f"{what} in error state: {state}", f'the host interface is "{end.name}"')


def delete_attachment_veth(args: CmdArgs, conf: NetConf, host: Socket, bridge: str | None = None) -> tuple[Cidr, ...]:
    """Deletes the sandbox's interface, and returns the addresses of its other ones: their rules are not ours to delete.

    Without a namespace there are no others. Who is root in the sandbox may have given our interface another name, and
    ours to something else, `lo` even, which cannot be deleted; and our address to another interface. `bridge` is the
    bridge that the host veth is a port of, None for a plugin without bridges.
    """
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            inside = sandbox.find_link()
            others = list_other_addresses(sandbox, inside)
            if inside is None or not inside.kind or not sandbox.delete_link(inside, host):
                _delete_host_veth(args, conf, host, bridge, namespace)
            return _elsewhere(others, conf)
    except NetnsMissingError:
        _delete_host_veth(args, conf, host, bridge, None)
        return ()


def list_other_addresses(sandbox: Sandbox, inside: Link | None) -> tuple[Cidr, ...]:
    """Returns the addresses of the sandbox's other interfaces."""
    return tuple(item.address for item in address.list_elsewhere(sandbox.socket, inside))


def result_interface(conf: NetConf, found: Link, sandbox: str = "") -> Interface:
    """Returns a link as a result tells of it: its MTU since CNI 1.1.0."""
    return Interface(found.name, found.mac, found.mtu if conf.version == "1.1.0" else 0, sandbox)


def parse_mtu(fields: Fields, hint: str = "leave it out for the kernel's default") -> int:
    """Reads the key `mtu`, in bytes, 0 for the kernel's default; raises CniError(7)."""
    mtu = fields.integer("mtu") or 0
    if mtu and not _MTU_MIN <= mtu <= _MTU_MAX:
        raise fields.error("mtu", f"must be 0 or between {_MTU_MIN} and {_MTU_MAX}, not {mtu}", hint)
    return mtu


def refuse_small_mtu(mtu: int, ips: Iterable[IPConfig], hint: str = "") -> None:
    """Raises CniError(7) for an MTU with which the kernel would take IPv6 addresses off the interface again."""
    if 0 < mtu < _IPV6_MTU_MIN and any(isinstance(ip.address, IPv6Interface) for ip in ips):
        msg = f'"mtu" {mtu} is too small for the IPv6 addresses that IPAM gives'
        raise CniError(Code.INVALID_NETWORK_CONFIG, msg, f"IPv6 needs {_IPV6_MTU_MIN} bytes (RFC 8200){hint}")


def listed_container_interface(args: CmdArgs, prev_result: Result) -> Interface:
    """Returns what prevResult says of the sandbox's end; raises CniError(999)."""
    for item in prev_result.interfaces:
        if item.name == args.ifname and item.sandbox:
            if item.sandbox != args.netns:
                msg = f"Sandbox in prevResult {item.sandbox} doesn't match configured netns: {args.netns}"
                raise CniError(Code.INTERNAL, msg, _AGAIN)
            return item
    details = "the runtime gave the result of another attachment, or the configuration was changed since"
    raise CniError(Code.INTERNAL, f"Interface name {args.ifname} not found in prevResult", details)


def check_host_veth(outside: Link, prev_result: Result) -> str:
    """Checks that the host's end is up and has the address that prevResult says, "" unless it is not listed there.

    Raises CniError(999).
    """
    listed = next((item for item in prev_result.interfaces if item.name == outside.name and not item.sandbox), None)
    if listed is None:
        return (
            f'"{outside.name}" is not in prevResult: '
            "the runtime gave the result of another attachment, or the configuration was changed since"
        )
    if listed.mac and outside.mac != listed.mac:
        details = f'it is {outside.mac}; set it back: ip link set "{outside.name}" address {listed.mac}'
        raise CniError(Code.INTERNAL, f"Interface {outside.name} Mac doesn't match: {listed.mac} not found", details)
    if not outside.is_up:
        details = f'set it up: ip link set "{outside.name}" up'
        raise CniError(Code.INTERNAL, f"Interface {outside.name} is down", details)
    return ""


def _elsewhere(addresses: tuple[Cidr, ...], conf: NetConf) -> tuple[Cidr, ...]:
    """Returns those that prevResult, where it can be read, does not give to this attachment."""
    if all(item.ip.is_loopback for item in addresses):
        return addresses  # most sandboxes have no others, and reading prevResult takes time
    try:
        prev_result = conf.prev_result()
    except CniError:
        return addresses
    own = {item.address.ip for item in prev_result.ips} if prev_result else set()
    return tuple(item for item in addresses if item.ip not in own)


def _delete_host_veth(args: CmdArgs, conf: NetConf, host: Socket, bridge: str | None, namespace: Netns | None) -> None:
    """Deletes the host veth that prevResult names, if the kernel confirms that it is this attachment's.

    A namespace whose file is gone lives on while a process is in it, and so does the veth pair with its addresses. An
    uplink may be a veth, too (kind, LXC), and prevResult may be another attachment's: an unconfirmed one stays.
    """
    try:
        prev_result = conf.prev_result() or Result()
    except CniError:
        return  # DEL does what it can without
    for item in prev_result.interfaces:
        if not item.sandbox and item.name.startswith("veth") and is_interface_name(item.name):
            (found,) = link.get(host, link.by_name_request(item.name))
            if (
                found
                and found.kind == "veth"
                and found.mac == item.mac
                and _leads_to_sandbox(host, found, args, prev_result, namespace)
                and _is_unused(host, found, prev_result, bridge)
            ):
                host.change(link.delete_request(found))


def _leads_to_sandbox(host: Socket, veth: Link, args: CmdArgs, prev_result: Result, namespace: Netns | None) -> bool:
    """Tells whether a host veth leads into `namespace`, or to the MAC address that ADD gave the sandbox's interface."""
    number = link.get_namespace_ids(host, [namespace])[0] if namespace else None
    if number is not None and number == veth.lower_nsid:
        return True
    peer = link.get_remote_peer(host, veth)
    return peer is not None and any(
        item.sandbox and item.name == args.ifname and item.mac == peer.mac and args.netns in ("", item.sandbox)
        for item in prev_result.interfaces
    )


def _is_unused(host: Socket, veth: Link, prev_result: Result, bridge: str | None) -> bool:
    """Tells whether a host veth is as the plugin made it: a port of `bridge` without addresses, or with gateways only.

    The kernel itself gives each interface a link-local IPv6 address.
    """
    gateways = {ip.gateway for ip in prev_result.ips} if bridge is None else set()
    assigned = (item.address.ip for item in address.list_on_link(host, veth))
    if any(ip not in gateways and not (ip.version == 6 and ip.is_link_local) for ip in assigned):
        return False
    (master,) = link.get(host, link.by_index_request(veth.master)) if veth.master else [None]
    return bridge is None or (master is not None and (master.name, master.kind) == (bridge, "bridge"))
