"""The verbs of tuning.

One rule: nothing is changed before all that can be known to fail has been looked at, and DEL restores what a backup
says, whatever is configured.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial

from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code
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
from plugins.tuning.backup import Backup, Saved
from plugins.tuning.conf import TuningConf
from plugins.tuning.ends import End, Ends
from process import directories
from process.stderr import one_line
from process.undo import Undo
from process.values import replace


def cmd_add(args: CmdArgs, conf: NetConf) -> Result:
    """Sets sysctls and the interface's attributes; hands on the earlier plugins' result with the new MAC and MTU.

    A failure leaves the pod and the backup as they were; with nothing to set nothing is opened.
    """
    own = tuning_conf.parse(args, conf)
    allowlist.require(own.sysctls)
    prev_result = conf.required_prev_result()
    if own.is_idle:
        return prev_result
    with Netns(args.netns) as namespace, ExitStack() as stack, Undo() as undo:
        found = _ends(stack, namespace, args, own) if own.attributes else None
        with sysctls.opened(namespace, own.sysctls) as settings:
            if found:
                _backup(args, conf, own.data_dir).save(_present(found, own.attributes), undo)
            sysctls.write(namespace, settings, undo)
        if found and found.outside:
            _change(found.outside, Attributes(mtu=own.attributes.mtu), undo)
        if found:
            _change(found.inside, own.attributes, undo)
    return _told(prev_result, args, own, conf.version, found)


def cmd_del(args: CmdArgs, conf: NetConf) -> None:
    """Restores the interface by its backup and removes that; gone is success, and the configuration may be broken.

    What cannot be restored is told on stderr: the pod goes, and its interface mostly with it. Sysctls go with the pod.
    """
    own = _backup(args, conf, tuning_conf.lenient_data_dir(conf))
    saved = own.load()
    if saved is None:
        own.remove()  # what a killed ADD may have left
        return
    restored = False
    try:
        with Netns(args.netns) as namespace, ends.opened(namespace, args.ifname, both=bool(saved.host_mtu)) as found:
            if found and (saved.life == found.life or not (saved.life and found.life)):
                _restore(found, saved)
                restored = True
    except NetnsMissingError:
        pass
    own.remove(shared=saved.is_shared and restored)


def cmd_check(args: CmdArgs, conf: NetConf) -> None:
    """Checks that all is as it was asked for; raises CniError(999)."""
    own = tuning_conf.parse(args, conf)
    conf.required_prev_result()
    if own.is_idle:
        return
    with Netns(args.netns) as namespace:
        sysctls.check(namespace, own.sysctls)
        if not own.attributes:
            return
        with ends.opened(namespace, args.ifname, both=_both(own)) as found:
            if found is None:
                msg = f"Cannot find container link {args.ifname}"
                raise CniError(
                    Code.INTERNAL, msg, f"the network namespace is {namespace.path}; something else deleted it"
                )
            found.required(both=_both(own))
            attributes.check(found.inside.link, own.attributes)
            if found.outside:
                attributes.check(found.outside.link, Attributes(mtu=own.attributes.mtu))


def cmd_gc(args: CmdArgs, conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Removes the backups of what is no listed attachment; what cannot be proven to be this network's stays."""
    data_dir = tuning_conf.lenient_data_dir(conf)
    if number := backup.collect(data_dir, conf.name, valid):
        print(
            f"tuning: GC leaves {number} backup(s) in {one_line(data_dir)} alone that name no network: "
            "the reference plugin made them, for this network or another",
            file=sys.stderr,
        )


def cmd_status(args: CmdArgs, conf: NetConf) -> None:
    """Tells whether ADD could be served: configuration, the right to change links, dataDir. Raises CniError(50)."""
    unserved = "tuning cannot be served: "
    try:
        own = tuning_conf.parse(args, conf)
        allowlist.require(own.sysctls)
        if own.attributes:
            with Socket() as host:
                link.probe_set(host)
    except CniError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, unserved + error.msg, error.details) from error
    if not own.attributes:
        return  # a backup is then needed at most for a pod with a MAC of its own, which STATUS does not know
    try:
        directories.check_writable(own.data_dir)
    except OSError as error:
        msg = f"{unserved}no file can be made in {own.data_dir}: {reason(error.errno or 0)}"
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, msg, '"dataDir" must be a directory that can be written') from error


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


def _backup(args: CmdArgs, conf: NetConf, data_dir: str) -> Backup:
    return Backup(data_dir, conf.name, args.container_id, args.ifname)


def _both(own: TuningConf) -> bool:
    return own.mtu_both_ends and own.attributes.mtu is not None


def _ends(stack: ExitStack, namespace: Netns, args: CmdArgs, own: TuningConf) -> Ends:
    """Returns the ends, open as long as `stack` is, when they take what is asked for; raises CniError."""
    found = stack.enter_context(ends.opened(namespace, args.ifname, both=_both(own)))
    if found is None:
        msg = f'failed to get "{args.ifname}": Link not found'
        raise CniError(
            Code.INTERNAL,
            msg,
            f"the network namespace is {namespace.path}; list tuning behind the plugin that makes it",
        )
    found.required(both=_both(own))
    attributes.validate(found.inside.link, own.attributes)
    if found.outside:
        attributes.validate(found.outside.link, own.attributes)
    if not found.life:
        msg = "which boot this is cannot be told, and so not later whose backup it is"
        raise CniError(Code.INTERNAL, msg, "/proc/sys/kernel/random/boot_id must be readable")
    return found


def _present(found: Ends, asked: Attributes) -> Saved:
    host_mtu = found.outside.link.mtu if found.outside else None
    return Saved(attributes.of(found.inside.link).only(asked), host_mtu, found.life)


def _change(end: End, asked: Attributes, undo: Undo) -> None:
    """Sets what is asked for; the kernel may refuse the message in the midst of it, so the undo comes first."""
    undo.push(f'restore "{end.link.name}"', partial(end.change, attributes.of(end.link).only(asked)))
    end.change(asked)


def _restore(found: Ends, saved: Saved) -> None:
    _attempt(found.inside, saved.original)
    if found.outside and saved.host_mtu:
        _attempt(found.outside, Attributes(mtu=saved.host_mtu))


def _attempt(end: End, saved: Attributes) -> None:
    try:
        end.restore(saved)
    except CniError as error:
        print(one_line(f'tuning: "{end.link.name}" is not as it was: {error}'), file=sys.stderr)


def _told(prev_result: Result, args: CmdArgs, own: TuningConf, version: str, found: Ends | None) -> Result:
    """Returns the result with the interface's MAC as it is written, and the MTU of what was changed since CNI 1.1.0."""
    mtu = own.attributes.mtu if own.attributes.mtu and at_least(version, "1.1.0") else 0
    named = [item for item in prev_result.interfaces if item.name == args.ifname and item.sandbox]
    inside = [item for item in named if item.sandbox == args.netns] or named
    outside = found.outside.link.name if found and found.outside else ""

    def tell(item: Interface) -> Interface:
        if item in inside:
            return replace(item, mac=own.mac or item.mac, mtu=mtu or item.mtu)
        if outside and item.name == outside and not item.sandbox:
            return replace(item, mtu=mtu or item.mtu)
        return item

    return replace(prev_result, interfaces=tuple(tell(item) for item in prev_result.interfaces))
