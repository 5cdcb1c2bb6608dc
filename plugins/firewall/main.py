"""The verbs of firewall.

ADD registers the undo of its changes. DEL removes the rules of every backend, whichever is configured.
"""

from __future__ import annotations

from functools import partial

from attachment.repair import repair_if_missing
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, UnchangedError, run_all
from cni.result import Result
from cni.skel import Plugin
from cni.versions import SUPPORTED, at_least
from kernel.netfilter import nft
from plugins.firewall import backend, firewalld, iptables, nftables
from plugins.firewall import conf as firewall_conf
from plugins.firewall.spec import FirewallSpec
from process.undo import Undo


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Accepts the attachment's packets; returns prevResult unchanged.

    May be repeated at any time: recreates flushed rules. A failed ADD leaves only the shared chains, which other pods
    may use by then.
    """
    prev_result = net_conf.required_prev_result("missing prevResult from earlier plugin")
    conf = firewall_conf.parse(args, net_conf, prev_result)
    if conf.spec.addresses:
        with Undo() as undo:
            undo.push("remove the firewall's rules", partial(_remove, conf.spec))
            try:
                backend.add(conf)
            except UnchangedError:
                undo.clear()  # the rules of an earlier ADD are unchanged: keep them
                raise
    return prev_result


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Removes the attachment's rules from every backend; absent rules and an invalid configuration are no errors."""
    _remove(firewall_conf.parse_leniently(args, net_conf))


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that the attachment's rules exist and are reached; changes nothing."""
    prev_result = net_conf.required_prev_result("missing prevResult from earlier plugin")
    conf = firewall_conf.parse(args, net_conf, prev_result)
    if conf.spec.addresses:
        backend.check(conf)


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes this network's rules of attachments that are not in `valid`; rules that name no network stay."""
    rules = [
        lambda socket: firewalld.gc(socket, net_conf.name, valid),
        lambda socket: iptables.gc(socket, net_conf.name, valid),
        lambda socket: nftables.gc(socket, net_conf.name, valid),
    ]
    run_all(partial(iptables.gc_legacy, net_conf.name, valid), partial(nft.run_steps, rules))


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Raises CniError(50) if ADD could not succeed."""
    try:
        conf = firewall_conf.parse(args, net_conf, None)
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from None
    if problem := backend.get_problem(conf):
        fix = 'install what is missing, or set "backend" to another one'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"the firewall does not work on this node: {problem}", fix)


def cmd_repair(args: CmdArgs, net_conf: NetConf) -> None:
    """Creates the attachment's rules again after a flush or a reload of firewalld."""
    prev_result = net_conf.required_prev_result("missing prevResult from earlier plugin")
    conf = firewall_conf.parse(args, net_conf, prev_result)
    if conf.spec.addresses:
        repair_if_missing("the firewall's rules", partial(backend.check, conf), partial(backend.add, conf))


PLUGIN = Plugin(
    "firewall",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: firewall_conf.parse(args, net_conf, net_conf.prev_result()),
    keys=firewall_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_del,  # which is about rules only
    versions=tuple(version for version in SUPPORTED if at_least(version, "0.4.0")),
)


def _remove(spec: FirewallSpec) -> None:
    """Removes the attachment's rules from all backends, including iptables-legacy."""
    rules = [
        lambda socket: firewalld.delete(socket, spec),
        lambda socket: iptables.delete(socket, spec),
        lambda socket: nftables.delete(socket, spec),
    ]
    run_all(partial(iptables.delete_legacy, spec), partial(nft.run_steps, rules))
