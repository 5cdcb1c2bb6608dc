"""The verbs of dummy: an interface with the addresses that IPAM allocates, and no connection to anything.

The only key is `ipam`, which is required.
"""

from __future__ import annotations

import errno
from functools import partial

from attachment import container_interface
from attachment.sandbox import Sandbox, check_addresses_and_routes
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, internal, invalid_conf, run_status_checks
from cni.keys import IPAM_TYPE
from cni.result import Result
from cni.skel import Plugin
from kernel import dummy, modules
from kernel.errors import KernelError, reason
from kernel.netns import Netns
from kernel.rtnl import Socket
from process.undo import Undo

_KIND = "dummy"


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Creates the interface with the addresses and routes that IPAM returns. A failure is rolled back."""
    _refuse_missing_ipam(net_conf)
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, Undo() as undo:
        container_interface.refuse_existing(sandbox, _KIND, "failed to create dummy: file exists")
        undo.push(f'delete "{args.ifname}"', partial(container_interface.delete_created, sandbox))
        _create(sandbox)
        container_link = sandbox.get_link()
        result = container_interface.allocate_addresses(args, net_conf, container_link, undo)
        container_interface.configure(sandbox, container_link, result)
        return result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Deletes the interface and releases its addresses; a missing namespace or interface is success."""
    container_interface.delete(args, net_conf, _KIND)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the interface, its addresses and its routes against prevResult; IPAM checks its part."""
    _refuse_missing_ipam(net_conf)
    prev_result = net_conf.required_prev_result("dummy: Required prevResult missing")
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        delegate.run_ipam(args, net_conf)
        listed = container_interface.get_listed(args, prev_result)
        container_link = container_interface.get_checked(sandbox, listed, _KIND)
        check_addresses_and_routes(sandbox, container_link, prev_result)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Makes IPAM release the addresses of attachments that are not in `valid`.

    Interfaces need no removal: the kernel deletes them with their network namespaces.
    """
    delegate.run_ipam(args, net_conf)


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD can succeed: configuration, kernel, IPAM. Raises CniError(50), CniError(51)."""
    run_status_checks(
        partial(_refuse_missing_ipam, net_conf), _refuse_unsupported, partial(delegate.run_ipam, args, net_conf)
    )


def _create(sandbox: Sandbox) -> None:
    """Creates the interface, down; raises CniError(999) with the text of the reference plugin."""
    try:
        sandbox.socket.change(dummy.create_request(sandbox.ifname))
    except KernelError as error:
        raise _not_created(error) from error


def _refuse_unsupported() -> None:
    """Raises CniError(999) if the kernel can create no dummy interface."""
    with Socket() as host:
        modules.refuse_missing_links(host, "dummy")


def _not_created(error: KernelError) -> CniError:
    hint = modules.explain_missing("dummy") if error.errno == errno.EOPNOTSUPP else ""
    return internal(f"failed to create dummy: {reason(error.errno)}", hint or error.explanation)


def _refuse_missing_ipam(net_conf: NetConf) -> None:
    if not net_conf.ipam_type:
        details = 'add "ipam" with a "type", for example static'
        raise invalid_conf("dummy interface requires an IPAM configuration", details)


PLUGIN = Plugin(
    _KIND,
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: _refuse_missing_ipam(net_conf),
    keys=(IPAM_TYPE,),
)
