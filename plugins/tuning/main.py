"""The verbs of tuning.

ADD validates everything that it can before the first change. DEL restores the backup, whatever is configured by then.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial

from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, internal
from cni.result import Interface, Result
from cni.skel import Plugin
from cni.versions import at_least
from kernel import link
from kernel.errors import reason
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from plugins.tuning import allowlist, attributes, backup, ends, sysctls
from plugins.tuning import conf as tuning_conf
from plugins.tuning.attributes import Attributes
from plugins.tuning.backup import Backup, SavedAttributes
from plugins.tuning.conf import TuningConf
from plugins.tuning.ends import End, Ends
from process import directories
from process.stderr import one_line
from process.undo import Undo
from process.values import replace


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Sets sysctls and the interface's attributes; returns the earlier plugins' result with the new MAC and MTU.

    A failure restores the container and the backup. If nothing is configured, nothing is opened.
    """
    conf = tuning_conf.parse(args, net_conf)
    allowlist.require(conf.sysctls)
    prev_result = net_conf.required_prev_result()
    if conf.is_idle:
        return prev_result
    with Netns(args.netns) as namespace, ExitStack() as stack, Undo() as undo:
        both_ends = _ends(stack, namespace, args, conf) if conf.attributes else None
        with sysctls.open_settings(namespace, conf.sysctls) as settings:
            if both_ends:
                _backup(args, net_conf, conf.data_dir).save(_current(both_ends, conf.attributes), undo)
            sysctls.write(namespace, settings, undo)
        if both_ends and both_ends.host_end:
            _change(both_ends.host_end, Attributes(mtu=conf.attributes.mtu), undo)
        if both_ends:
            _change(both_ends.container_end, conf.attributes, undo)
    return _result(prev_result, args, conf, net_conf.version, both_ends)


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Restores the interface from its backup and deletes the backup; a missing one is success.

    The configuration may be invalid. Failures to restore are only reported on stderr, since the interface is usually
    deleted with the container. So are the sysctls, which are not restored.
    """
    stored = _backup(args, net_conf, tuning_conf.lenient_data_dir(net_conf))
    saved = stored.load()
    if saved is None:
        stored.remove()  # drafts of a killed ADD
        return
    restored = False
    try:
        with (
            Netns(args.netns) as namespace,
            ends.open_ends(namespace, args.ifname, both=bool(saved.host_mtu)) as both_ends,
        ):
            if both_ends and (saved.life == both_ends.life or not (saved.life and both_ends.life)):
                _restore(both_ends, saved)
                restored = True
    except NetnsMissingError:
        pass
    stored.remove(shared=saved.is_shared and restored)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks sysctls and attributes; raises CniError(999)."""
    conf = tuning_conf.parse(args, net_conf)
    net_conf.required_prev_result()
    if conf.is_idle:
        return
    with Netns(args.netns) as namespace:
        sysctls.check(namespace, conf.sysctls)
        if not conf.attributes:
            return
        with ends.open_ends(namespace, args.ifname, both=_both(conf)) as both_ends:
            if both_ends is None:
                msg = f"Cannot find container link {args.ifname}"
                raise internal(msg, f"the network namespace is {namespace.path}; something else deleted it")
            both_ends.require_host_end(both=_both(conf))
            attributes.check(both_ends.container_end.link, conf.attributes)
            if both_ends.host_end:
                attributes.check(both_ends.host_end.link, Attributes(mtu=conf.attributes.mtu))


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Deletes the backups of attachments not in `valid`; backups that are not provably this network's stay."""
    data_dir = tuning_conf.lenient_data_dir(net_conf)
    if number := backup.gc(data_dir, net_conf.name, valid):
        print(
            f"tuning: GC leaves {number} backup(s) in {one_line(data_dir)} alone that name no network: "
            "the reference plugin made them, for this network or another",
            file=sys.stderr,
        )


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks whether ADD would succeed: configuration, the right to change links, dataDir. Raises CniError(50)."""
    prefix = "tuning does not work on this node: "
    try:
        conf = tuning_conf.parse(args, net_conf)
        allowlist.require(conf.sysctls)
        if conf.attributes:
            with Socket() as host:
                link.probe_set(host)
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, prefix + error.msg, error.details) from error
    if not conf.attributes:
        return  # a backup is then needed at most for a pod with a MAC of its conf, which STATUS does not know
    try:
        directories.check_writable(conf.data_dir)
    except OSError as error:
        msg = f"{prefix}cannot create files in {conf.data_dir}: {reason(error.errno or 0)}"
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, msg, 'set "dataDir" to a writable directory') from error


PLUGIN = Plugin(
    "tuning",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=tuning_conf.parse,
    keys=tuning_conf.KEYS,
)


def _backup(args: CmdArgs, net_conf: NetConf, data_dir: str) -> Backup:
    return Backup(data_dir, net_conf.name, args.container_id, args.ifname)


def _both(conf: TuningConf) -> bool:
    return conf.mtu_both_ends and conf.attributes.mtu is not None


def _ends(stack: ExitStack, namespace: Netns, args: CmdArgs, conf: TuningConf) -> Ends:
    """Opens the ends for the life of `stack`, and validates the configured attributes; raises CniError."""
    both_ends = stack.enter_context(ends.open_ends(namespace, args.ifname, both=_both(conf)))
    if both_ends is None:
        msg = f'failed to get "{args.ifname}": Link not found'
        raise internal(msg, f"the network namespace is {namespace.path}; list tuning after the plugin that creates it")
    both_ends.require_host_end(both=_both(conf))
    attributes.validate(both_ends.container_end.link, conf.attributes)
    if both_ends.host_end:
        attributes.validate(both_ends.host_end.link, conf.attributes)
    if not both_ends.life:
        msg = "the boot ID cannot be read, so DEL could not attribute the backup"
        raise internal(msg, "/proc/sys/kernel/random/boot_id must be readable")
    return both_ends


def _current(both_ends: Ends, configured: Attributes) -> SavedAttributes:
    host_mtu = both_ends.host_end.link.mtu if both_ends.host_end else None
    return SavedAttributes(attributes.of_link(both_ends.container_end.link).only(configured), host_mtu, both_ends.life)


def _change(end: End, configured: Attributes, undo: Undo) -> None:
    """Sets the configured attributes; the undo comes first, since the kernel may apply a refused message partly."""
    undo.push(f'restore "{end.link.name}"', partial(end.change, attributes.of_link(end.link).only(configured)))
    end.change(configured)


def _restore(both_ends: Ends, saved: SavedAttributes) -> None:
    _attempt(both_ends.container_end, saved.original)
    if both_ends.host_end and saved.host_mtu:
        _attempt(both_ends.host_end, Attributes(mtu=saved.host_mtu))


def _attempt(end: End, saved: Attributes) -> None:
    try:
        end.restore(saved)
    except CniError as error:
        print(one_line(f'tuning: cannot restore "{end.link.name}": {error}'), file=sys.stderr)


def _result(prev_result: Result, args: CmdArgs, conf: TuningConf, version: str, both_ends: Ends | None) -> Result:
    """Returns the result with the interface's MAC as configured, and since CNI 1.1.0 the MTU of changed interfaces."""
    mtu = conf.attributes.mtu if conf.attributes.mtu and at_least(version, "1.1.0") else 0
    named = [item for item in prev_result.interfaces if item.name == args.ifname and item.sandbox]
    in_container = [item for item in named if item.sandbox == args.netns] or named
    host_name = both_ends.host_end.link.name if both_ends and both_ends.host_end else ""

    def updated(item: Interface) -> Interface:
        if item in in_container:
            return replace(item, mac=conf.mac or item.mac, mtu=mtu or item.mtu)
        if host_name and item.name == host_name and not item.sandbox:
            return replace(item, mtu=mtu or item.mtu)
        return item

    return replace(prev_result, interfaces=tuple(updated(item) for item in prev_result.interfaces))
