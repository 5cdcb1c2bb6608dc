"""The verbs of macvlan.

ADD creates the interface in the container's namespace and registers the undo of each change next to the change.
"""

from __future__ import annotations

from functools import partial

from attachment import child_interface, conflict_detection, container_interface, host_access, master
from attachment.host_access import AccessLinks, HostLinkKind
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.address import parse_mac
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import run_all, run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel import modules
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.macvlan import conf as macvlan_conf
from plugins.macvlan import interface
from plugins.macvlan.conf import MacvlanConf
from process.undo import Undo
from process.values import replace

_HOST_LINK_KIND = HostLinkKind("macvlan", [("IFLA_MACVLAN_MODE", macvlan_conf.MODES["bridge"])], has_mac=True)


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the interface on the master, with the addresses that IPAM allocates, or without addresses.

    A failure is rolled back.
    """
    conf = macvlan_conf.parse(args, net_conf)
    net_conf.refuse_missing_ipam()
    with (
        Netns(args.netns) as namespace,
        Sandbox(namespace, args.ifname) as sandbox,
        child_interface.master_socket(conf.master, sandbox) as socket,
        Undo() as undo,
    ):
        parent = master.find_usable(socket, conf.master, must_be_up=conf.host_access or conf.conflict_detection)
        container_link = interface.create(socket, parent, sandbox, conf, undo)
        links = AccessLinks(socket, parent, sandbox, container_link)
        result = container_interface.allocate_addresses(args, net_conf, container_link, undo, dns=conf.dns)
        with interface.explained_failures(container_link, parent):
            _refuse_conflicts(conf, links, args, result)
            container_interface.configure(sandbox, container_link, result, await_ipv6=parent.is_up)
        if conf.host_access:
            host_access.add(_HOST_LINK_KIND, links, args, net_conf, result, undo)
        return result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the interface and releases its addresses; a missing namespace, interface or master is success."""
    run_all(
        partial(host_access.remove_if_enabled, args, net_conf),
        partial(container_interface.delete, args, net_conf, "macvlan"),
        partial(host_access.delete_neighbours_if_enabled, args, net_conf),
    )


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = macvlan_conf.parse(args, net_conf)
    prev_result = net_conf.required_prev_result("required prevResult missing")
    with (
        Netns(args.netns) as namespace,
        Sandbox(namespace, args.ifname) as sandbox,
        child_interface.master_socket(conf.master, sandbox) as socket,
    ):
        parent = master.find(socket, conf.master)
        delegate.run_ipam(args, net_conf)
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, "macvlan")
        interface.check(sandbox, container_link, parent, conf)
        check_addresses_and_routes(sandbox, container_link, prev_result)
        if conf.host_access:
            host_access.check(AccessLinks(socket, parent, sandbox, container_link), args, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Deletes the host's routes to attachments that are not in `valid`, and makes IPAM release their addresses.

    Interfaces need no removal: the kernel deletes them with their network namespaces.
    """
    run_all(partial(host_access.gc, net_conf.name, valid), partial(delegate.run_ipam, args, net_conf))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, master, IPAM. Raises CniError(50), CniError(51)."""
    run_status_checks(partial(_refuse_unavailable, args, net_conf), partial(delegate.run_ipam, args, net_conf))


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Recreates the interface if the kernel deleted it with its master, and the host's access to the pod.

    The interface gets the MAC address, the addresses and the routes in prevResult. IPAM is not called: the addresses
    are still reserved.
    """
    conf = macvlan_conf.parse(args, net_conf)
    prev_result = net_conf.required_prev_result()
    listed = container_interface.get_listed(args, prev_result)
    with (
        Netns(args.netns) as namespace,
        Sandbox(namespace, args.ifname) as sandbox,
        child_interface.master_socket(conf.master, sandbox) as socket,
        Undo() as undo,
    ):
        parent = master.find(socket, conf.master)
        recreated = replace(conf, mac=parse_mac(listed.mac)) if listed.mac else conf
        recreate = partial(interface.recreate, socket, parent, sandbox, recreated, prev_result, undo)
        repair_if_missing(f'the interface "{args.ifname}"', sandbox.get_link, recreate)
        container_link = sandbox.find_link()
        if conf.host_access and container_link is not None:
            links = AccessLinks(socket, parent, sandbox, container_link)
            host_access.repair(_HOST_LINK_KIND, links, args, net_conf, prev_result, undo)


PLUGIN = Plugin(
    "macvlan",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=macvlan_conf.parse,
    keys=macvlan_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=host_access.remove_if_enabled,
)


def _refuse_conflicts(conf: MacvlanConf, links: AccessLinks, args: CmdArgs, result: Result) -> None:
    """Raises CniError for an allocated address that the node has, or with `conflictDetection` another host."""
    if conf.host_access:
        host_access.refuse_node_addresses(links, args, result)
    if conf.conflict_detection:
        conflict_detection.refuse_conflicts(links.sandbox, links.container_link, result)


def _refuse_unavailable(args: CmdArgs, net_conf: NetConf) -> None:
    conf = macvlan_conf.parse(args, net_conf)
    with Socket() as host:
        modules.refuse_missing_links(host, "macvlan")
    master.refuse_unusable(conf.master)
