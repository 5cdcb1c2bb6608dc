"""The verbs of dhcp: each is one call of the daemon, which leases the addresses (ipam/dhcp/daemon).

DEL succeeds without the daemon. It leaves a note, and the daemon releases the lease when it starts. An ADD that gets no
answer is followed by a release: the daemon may have leased an address, and answered too late.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code
from cni.result import Result
from cni.skel import Plugin
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp import rpc
from ipam.dhcp.record import LeaseRecord
from ipam.dhcp.rpc import ALLOCATE, CHECK, RELEASE, CallArgs, RpcError
from ipam.dhcp.store import LeaseStore
from process import record
from process.stderr import one_line
from process.undo import Undo
from process.values import replace

_ALLOCATE_LIMIT_S = 230.0  # more than the daemon's resendtimeout, less than the kubelet's limit of four minutes
_LIMIT_S = 20.0
_ROLLBACK_LIMIT_S = 8.0  # of a release after a failed ADD; both together are less than the kubelet's limit
_START = "start it: systemctl start cni-dhcp.socket, or run: /opt/cni/bin/dhcp daemon"
_NO_METHOD = "rpc: can't find method"  # the reference's daemon has no CHECK


class UnreachableError(CniError):
    """The daemon cannot be reached."""


class LeaseRefusedError(CniError):
    """The daemon refused the call: it has leased nothing."""


def cmd_add(args: CmdArgs, net_conf: NetConf) -> Result:
    """Returns the addresses, routes and DNS settings that the daemon leased for the interface.

    If the daemon does not answer in time, or the plugin is interrupted while it waits, the lease is released.
    """
    conf = dhcp_conf.parse(net_conf, args.args)
    if not record.allows_change("ask the DHCP daemon for a lease"):
        return Result()
    with Undo() as undo:
        undo.push("release the lease", partial(_release, args, net_conf, _ROLLBACK_LIMIT_S))
        try:
            return _call(conf.socket_path, ALLOCATE, args, _ALLOCATE_LIMIT_S)
        except (LeaseRefusedError, UnreachableError):
            undo.clear()
            raise


def cmd_del(args: CmdArgs, net_conf: NetConf) -> None:
    """Releases the lease; if the daemon cannot be reached, leaves a note for its next start."""
    if record.allows_change("ask the DHCP daemon to release the lease"):
        _release(args, net_conf)


def cmd_check(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks that the daemon maintains the lease; raises CniError(999). Acquires no lease."""
    path = dhcp_conf.parse(net_conf, args.args).socket_path
    try:
        _call(path, CHECK, args, _LIMIT_S)
    except CniError as error:
        if _NO_METHOD not in error.msg:
            raise
        _call(path, ALLOCATE, args, _LIMIT_S)  # as the reference plugin does


def cmd_status(args: CmdArgs, net_conf: NetConf) -> None:
    """Checks the configuration, and that the daemon answers; raises CniError(50)."""
    try:
        conf = dhcp_conf.parse(net_conf, "")
        _call(conf.socket_path, CHECK, args, _LIMIT_S)
    except UnreachableError as error:
        raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error
    except CniError as error:
        if error.code != Code.INTERNAL:  # the daemon's answer, that there is no such lease, is what was expected
            raise CniError(Code.PLUGIN_NOT_AVAILABLE, error.msg, error.details) from error


def cmd_gc(args: CmdArgs, net_conf: NetConf, valid: frozenset[Attachment]) -> None:
    """Releases the leases of this network whose interfaces are not in `valid`.

    A file that cannot be read stays, and is reported: its lease may be in use. DEL of its pod deletes it.
    """
    for lease in LeaseStore(dhcp_conf.data_dir(net_conf)).read_all(net_conf.name):
        if not isinstance(lease, LeaseRecord):
            _report(f"cannot read the lease in {lease.path}: {lease.problem}; the file stays until its pod is deleted")
            continue
        owner = lease.owner
        if Attachment(owner.container_id, owner.ifname) in valid:
            continue
        if record.allows_change(f"release the lease of {owner.name}"):
            _release(replace(args, container_id=owner.container_id, ifname=owner.ifname), net_conf)


def _release(args: CmdArgs, net_conf: NetConf, limit_s: float = _LIMIT_S) -> None:
    """Asks the daemon to release a lease; without a daemon leaves a note. Raises CniError(5) if it can do neither."""
    socket_path, data_dir = dhcp_conf.paths_for_release(net_conf)
    release = partial(_call, socket_path, RELEASE, args, limit_s)
    try:
        release()
    except UnreachableError as unreachable:
        try:
            is_noted = LeaseStore(data_dir).note_release(net_conf.name, args.container_id, args.ifname)
        except OSError as error:
            msg = f"{unreachable.msg}; cannot note the release: {error.strerror}"
            raise CniError(Code.IO_FAILURE, msg, unreachable.details) from error
        # A daemon that started meanwhile may have read the leases before the note was there.
        if not is_noted or not _succeeds(release):
            then = "the daemon will release the lease when it starts" if is_noted else "there is no lease to release"
            _report(f"{unreachable.msg}; {then}")


def _report(text: str) -> None:
    print(one_line(f"podwire: {text}"), file=sys.stderr)


def _succeeds(release: Callable[[], object]) -> bool:
    try:
        release()
    except UnreachableError:
        return False
    return True


def _call(path: str, method: str, args: CmdArgs, limit_s: float) -> Result:
    """Calls the daemon; raises UnreachableError, RefusedError with its error, CniError(11) if it does not answer."""
    call_args = CallArgs(
        container_id=args.container_id,
        netns=os.path.abspath(args.netns) if args.netns else "",
        ifname=args.ifname,
        args=args.args,
        path=os.pathsep.join(args.path),
        stdin=args.stdin,
    )
    try:
        return rpc.call(path, method, call_args, limit_s=limit_s)
    except RpcError as error:
        msg = f"error calling {method}: {error}"
        raise LeaseRefusedError(Code.INTERNAL, msg, "the daemon's log has the details") from error
    except TimeoutError as error:
        msg = f"error calling {method}: the DHCP daemon did not answer within {limit_s:.0f} s, try again later"
        raise CniError(Code.TRY_AGAIN_LATER, msg, f"its socket is {path}") from error
    except (ConnectionAbortedError, ConnectionResetError, BrokenPipeError) as error:
        msg = f"error calling {method}: the DHCP daemon ended during the call, try again later"
        raise CniError(Code.TRY_AGAIN_LATER, msg, _START) from error
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        msg = f"error dialing DHCP daemon: dial unix {path}: connect: {reason}"
        raise UnreachableError(Code.INTERNAL, msg, _START) from error


PLUGIN = Plugin(
    "dhcp",
    cmd_add=cmd_add,
    cmd_del=cmd_del,
    cmd_check=cmd_check,
    cmd_gc=cmd_gc,
    cmd_status=cmd_status,
    parse=lambda args, net_conf: dhcp_conf.parse(net_conf, args.args),
    keys=dhcp_conf.KEYS,
)
