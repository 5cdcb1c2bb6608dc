"""Delegation: one plugin runs another, usually the IPAM plugin (specification, section "Delegation").

The delegate is the first file of its name on CNI_PATH. If that file is this executable, the delegate
runs inside this process, which saves starting one; its result and errors are the same.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from cni import gojson, skel
from cni.address import Cidr
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, internal, invalid_conf
from cni.result import Result, from_json
from process import child, record
from process.child import ChildCommand, Outcome
from process.signals import unblocked
from process.undo import Undo
from process.values import replace

# A plugin file that is being overwritten cannot be started for a moment; libcni retries as often.
_BUSY_TRIES = 6
_BUSY_WAIT_S = 1.0
_CHANGING = ("ADD", "DEL", "GC")  # the changes of another program are unknown, and it has no dry run
_OURSELVES = "/proc/self/exe"


def add(kind: str, args: CmdArgs, conf: NetConf, undo: Undo) -> Result:
    """Runs ADD of the plugin named `kind` and returns its result; pushes the delegated DEL on `undo`.

    The delegate gets this process's environment with CNI_COMMAND=ADD, and the same stdin. Its error is raised as it is.
    A failed ADD is followed by a DEL as the specification requires, with two exceptions. podwire's own IPAM plugins run
    in this process and undo a failed or interrupted ADD themselves: host-local its reservations, dhcp its lease; static
    has no state. After "duplicate allocation" DEL would release the address of a running container. After SIGKILL
    no process can undo it here: dhcp's daemon ends a lease that no client waits for, and the runtime runs DEL.
    """
    program = _find_other(kind, args, conf)
    release = partial(_run, program, kind, replace(args, command="DEL"), conf)
    with Undo() as failed:
        if not _is_ourselves(program):
            failed.push(f"run DEL of {kind} after its failed ADD", release)
        try:
            result = _run(program, kind, replace(args, command="ADD"), conf)
        except CniError as error:
            if "duplicate allocation" in error.msg:  # the reference has no specific code for this
                failed.clear()
            raise
    undo.push(f"run DEL of {kind}", release)
    return result or Result()


def run(kind: str, args: CmdArgs, conf: NetConf) -> None:
    """Runs the verb in `args` (DEL, CHECK, GC or STATUS) of the plugin named `kind`; raises its error unchanged."""
    _run(_find_other(kind, args, conf), kind, args, conf)


def add_ipam(args: CmdArgs, conf: NetConf, undo: Undo) -> Result:
    """Runs ADD of the network's IPAM plugin as `add` does; raises CniError(999) if it returns no address."""
    ipam_result = add(conf.ipam_type, args, conf, undo)
    if not ipam_result.ips:
        msg = "IPAM plugin returned missing IP config"
        raise internal(msg, f"the plugin {conf.ipam_type} allocated no address")
    return ipam_result


def run_ipam(args: CmdArgs, conf: NetConf) -> None:
    """Runs the verb in `args` of the network's IPAM plugin, if there is one; raises its error unchanged."""
    if conf.ipam_type:
        run(conf.ipam_type, args, conf)


def release_lease(args: CmdArgs, conf: NetConf) -> None:
    """Runs DEL of the IPAM plugin dhcp, which releases its lease over the interface; call it before the deletion.

    `run_ipam` after the deletion repeats it, as for every IPAM plugin, and reports its error.
    """
    if conf.ipam_type == "dhcp":
        with suppress(CniError):
            run_ipam(args, conf)


def gateways(args: CmdArgs, conf: NetConf) -> Iterator[Iterable[Cidr]]:
    """Yields the gateways of the ranges of the network's IPAM plugin (skel.Plugin), none if that is another file.

    Raises the plugin's CniError for a wrong configuration, also during the iteration.
    """
    plugin = args.delegates.get(conf.ipam_type)
    if plugin and plugin.gateways and _is_ourselves(_find_other(conf.ipam_type, args, conf)):
        yield from plugin.gateways(conf)


def find(kind: str, path: tuple[str, ...]) -> str:
    """Returns the first regular file named `kind` in the directories of CNI_PATH; CniError(7) when there is none."""
    if not path:
        raise CniError(Code.INVALID_ENVIRONMENT, "no paths provided", "CNI_PATH names no directory")
    if not kind:
        raise invalid_conf("no plugin name provided", 'set "type" of the delegate')
    if "/" in kind or kind in (".", ".."):
        raise invalid_conf(f"invalid plugin name: {kind}", "a type is a file name, not a path")
    for directory in path:
        candidate = os.path.join(directory, kind)
        try:
            if stat.S_ISREG(os.stat(candidate).st_mode):
                return candidate
        except (OSError, ValueError):
            continue
    raise invalid_conf(
        f'failed to find plugin "{kind}" in path [{" ".join(path)}]', "install it there or correct the type"
    )


def _find_other(kind: str, args: CmdArgs, conf: NetConf) -> str:
    if kind and kind == conf.fields.string("type"):
        raise invalid_conf(f'"ipam.type" is the plugin\'s own: {kind}', 'use "host-local", for example')
    if args.in_process and kind in args.delegates:
        return _OURSELVES
    return find(kind, args.path)


def _is_ourselves(program: str) -> bool:
    """Returns whether `program` is the file that this process was started from, under any name."""
    try:
        return os.path.samestat(os.stat(program), os.stat(_OURSELVES))
    except OSError:
        return False


def _run(program: str, kind: str, args: CmdArgs, conf: NetConf) -> Result | None:
    plugin = args.delegates.get(kind)
    with record.timed_step(f"{kind} {args.command}"):
        if plugin is not None and _is_ourselves(program):
            try:
                result = skel.run_verb(plugin, args, conf)
            except Exception as error:
                raise skel.as_cni_error(error) from error
            return result and result.converted(conf.version)
        if args.command in _CHANGING and not record.allows_change(f"run {args.command} of {kind} ({program})"):
            return None
        output = _execute(program, args)
    if args.command != "ADD":
        return None
    try:
        body = gojson.loads(output)
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"plugin {kind} printed no result: {error}") from None
    # Like libcni: a delegate may answer in another version; without cniVersion it is the configuration's.
    version = body.get("cniVersion") if isinstance(body, dict) else None
    return from_json(body, version if isinstance(version, str) and version else conf.version)


def _execute(program: str, args: CmdArgs) -> bytes:
    """Runs another executable to its end and returns its stdout; it inherits stderr. Raises its error object."""
    command = ChildCommand((program,), {**args.env, "CNI_COMMAND": args.command}, args.stdin)
    try:
        outcome = _run_when_free(command)
    except TimeoutError as error:
        msg = f"{program} did not end {args.command} within {child.LIMIT_S:.0f} s and was killed, try again later"
        hint = 'it is the network\'s IPAM plugin ("ipam.type"): if it asks a server, see whether that answers'
        raise CniError(Code.TRY_AGAIN_LATER, msg, hint) from error
    except OSError as error:
        raise not_runnable(program, error) from error
    if outcome.status != 0:
        raise _failure(program, outcome)
    return outcome.stdout


def _run_when_free(command: ChildCommand) -> Outcome:
    for tries_left in reversed(range(_BUSY_TRIES)):
        try:
            (outcome,) = child.run(command, limit_s=child.LIMIT_S)
        except OSError as error:
            if error.errno != errno.ETXTBSY or not tries_left:
                raise
            with unblocked():
                select.select([], [], [], _BUSY_WAIT_S)
        else:
            return outcome
    raise AssertionError("unreachable")


def not_runnable(program: str, error: OSError) -> CniError:
    """Returns the error of a plugin's file that cannot be executed, with the command that repairs its permissions."""
    fix = ""
    if isinstance(error, PermissionError) and not os.access(program, os.X_OK):
        fix = f"run: chmod 0755 {program}"
    elif error.errno == errno.ENOEXEC:
        fix = "the file is damaged or for another processor: install the plugin again"
    return internal(f"cannot run {program}: {error.strerror}", fix)


def _failure(program: str, outcome: Outcome) -> CniError:
    """Returns the error object a failed delegate printed, or one that quotes its output (texts of libcni)."""
    try:
        body = gojson.loads(outcome.stdout)
    except ValueError:
        body = None
    if isinstance(body, dict) and _is_code(body.get("code")) and isinstance(msg := body.get("msg"), str) and msg:
        details = body.get("details")
        return CniError(body["code"], msg, details if isinstance(details, str) else "")
    if not outcome.stdout:
        return internal(f"netplugin failed with no error message: {outcome.ending}", f"the plugin is {program}")
    shown = outcome.stdout[:200].decode("utf-8", "replace")
    return internal(
        f"netplugin failed but error parsing its diagnostic message {shown!r}: {outcome.ending}",
        f"the plugin is {program}",
    )


def _is_code(value: object) -> bool:
    return isinstance(value, int) and 0 < value < 1 << 31
