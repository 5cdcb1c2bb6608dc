"""The verbs of ipvlan.

ADD creates the interface in the container's namespace. A chained ipvlan, which gets a prevResult at ADD, gives the
addresses in it to the interface. DEL needs neither the master nor a valid configuration.
"""

from __future__ import annotations

from functools import partial

from attachment import child_interface, conflict_detection, container_interface, host_access, master
from attachment.host_access import AccessLinks, HostLinkKind
from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import run_all, run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel import modules
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.ipvlan import conf as ipvlan_conf
from plugins.ipvlan import interface
from plugins.ipvlan.conf import IpvlanConf
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the interface with the addresses of IPAM or of prevResult, or without addresses.

    A failure is rolled back.
    """
    conf = ipvlan_conf.parse(net_conf)
    prev_result = net_conf.prev_result()
    conf = ipvlan_conf.with_chained_master(conf, prev_result)
    if prev_result is None or not prev_result.ips:
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
        result = container_interface.allocate_addresses(
            args, net_conf, container_link, undo, dns=conf.dns, prev_result=prev_result
        )
        _refuse_conflicts(conf, links, args, result)
        container_interface.configure(sandbox, container_link, result, await_ipv6=parent.is_up)
        if conf.host_access:
            interface.refuse_strict_reverse_path(conf, parent, result)
            host_access.add(_host_link_kind(conf), links, args, net_conf, result, undo)
        return result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the interface and releases its addresses; a missing namespace, interface or master is success."""
    run_all(
        partial(host_access.remove_if_enabled, args, net_conf),
        partial(container_interface.delete, args, net_conf, "ipvlan"),
    )


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface against prevResult, which later plugins may have changed; IPAM checks its part.

    The master is compared only if the configuration names it: otherwise it was the interface of the default route at
    the time of ADD, or, of a chained ipvlan, one that the final result no longer lists.
    """
    conf = ipvlan_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        delegate.run_ipam(args, net_conf)
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, "ipvlan")
        interface.check(sandbox, container_link, conf)
        if not conf.master.name and not conf.host_access:
            check_addresses_and_routes(sandbox, container_link, prev_result)
            return
        with child_interface.master_socket(conf.master, sandbox) as socket:
            parent = interface.find_master(socket, conf.master, container_link)
            master.check(sandbox, container_link, parent, in_container=conf.master.in_container)
            check_addresses_and_routes(sandbox, container_link, prev_result)
            if conf.host_access:
                interface.refuse_strict_reverse_path(conf, parent, prev_result)
                host_access.check(AccessLinks(socket, parent, sandbox, container_link), args, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Deletes the host's routes to attachments that are not in `valid`, and makes IPAM release their addresses.

    Interfaces need no removal: the kernel deletes them with their network namespaces.
    """
    run_all(partial(host_access.gc, net_conf.name, valid), partial(delegate.run_ipam, args, net_conf))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, kernel, master, IPAM. Raises CniError(50), CniError(51)."""
    run_status_checks(partial(_refuse_unavailable, net_conf), partial(delegate.run_ipam, args, net_conf))


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Recreates the interface if the kernel deleted it with its master, and the host's access to the pod.

    The interface gets the addresses and the routes in prevResult. IPAM is not called: the addresses are still reserved.
    A missing interface is recreated only if `master` is set: the master of a chained ipvlan is known only at ADD.
    """
    conf = ipvlan_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result()
    container_interface.get_listed(args, prev_result)
    with (
        Netns(args.netns) as namespace,
        Sandbox(namespace, args.ifname) as sandbox,
        child_interface.master_socket(conf.master, sandbox) as socket,
        Undo() as undo,
    ):
        if conf.master.name:
            parent = master.find(socket, conf.master)
            recreate = partial(interface.recreate, socket, parent, sandbox, conf, prev_result, undo)
            repair_if_missing(f'the interface "{args.ifname}"', sandbox.get_link, recreate)
        container_link = sandbox.find_link() if conf.host_access else None
        if container_link is not None:
            interface.check(sandbox, container_link, conf)
            parent = interface.find_master(socket, conf.master, container_link)
            interface.refuse_strict_reverse_path(conf, parent, prev_result)
            links = AccessLinks(socket, parent, sandbox, container_link)
            host_access.repair(_host_link_kind(conf), links, args, net_conf, prev_result, undo)


PLUGIN = Plugin(
    "ipvlan",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: ipvlan_conf.parse(net_conf),
    keys=ipvlan_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=host_access.remove_if_enabled,
)


def _host_link_kind(conf: IpvlanConf) -> HostLinkKind:
    return HostLinkKind("ipvlan", interface.get_attributes(conf), has_mac=False)


def _refuse_conflicts(conf: IpvlanConf, links: AccessLinks, args: CmdArgs, result: Result) -> None:
    """Raises CniError for an allocated address that the node has, or with `conflictDetection` another host."""
    if conf.host_access:
        host_access.refuse_node_addresses(links, args, result)
    if conf.conflict_detection:
        # The master receives the answers until the interface has the address.
        conflict_detection.refuse_conflicts_on_master(
            links.sandbox, links.master, result, in_container=conf.master.in_container
        )


def _refuse_unavailable(net_conf: NetConf) -> None:
    conf = ipvlan_conf.parse(net_conf)
    with Socket() as host:
        modules.refuse_missing_links(host, "ipvlan")
    if conf.master.name:  # a chained ipvlan gets its master at ADD
        master.refuse_unusable(conf.master)
