"""The verbs of firewall.

One rule: each change is followed by its undo, and DEL looks for rules wherever they may be, whatever is configured.
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


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Accepts the attachment's packets; returns the earlier plugins' result unchanged.

    May be repeated at any time: flushed rules are restored. A failed ADD leaves only the shared chains, which other
    pods may use by then.
    """
    prev_result = conf.required_prev_result("missing prevResult from earlier plugin")
    own = firewall_conf.parse(args, conf, prev_result)
    if own.spec.addresses:
        with Undo() as undo:
            undo.push("remove the firewall's rules", partial(_remove, own.spec))
            try:
                backend.add(own)
            except UnchangedError:
                undo.clear()  # what an earlier ADD made is as it was
                raise
    return prev_result


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Removes the attachment's rules from every backend; absent rules and an invalid configuration are no errors."""
    _remove(firewall_conf.parse_leniently(args, conf))


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that the attachment's rules exist and are reached; changes nothing."""
    prev_result = conf.required_prev_result("missing prevResult from earlier plugin")
    own = firewall_conf.parse(args, conf, prev_result)
    if own.spec.addresses:
        backend.check(own)


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes this network's rules of attachments that are not in `valid`; rules that name no network stay."""
    rules = [
        lambda socket: firewalld.gc(socket, conf.name, valid),
        lambda socket: iptables.gc(socket, conf.name, valid),
        lambda socket: nftables.gc(socket, conf.name, valid),
    ]
    run_all(partial(iptables.gc_legacy, conf.name, valid), partial(nft.run_steps, rules))


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Raises CniError(50) if ADD could not succeed."""
    try:
        own = firewall_conf.parse(args, conf, None)
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from None
    if problem := backend.get_problem(own):
        cure = 'install what is missing, or set "backend" to another one'
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, f"the firewall cannot be served: {problem}", cure)


def cmd_repair(args: CmdArgs, conf: NetConf) -> None:
    """Creates the attachment's rules again after a flush or a reload of firewalld."""
    prev_result = conf.required_prev_result("missing prevResult from earlier plugin")
    own = firewall_conf.parse(args, conf, prev_result)
    if own.spec.addresses:
        repair_if_missing("the firewall's rules", partial(backend.check, own), partial(backend.add, own))


PLUGIN = Plugin(
    "firewall",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, conf: firewall_conf.parse(args, conf, conf.prev_result()),
    keys=firewall_conf.KEYS,
    cmd_repair=cmd_repair,
    cmd_remove_rules=cmd_del,  # which is about rules only
    versions=tuple(version for version in SUPPORTED if at_least(version, "0.4.0")),
)


def _remove(own: FirewallSpec) -> None:
    """Removes the attachment's rules from all backends: firewalld, netlink, iptables-legacy."""
    rules = [
        lambda socket: firewalld.delete(socket, own),
        lambda socket: iptables.delete(socket, own),
        lambda socket: nftables.delete(socket, own),
    ]
    run_all(partial(iptables.delete_legacy, own), partial(nft.run_steps, rules))
