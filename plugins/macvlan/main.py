"""The verbs of macvlan.

ADD creates the interface in the container's namespace and registers the undo of each change next to the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from attachment import container_interface, master
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import run_status_checks
from cni.result import Result
from cni.skel import Plugin
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.macvlan import conf as macvlan_conf
from plugins.macvlan import interface
from plugins.macvlan.conf import MacvlanConf
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the interface on the master, with the addresses that IPAM allocates, or without addresses.

    A failure is rolled back.
    """
    conf = macvlan_conf.parse(args, net_conf)
    net_conf.refuse_missing_ipam()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, Undo() as undo:
        with _open_master_socket(conf, sandbox) as socket:
            parent = master.find(socket, conf.master)
            master.refuse_loopback(parent)
            container_interface.refuse_existing(sandbox, "macvlan")
            undo.push(f'delete "{args.ifname}"', partial(container_interface.delete_created, sandbox))
            interface.create(socket, parent, sandbox, conf)
        container_link = sandbox.get_link()
        with interface.explained_failures(container_link, parent):
            return container_interface.configure(args, net_conf, sandbox, container_link, undo, dns=conf.dns)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the interface and releases its addresses; a missing namespace, interface or master is success."""
    container_interface.delete(args, net_conf, "macvlan")


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface against prevResult, which later plugins may have changed; IPAM checks its part."""
    conf = macvlan_conf.parse(args, net_conf)
    prev_result = net_conf.required_prev_result("required prevResult missing")
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        with _open_master_socket(conf, sandbox) as socket:
            parent = master.find(socket, conf.master)
        delegate.run_ipam(args, net_conf)
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, "macvlan")
        interface.check(sandbox, container_link, parent, conf)
        check_addresses_and_routes(sandbox, container_link, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Makes IPAM release the addresses of attachments that are not in `valid`.

    Interfaces need no removal: the kernel deletes them with their network namespaces.
    """
    delegate.run_ipam(args, net_conf)


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, master, IPAM. Raises CniError(50), CniError(51)."""
    run_status_checks(partial(_refuse_unavailable, args, net_conf), partial(delegate.run_ipam, args, net_conf))


PLUGIN = Plugin(
    "macvlan",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=macvlan_conf.parse,
    keys=macvlan_conf.KEYS,
)


@contextmanager
def _open_master_socket(conf: MacvlanConf, sandbox: Sandbox) -> Iterator[Socket]:
    """Yields a socket in the master's namespace: the host's, or the sandbox's with `linkInContainer`."""
    if conf.master.in_container:
        yield sandbox.socket
    else:
        with Socket() as socket:
            yield socket


def _refuse_unavailable(args: CmdArgs, net_conf: NetConf) -> None:
    conf = macvlan_conf.parse(args, net_conf)
    if conf.master.in_container:  # STATUS is not about a container
        return
    with Socket() as socket:
        parent: Link = master.find(socket, conf.master)
    master.refuse_loopback(parent)
