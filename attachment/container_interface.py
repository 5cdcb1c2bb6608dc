"""The interface of an attachment that consists of one link in the container: macvlan, vlan, dummy and similar plugins.

The plugin creates the link. This module has what all kinds of links have in common: addresses, checks, deletion.
"""

from __future__ import annotations

from attachment.prev_result import OTHER_ATTACHMENT_HINT, RECREATE_HINT
from attachment.sandbox import Sandbox
from attachment.veth import refuse_small_mtu
from cni import delegate
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, internal, invalid_conf
from cni.result import DNS, Interface, Result
from kernel import link
from kernel.link import Link
from kernel.link_deletion import delete_in_sandbox
from kernel.netns import Netns, NetnsMissingError
from process.undo import Undo
from process.values import replace

_DNS_KEYS = ("nameservers", "domain", "search", "options")


def parse_dns(net_conf: NetConf) -> DNS | None:
    """Reads the key `dns`; None without settings, so that those of the IPAM result remain. Raises CniError(7)."""
    dns = net_conf.fields.section("dns")
    return DNS.from_fields(dns) if any(dns.has(key) for key in _DNS_KEYS) else None


def refuse_untyped_ipam(net_conf: NetConf, context: str = "") -> None:
    """Raises CniError(7) for the key `ipam` without a type, with the text of the reference plugins behind `context`."""
    if net_conf.fields.has("ipam") and not net_conf.ipam_type:
        details = '"ipam" has no "type"; for an interface without addresses omit "ipam"'
        raise invalid_conf(f"{context}no plugin name provided", details)


def refuse_existing(sandbox: Sandbox, kind: str, msg: str = "") -> None:
    """Raises CniError(999) when the container has an interface of this name already; text of the reference plugins.

    `msg` replaces the text of plugins that create the interface under a temporary name and rename it. Whatever has the
    name afterwards was created by this ADD, and its rollback may delete it. Raises KernelError.
    """
    if sandbox.find_link() is not None:
        details = (
            f"{sandbox.path} has an interface of this name: the container is attached already; run DEL first, or set "
            "CNI_IFNAME to another name"
        )
        raise internal(msg or f'failed to rename {kind} to "{sandbox.ifname}": file exists', details)


def delete_created(sandbox: Sandbox) -> None:
    """Deletes the interface that this ADD created, for its rollback; a missing one is success. Raises KernelError."""
    created = sandbox.find_link()
    if created is not None:
        sandbox.socket.change(link.delete_request(created))


def allocate_addresses(
    args: CmdArgs,
    net_conf: NetConf,
    container_link: Link,
    undo: Undo,
    *,
    dns: DNS | None = None,
    prev_result: Result | None = None,
    ipam_context: str = "",
) -> Result:
    """Makes IPAM allocate the interface's addresses; returns the result of ADD, which lists the interface.

    Without IPAM the result has the addresses, routes and DNS settings of `prev_result`, or none. `dns`, unless None,
    replaces the DNS settings. Errors of IPAM begin with `ipam_context`. Raises CniError, also for an MTU that is too
    small for the addresses.
    """
    addressing = prev_result or Result()
    if net_conf.ipam_type:
        try:
            addressing = delegate.add_ipam(args, net_conf, undo)
        except CniError as error:
            raise error.prefixed(ipam_context) from error
    interface = result_interface(net_conf, container_link, args.netns)
    ips = tuple(replace(ip, interface=0) for ip in addressing.ips)
    if ips:
        refuse_small_mtu(container_link.mtu, ips)
    result = replace(addressing, ips=ips, interfaces=(interface,))
    return result if dns is None else replace(result, dns=dns)


def configure(sandbox: Sandbox, container_link: Link, result: Result, *, await_ipv6: bool = True) -> None:
    """Sets the interface up, with the addresses and routes of the result of allocate_addresses().

    With `await_ipv6` it waits until IPv6 addresses are usable. Raises CniError, KernelError.
    """
    if result.ips:
        sandbox.configure(container_link, result, dad=True, await_ipv6=await_ipv6)
    else:
        sandbox.socket.change(link.set_request(container_link, up=True))


def result_interface(net_conf: NetConf, container_link: Link, sandbox: str) -> Interface:
    """Returns a link as an interface of a CNI result, with its MTU since CNI 1.1.0."""
    mtu = container_link.mtu if net_conf.version == "1.1.0" else 0
    return Interface(container_link.name, container_link.mac, mtu, sandbox)


def delete(args: CmdArgs, net_conf: NetConf, *kinds: str) -> None:
    """Deletes the interface, then releases its addresses; a missing namespace or interface is success.

    Deletes only a link of one of `kinds`: a process in the container may have given the name to another one. If the
    interface cannot be deleted, its addresses stay reserved because they are in use. Raises CniError, KernelError.
    """
    delegate.release_lease(args, net_conf)
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
            container_link = sandbox.find_link()
            if container_link is not None and container_link.kind in kinds:
                delete_in_sandbox(container_link, sandbox.open_socket)
    except NetnsMissingError:
        pass
    delegate.run_ipam(args, net_conf)


def get_listed(args: CmdArgs, prev_result: Result) -> Interface:
    """Returns the attachment's interface in `prev_result`; raises CniError(999) with the texts of the reference."""
    for item in prev_result.interfaces:
        if item.name == args.ifname and item.sandbox:
            if item.sandbox != args.netns:
                msg = f"Sandbox in prevResult {item.sandbox} doesn't match configured netns: {args.netns}"
                raise internal(msg, OTHER_ATTACHMENT_HINT)
            return item
    raise internal(f"Container Interface name in prevResult: {args.ifname} not found", OTHER_ATTACHMENT_HINT)


def get_checked(sandbox: Sandbox, listed: Interface, kind: str | None) -> Link:
    """Returns the interface if it is of `kind` (None for any), up, and as prevResult lists it.

    Raises CniError(999) with the texts of the reference plugins, KernelError.
    """
    name = sandbox.ifname
    container_link = sandbox.find_link()
    if container_link is None:
        msg = f"Container Interface name in prevResult: {name} not found"
        raise internal(msg, f"the network namespace is {sandbox.path}; {RECREATE_HINT}")
    if kind is not None and container_link.kind != kind:
        details = f"it is {container_link.kind or 'unknown'}; {RECREATE_HINT}"
        raise internal(f"Error: Container interface {name} not of type {kind}", details)
    if listed.mac and container_link.mac != listed.mac:
        msg = f"Interface {name} Mac {listed.mac} doesn't match container Mac: {container_link.mac}"
        raise internal(msg, RECREATE_HINT)
    if not container_link.is_up:
        raise internal(f"Interface {name} is down", f'in the container: ip link set "{name}" up')
    # prevResult has the MTU since CNI 1.1.0; a later plugin may have changed the configured one.
    if listed.mtu and container_link.mtu != listed.mtu:
        details = f"it is {container_link.mtu}; set it back, or remove the container and create it again"
        raise internal(f"Interface {name} MTU doesn't match: {listed.mtu}", details)
    return container_link
