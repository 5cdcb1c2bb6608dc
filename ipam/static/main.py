"""static: addresses that the configuration or the runtime names.

One rule: nothing is kept and nothing is reserved, so that DEL has nothing to do, whatever the configuration is by then.
"""

from __future__ import annotations

from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.result import IPConfig, Result
from cni.skel import Plugin
from ipam.static import conf
from process.values import replace


def cmd_add(args: CmdArgs, netconf: NetConf) -> Result:
    """Gives what is written; no address at all is for the caller to judge."""
    wanted = conf.parse(netconf, args)
    return Result(ips=wanted.ips, routes=wanted.routes, dns=wanted.dns)


def cmd_del(args: CmdArgs, netconf: NetConf) -> None:
    """Does nothing: not even the configuration is read."""


def cmd_check(args: CmdArgs, netconf: NetConf) -> None:
    """Tells whether prevResult has each address as it is written; a gateway, where none is written, is the caller's.

    Routes and dns are not compared: interface plugins put their own in. Where the runtime may have chosen addresses for
    ADD, and sends none now, those of the network may be absent.
    """
    wanted = conf.parse(netconf, args)
    present = netconf.required_prev_result().ips
    for ip in wanted.ips:
        problem = _difference(ip, [item for item in present if item.address.ip == ip.address.ip], wanted.certain)
        if problem:
            raise CniError(
                Code.INTERNAL, f"static: Failed to match addr {ip.address.ip} on interface {args.ifname}", problem
            )


def cmd_status(args: CmdArgs, netconf: NetConf) -> None:
    """Tells whether the configuration can be served; what only a runtime says is not there with STATUS."""
    try:
        conf.parse(netconf, replace(args, args=""))
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error


def _difference(wanted: IPConfig, present: list[IPConfig], certain: bool) -> str:
    """Returns how `present`, what prevResult has of one address, differs from what is wanted, "" if it does not."""
    if not present:
        return f"prevResult does not have {wanted.address}" if certain else ""
    alike = [item for item in present if item.address == wanted.address]
    if not alike:
        return f"prevResult has {present[0].address}, the configuration {wanted.address}"
    if wanted.gateway and all(item.gateway != wanted.gateway for item in alike):
        return f"prevResult has gateway {alike[0].gateway or 'none'}, the configuration {wanted.gateway}"
    return ""


PLUGIN = Plugin(
    "static",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_status=cmd_status,
    parse=lambda args, netconf: conf.parse(netconf, args),
    keys=conf.KEYS,
)
