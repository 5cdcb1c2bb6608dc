"""The verbs of static, which returns the addresses of the configuration or of the runtime.

One rule: static stores and reserves nothing, so DEL has nothing to do, even with an invalid configuration.
"""

from __future__ import annotations

from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, internal
from cni.result import IPConfig, Result
from cni.skel import Plugin
from ipam.static import conf as static_conf
from process.values import replace


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Returns the configured addresses; whether an empty result is an error is the caller's decision."""
    conf = static_conf.parse(net_conf, args)
    return Result(ips=conf.ips, routes=conf.routes, dns=conf.dns)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Succeeds without reading the configuration: static reserves nothing."""


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that prevResult has each configured address, and its gateway if one is configured; raises CniError(999).

    Does not compare routes and DNS settings, since interface plugins add theirs. If the runtime may choose addresses
    but sends none now, the network's addresses may be absent: the runtime may have sent others with ADD.
    """
    conf = static_conf.parse(net_conf, args)
    existing = net_conf.required_prev_result().ips
    for ip in conf.ips:
        problem = _difference(ip, [item for item in existing if item.address.ip == ip.address.ip], conf.is_final)
        if problem:
            raise internal(f"static: Failed to match addr {ip.address.ip} on interface {args.ifname}", problem)


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the configuration, without the runtime's values, which STATUS does not contain; raises CniError(50)."""
    try:
        static_conf.parse(net_conf, replace(args, args=""))
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error


def _difference(desired: IPConfig, existing: list[IPConfig], is_final: bool) -> str:
    """Returns how `existing`, prevResult's entries for one address, differ from `desired`, "" if they do not."""
    if not existing:
        return f"prevResult does not have {desired.address}" if is_final else ""
    matching = [item for item in existing if item.address == desired.address]
    if not matching:
        return f"prevResult has {existing[0].address}, the configuration {desired.address}"
    if desired.gateway and all(item.gateway != desired.gateway for item in matching):
        return f"prevResult has gateway {matching[0].gateway or 'none'}, the configuration {desired.gateway}"
    return ""


PLUGIN = Plugin(
    "static",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: static_conf.parse(net_conf, args),
    keys=static_conf.KEYS,
)
