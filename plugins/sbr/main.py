"""The verbs of sbr.

ADD fills a table for each address before a rule refers to it, and only then removes routes from table main. DEL removes
the attachment's rules and the routes of their tables, never those of other interfaces.
"""

from __future__ import annotations

from functools import partial

from attachment.repair import repair_if_missing
from attachment.sandbox import Sandbox, attachment_ips
from cni.args import CmdArgs
from cni.conf import NetConf, not_chained
from cni.errors import CniError, Code, internal, invalid_conf
from cni.result import IPConfig, Result
from cni.skel import Plugin
from kernel import flock, rule
from kernel.link import Link
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from plugins.sbr import check, plan, removal
from plugins.sbr import conf as sbr_conf
from plugins.sbr.conf import SbrConf
from plugins.sbr.state import SandboxState, get_state
from process import record
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Routes the interface's traffic by its source addresses; returns prevResult.

    A failure restores rules and routes.
    """
    conf = sbr_conf.parse(net_conf)
    prev_result = net_conf.prev_result()
    if prev_result is None:
        raise not_chained("sbr").prefixed("This plugin ")
    ips = _ips(prev_result, args.ifname)
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, record.timed_step("rules"):
        _ensure(sandbox, conf, prev_result, ips)
    return prev_result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the rules of the attachment's addresses and the routes of their tables; missing ones are success.

    Works without the interface, with the addresses in prevResult, and without a namespace, where there is nothing to
    remove. The configuration may be invalid.
    """
    if not args.netns:
        return
    try:
        with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox, record.timed_step("rules"):
            _lock(namespace)
            removal.remove(sandbox, net_conf.lenient_prev_result(), sbr_conf.lenient_table(net_conf))
    except NetnsMissingError:
        return


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the rule of each address, and the routes of its table; raises CniError(999)."""
    conf = sbr_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result()
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        _check(sandbox, conf, prev_result, _ips(prev_result, args.ifname))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the configuration, and whether the kernel has policy rules; raises CniError(50)."""
    try:
        sbr_conf.parse(net_conf)
        with Socket() as host:
            rule.list_all(host)
    except CniError as error:
        msg = f"sbr does not work on this node: {error.msg}"
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, msg, error.details) from error


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Restores rules and routes that something else deleted, from prevResult."""
    conf = sbr_conf.parse(net_conf)
    prev_result = net_conf.required_prev_result()
    ips = _ips(prev_result, args.ifname)
    with Netns(args.netns) as namespace, Sandbox(namespace, args.ifname) as sandbox:
        repair_if_missing(
            "the source rules",
            partial(_check, sandbox, conf, prev_result, ips),
            partial(_ensure, sandbox, conf, prev_result, ips),
        )


PLUGIN = Plugin(
    "sbr",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_status=cmd_status,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_del,
    parse=lambda args, net_conf: sbr_conf.parse(net_conf),
    keys=sbr_conf.KEYS,
)


def _ensure(sandbox: Sandbox, conf: SbrConf, prev_result: Result, ips: list[IPConfig]) -> None:
    """Creates missing rules and routes, under the namespace's lock: two attachments must not choose one table."""
    _lock(sandbox.namespace)
    with Undo() as undo:
        if conf.table is not None:
            rules = rule.list_all(sandbox.socket)
            plan.apply(sandbox.socket, plan.rules_only(rules, ips, conf.table), undo)
            return
        state, container_link = _get_state(sandbox)
        changes = plan.build(state, container_link, conf, prev_result, ips)
        plan.apply(sandbox.socket, changes.additions, undo)
        plan.apply(sandbox.socket, changes.removals, undo)


def _check(sandbox: Sandbox, conf: SbrConf, prev_result: Result, ips: list[IPConfig]) -> None:
    if conf.table is not None:
        check.check_rules(rule.list_all(sandbox.socket), ips, conf.table)
    else:
        state, container_link = _get_state(sandbox)
        check.check_tables(state, container_link, conf, prev_result, ips)


def _get_state(sandbox: Sandbox) -> tuple[SandboxState, Link]:
    """Reads rules and routes; returns them and the interface. Raises KernelError, and CniError(999) without one."""
    state = get_state(sandbox.socket, sandbox.ifname)
    if state.link is None:
        raise internal(
            f"Cannot find network interface {sandbox.ifname}: Link not found",
            f"the network namespace is {sandbox.path}; list sbr after the plugin that creates the interface",
        )
    return state, state.link


def _lock(namespace: Netns) -> None:
    """Locks the namespace's file, as the reference plugin does, until it is closed; raises CniError(11)."""
    flock.acquire(namespace.fileno(), namespace.path, "the rules of the network namespace")


def _ips(prev_result: Result, ifname: str) -> list[IPConfig]:
    """Returns the interface's addresses in prevResult; raises CniError(7) if there are none."""
    ips = attachment_ips(prev_result, ifname, strict=False)
    if not ips:
        hint = 'sbr routes by source addresses: the plugin before it needs an "ipam" that allocates one'
        raise invalid_conf(f"No IP addresses supplied on interface: {ifname}", hint)
    return ips
