"""The verbs of ipvlan.

ADD creates the interface in the container's namespace. A chained ipvlan, which has prevResult at ADD, takes over the
addresses of prevResult. DEL needs neither the master nor a valid configuration.
"""

from __future__ import annotations

from functools import partial

from attachment import child_interface, container_interface, master
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.ipvlan import conf as ipvlan_conf
from plugins.ipvlan import interface
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the interface with the addresses of IPAM or of prevResult, or without addresses.

    A failure is rolled back.
    """
    conf = ipvlan_conf.parse(net_conf)
    prev_result = net_conf.prev_result()
    options = ipvlan_conf.choose_master(conf.master, prev_result)
    if prev_result is None or not prev_result.ips:
        net_conf.refuse_missing_ipam()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, Undo() as undo:
        with child_interface.master_socket(options, sandbox) as socket:
            parent = master.find(socket, options)
            master.refuse_loopback(parent)
            container_link = child_interface.create(
                "ipvlan",
                socket,
                parent,
                sandbox,
                options,
                interface.get_attributes(conf),
                undo,
                lambda error: interface.explain(error, socket, parent),
            )
        return container_interface.configure(
            args, net_conf, sandbox, container_link, undo, dns=conf.dns, prev_result=prev_result
        )


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the interface and releases its addresses; a missing namespace, interface or master is success."""
    container_interface.delete(args, net_conf, "ipvlan")


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
        if conf.master.name:
            with child_interface.master_socket(conf.master, sandbox) as socket:
                parent = master.find(socket, conf.master)
            master.check(sandbox, container_link, parent, in_container=conf.master.in_container)
        check_addresses_and_routes(sandbox, container_link, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Makes IPAM release the addresses of attachments that are not in `valid`.

    Interfaces need no removal: the kernel deletes them with their network namespaces.
    """
    delegate.run_ipam(args, net_conf)


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, kernel, master, IPAM. Raises CniError(50), CniError(51)."""
    run_status_checks(partial(_refuse_unavailable, net_conf), partial(delegate.run_ipam, args, net_conf))


PLUGIN = Plugin(
    "ipvlan",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: ipvlan_conf.parse(net_conf),
    keys=ipvlan_conf.KEYS,
)


def _refuse_unavailable(net_conf: NetConf) -> None:
    conf = ipvlan_conf.parse(net_conf)
    child_interface.refuse_missing_module("ipvlan", "ipvlan")
    if conf.master.in_container or not conf.master.name:  # a chained ipvlan gets its master at ADD
        return
    with Socket() as socket:
        master.refuse_loopback(master.find(socket, conf.master))
