"""The verbs of vlan.

ADD creates the interface in the container's namespace. DEL needs neither the master nor a valid configuration.
"""

from __future__ import annotations

from functools import partial

from attachment import child_interface, container_interface, master
from attachment.child_interface import ChildSpec
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel import modules
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.vlan import conf as vlan_conf
from plugins.vlan import interface
from process.undo import Undo

_IPAM_CONTEXT = "failed to execute IPAM delegate: "  # the reference plugin's text


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the VLAN interface, with the addresses that IPAM allocates, or without addresses.

    A failure is rolled back.
    """
    conf = vlan_conf.parse(net_conf)
    net_conf.refuse_missing_ipam()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, Undo() as undo:
        with child_interface.master_socket(conf.master, sandbox) as socket:
            parent = master.find_usable(socket, conf.master, must_be_up=True)
            spec = ChildSpec("vlan", interface.get_attributes(conf), partial(interface.explain, parent, conf))
            container_link = child_interface.create(spec, socket, parent, sandbox, conf.master, undo)
        result = container_interface.allocate_addresses(
            args, net_conf, container_link, undo, dns=conf.dns, ipam_context=_IPAM_CONTEXT
        )
        container_interface.configure(sandbox, container_link, result)
        return result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the interface and releases its addresses; a missing namespace, interface or master is success."""
    container_interface.delete(args, net_conf, "vlan")


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = vlan_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result("vlan: Required prevResult missing")
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        delegate.run_ipam(args, net_conf)
        listed = container_interface.get_listed(args, prev_result)
        with child_interface.master_socket(conf.master, sandbox) as socket:
            parent = master.find(socket, conf.master)
        if not parent.is_up:  # the kernel sets the interface down with its master, and up again
            raise master.down_error(parent, in_container=conf.master.in_container)
        container_link = container_interface.get_checked(sandbox, listed, "vlan")
        interface.check(sandbox, container_link, conf)
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
    "vlan",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: vlan_conf.parse(net_conf),
    keys=vlan_conf.KEYS,
)


def _refuse_unavailable(net_conf: NetConf) -> None:
    conf = vlan_conf.parse(net_conf)
    with Socket() as host:
        modules.refuse_missing_links(host, "vlan")
    master.refuse_unusable(conf.master)
