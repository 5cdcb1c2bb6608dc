"""The entry point of every plugin: reads an invocation, runs the verb, writes one JSON document.

Only this module reads stdin, writes stdout and decides the exit status; both are arguments.
The order of the checks is the reference's (pkg/skel), since runtimes and their tests observe it; but the plugin's own
namespace is refused before the verb runs, not after it.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import RawIOBase
from typing import TYPE_CHECKING, BinaryIO

from cni import args as cni_args
from cni import conf as cni_conf
from cni import gojson, versions
from cni.address import Cidr
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code, from_os_error, internal
from cni.keys import Key
from cni.result import Result
from cni.verb_log import VerbLog
from process import signals
from process.signals import Terminated, unblocked
from process.stderr import one_line
from process.undo import Undo
from process.values import dataclass, replace

if TYPE_CHECKING:
    Stream = BinaryIO | RawIOBase  # of the latter, `read` and `write` return None where they would block

Verb = Callable[[CmdArgs, NetConf], None]
Collect = Callable[[CmdArgs, NetConf, frozenset[Attachment]], None]

_CHUNK_BYTES = 64 << 10
_POLL_MS = 100
# CPython's message after a MemoryError if there was no memory to record its traceback.
_LOST = "error return without exception set"
_MIXED_UP = "plugin's netns and netns from CNI_NETNS should not be the same"
_USE_A_PODS = (
    "set CNI_NETNS to the pod's network namespace; do not set CNI_NETNS_OVERRIDE on a host, where ADD would change "
    "the host's own interfaces and routes"
)


@dataclass(frozen=True)
class Plugin:
    """A plugin: its name, its verbs, and the specification versions it supports.

    A verb gets the invocation and the configuration, GC also the attachments to keep; it raises CniError for errors
    that an operator can fix. An absent verb succeeds without doing anything, as in the reference.

    `cmd_repair` is not a verb of the specification: with an attachment's configuration and its cached result
    (prevResult) it restores the packet filter rules that a flush removed, and nothing else, for `podwire repair`.
    Neither is `cmd_reclaim`: it restores devices that the kernel moved to the host when it deleted the namespace.
    `cmd_remove_rules` removes these rules again if the container has ended meanwhile, but not the interface and its
    addresses. `parse` reads and refuses a configuration as ADD does, and changes nothing; `keys` are the keys that it
    reads besides the common ones (keys.COMMON). `gateways`, of an IPAM plugin, yields for each address that ADD would
    allocate the gateways of the ranges that it may come from, with the prefixes of their subnets.
    """

    name: str
    cmd_add: Callable[[CmdArgs, NetConf], Result]
    cmd_del: Verb
    cmd_check: Verb
    cmd_gc: Collect | None = None
    cmd_status: Verb | None = None
    cmd_repair: Verb | None = None
    cmd_reclaim: Verb | None = None
    cmd_remove_rules: Verb | None = None
    parse: Callable[[CmdArgs, NetConf], object] | None = None
    keys: tuple[Key, ...] = ()
    gateways: Callable[[NetConf], Iterable[Iterable[Cidr]]] | None = None
    versions: tuple[str, ...] = versions.SUPPORTED

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that a runtime may use with this plugin: the keys of its `runtimeConfig`."""
        return tuple(key.name for section in self.keys if section.name == "runtimeConfig" for key in section.keys)


def run(
    plugin: Plugin,
    env: Mapping[str, str],
    stdin: Stream,
    stdout: Stream,
    *,
    about: str,
    delegates: Mapping[str, Plugin] | None = None,
    release: str = "",
) -> int:
    """Runs one invocation of `plugin` and returns the exit status, 0 or 1.

    `about` is the line printed on stderr when no command is set; installers probe for it. `delegates` are the plugins
    that may be run inside this process instead of a second one, `release` is the version of podwire that the log names.
    Whatever happens, a failure is one JSON error object on `stdout` (specification, section "Error").
    """
    version = versions.CURRENT
    verb_log = VerbLog(plugin.name, release, env)
    try:
        if not env.get("CNI_COMMAND"):
            print(about, file=sys.stderr)
            print("CNI protocol versions supported: " + ", ".join(plugin.versions), file=sys.stderr)
            return 0
        args = cni_args.from_env(env)
        if args.command == "VERSION":
            _write(stdout, gojson.dumps(_version_info(plugin)) + "\n")
            return 0
        args = replace(args, stdin=_read(stdin), delegates=delegates or {})
        conf = cni_conf.parse(args.stdin)
        if conf.version in versions.SUPPORTED:
            version = conf.version
        with verb_log.recording(conf):
            result = run_verb(plugin, args, conf)
            if result is not None:
                _write_result(result, plugin, args, conf, stdout)
    except (Exception, Terminated) as error:
        failure = as_cni_error(error)
        status = write_error(failure, stdout, version)
        verb_log.write(failure=failure)
        return status
    verb_log.write(result)
    return 0


def block_signals() -> None:
    """Blocks SIGTERM and SIGINT except while the process waits (process.signals); raises CniError(5) on failure."""
    try:
        signals.block()
    except OSError as error:
        raise CniError(
            Code.IO_FAILURE,
            f"cannot hold back SIGTERM and SIGINT: {error.strerror}",
            "the seccomp filter of the process that starts podwire must allow rt_sigprocmask and rt_sigaction",
        ) from error


def write_error(failure: CniError, stdout: Stream, version: str = versions.CURRENT) -> int:
    """Writes the error object of `failure`, to stderr if `stdout` cannot be written; returns the exit status."""
    try:
        if isinstance(failure, _UnwritableError):
            raise failure
        _write(stdout, gojson.dumps(failure.to_json(version), indent=4))
    except _UnwritableError:
        print(one_line(f"podwire: {failure}"), file=sys.stderr)
    return 1


class _UnwritableError(CniError):
    """Stdout cannot be written."""


def _write_result(result: Result, plugin: Plugin, args: CmdArgs, conf: NetConf, stdout: Stream) -> None:
    """Writes ADD's result; if that fails, rolls the attachment back, since the runtime sees a failed ADD."""
    try:
        is_passed_on = conf.fields.has("prevResult")
        _write(stdout, gojson.dumps(result.to_json(conf.cni_version, is_passed_on=is_passed_on), indent=4))
    except CniError:
        with Undo() as undo:
            undo.push("delete the attachment", partial(plugin.cmd_del, replace(args, command="DEL"), conf))
            raise


def run_verb(plugin: Plugin, args: CmdArgs, conf: NetConf) -> Result | None:
    """Runs the verb in `args` if `plugin` supports it in this CNI version; returns ADD's result.

    A delegate inside this process starts here, too, so it passes the same checks as one in another process.
    """
    if args.command not in cni_args.COMMANDS:
        raise CniError(Code.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND: {args.command}")
    _check_versions(plugin, args.command, conf.version)
    if args.command == "ADD":
        _refuse_same_netns(args)
        return plugin.cmd_add(args, conf)
    if args.command == "DEL":
        _refuse_same_netns(args)
        plugin.cmd_del(args, conf)
    elif args.command == "CHECK":
        plugin.cmd_check(args, conf)
    elif args.command == "GC" and plugin.cmd_gc:
        _collect(plugin.cmd_gc, plugin.name, args, conf)
    elif args.command == "STATUS" and plugin.cmd_status:
        plugin.cmd_status(args, conf)
    return None


def _collect(gc: Collect, name: str, args: CmdArgs, conf: NetConf) -> None:
    """Runs GC; without the list of valid attachments nothing may be removed, not even by a delegate."""
    valid = conf.valid_attachments()
    if valid is None:
        print(f"{name}: GC without cni.dev/valid-attachments removes nothing", file=sys.stderr)
    else:
        gc(args, conf, valid)


def as_cni_error(error: BaseException) -> CniError:
    """Returns `error` as a CNI error: itself, code 5 for a system call's, else 999; SIGTERM is "try again later"."""
    if isinstance(error, CniError):
        return error
    if isinstance(error, Terminated):
        return CniError(
            Code.TRY_AGAIN_LATER,
            "interrupted by a signal",
            "an interrupted ADD has been undone; an interrupted DEL is to be repeated",
        )
    if isinstance(error, MemoryError) or (isinstance(error, SystemError) and str(error) == _LOST):
        return internal("out of memory", "the process may be limited too narrowly (ulimit -v, cgroup)")
    if isinstance(error, OSError) and error.strerror:
        return from_os_error(error)
    return internal(f"{type(error).__name__}: {error}", "this is a defect of podwire; please report it")


def _version_info(plugin: Plugin) -> dict[str, object]:
    return {"cniVersion": versions.CURRENT, "supportedVersions": list(plugin.versions)}


def _read(stdin: Stream) -> bytes:
    """Returns the content of stdin; if it exceeds gojson.MAX_BYTES, enough of it for the parser to refuse it."""
    data = bytearray()
    try:
        with unblocked():
            while len(data) <= gojson.MAX_BYTES:
                _wait_until_ready(stdin, select.POLLIN)
                chunk = stdin.read(_CHUNK_BYTES)
                if chunk == b"":
                    break
                data += chunk or b""  # None: another process that shares the stream was faster
            return bytes(data)
    except (OSError, ValueError) as error:
        raise CniError(Code.IO_FAILURE, f"error reading from stdin: {_reason(error)}") from error


def _wait_until_ready(stream: Stream, event: int) -> None:
    """Waits until a stream can be read (POLLIN) or written (POLLOUT); raises OSError, and Terminated if unblocked.

    A signal that arrives after Python's last check and before the system call does not interrupt the call, so each call
    is short (22 of 3,200 plugins that waited in read(2) ignored their SIGTERM). A non-blocking stream stays so: the
    process at its other end may share that setting.
    """
    ready = select.poll()
    ready.register(stream, event)
    while not ready.poll(_POLL_MS):
        pass


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _write(stdout: Stream, text: str) -> None:
    """Writes the one document; lone surrogates (from the environment) cannot be encoded and become "?"."""
    data = text.encode("utf-8", "replace")
    try:
        while data:
            written = stdout.write(data)  # an unbuffered stream may take a part
            if written is None:
                _wait_until_ready(stdout, select.POLLOUT)
            else:
                data = data[written:]
        stdout.flush()
    except (OSError, ValueError) as error:
        raise _UnwritableError(Code.IO_FAILURE, f"error writing to stdout: {_reason(error)}") from error


def _check_versions(plugin: Plugin, command: str, version: str) -> None:
    since = versions.SINCE.get(command)
    if since is not None:
        try:
            allowed = versions.at_least(version, since)
            known = version in plugin.versions or any(versions.at_least(item, version) for item in plugin.versions)
        except ValueError as error:
            raise CniError(Code.DECODING_FAILURE, f"cannot compare cniVersion: {error}") from None
        if not allowed:
            raise CniError(
                Code.INCOMPATIBLE_VERSION,
                f"config version does not allow {command}",
                f'the configuration has cniVersion "{version}", {command} came with {since}',
            )
        if not known:
            raise CniError(Code.INCOMPATIBLE_VERSION, f"plugin version does not allow {command}")
    if version not in plugin.versions:
        listed = " ".join(f'"{name}"' for name in plugin.versions)
        raise CniError(
            Code.INCOMPATIBLE_VERSION,
            "incompatible CNI versions",
            f'config is "{version}", plugin supports [{listed}]',
        )


def _refuse_same_netns(args: CmdArgs) -> None:
    """Refuses a CNI_NETNS that is this process's namespace: the verb would change the host (reference: code 8)."""
    if not args.netns or args.env.get("CNI_NETNS_OVERRIDE", "").lower() in ("1", "true"):
        return
    try:
        our_netns = os.stat("/proc/self/ns/net")
    except OSError as error:
        raise CniError(Code.INVALID_NETNS, f"get plugin's netns failed: /proc/self/ns/net: {error.strerror}") from error
    try:
        netns = os.stat(args.netns)
    except (OSError, ValueError):
        return  # the verb reports a path that cannot be opened
    if (our_netns.st_dev, our_netns.st_ino) == (netns.st_dev, netns.st_ino):
        raise CniError(Code.INVALID_NETNS, _MIXED_UP, _USE_A_PODS)
