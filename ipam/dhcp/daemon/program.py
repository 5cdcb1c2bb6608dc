"""The program `dhcp daemon`: its flags, its socket, its end. The flags are the reference's.

The socket comes from systemd (LISTEN_FDS) or is created; a socket file on which no process listens is replaced.
SIGTERM and SIGINT end the program; leases stay on the disk, and the next start continues to maintain them.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import socket
import stat
import sys
from contextlib import suppress

from cni.errors import CniError
from ipam.dhcp.client4 import Timing
from ipam.dhcp.conf import DATA_DIR, SOCKET_PATH
from ipam.dhcp.daemon.binding import DaemonSettings
from ipam.dhcp.daemon.connections import ConnectionListener
from ipam.dhcp.daemon.service import Service
from ipam.dhcp.store import LeaseStore
from kernel.boot import get_boot_id
from process import directories, files, signals
from process.loop import Loop
from process.signals import Terminated

_FIRST_PASSED_FD = 3  # SD_LISTEN_FDS_START (sd_listen_fds(3))
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MACHINE_ID_BYTES = 64
_BACKLOG = 1024


class StartError(Exception):
    """A reason why the daemon cannot start."""


def run(arguments: list[str]) -> int:
    """Runs the daemon until SIGTERM or SIGINT; returns the exit status."""
    options = _parse(arguments)
    try:
        signals.block()
        _serve(options)
    except Terminated:
        return 0
    except (StartError, CniError, OSError) as error:
        print(f"dhcp daemon: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(options: argparse.Namespace) -> None:
    prefix: str = options.hostprefix
    path = prefix + options.socketpath
    settings = DaemonSettings(
        store=LeaseStore(options.datadir),
        boot_id=get_boot_id(),
        machine_id=_machine_id(prefix),
        host_prefix=prefix,
        broadcast=options.broadcast,
        timing=Timing(options.timeout, options.resendmax, options.resendtimeout),
    )
    listening, has_pidfile = _listen(path), False
    try:
        if not settings.store.lock():
            raise StartError(f"another daemon maintains the leases in {options.datadir}")
        has_pidfile = _write_pid(options.pidfile)
        loop = Loop()
        service = Service(settings, loop)
        # The socket listens before the leases are read: a DEL that could not connect has left its note by then.
        service.load()
        ConnectionListener(listening, loop, service)
        loop.run()
    finally:
        if not _passed_descriptors():
            _unlink(path)
        if has_pidfile:
            _unlink(options.pidfile)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dhcp daemon",
        description="Acquires and renews the leases of the IPAM plugin dhcp.",
        allow_abbrev=False,
    )
    paths = (
        ("socketpath", SOCKET_PATH, "the socket for plugins"),
        ("pidfile", "", "a file for the process ID"),
        ("hostprefix", "", "the host's root directory, in a container"),
        ("datadir", DATA_DIR, "the lease files"),
    )
    for name, default, meaning in paths:
        parser.add_argument(f"-{name}", f"--{name}", default=default, metavar="PATH", help=meaning)
    durations = (
        ("timeout", Timing().answer_s, "how long to wait for an answer"),
        ("resendmax", Timing().retry_max_s, "the longest pause between two tries"),
        ("resendtimeout", Timing().total_s, "the time for all tries of an ADD"),
    )
    for name, seconds, meaning in durations:
        text = f"{meaning} (default {seconds:.0f}s)"
        parser.add_argument(f"-{name}", f"--{name}", default=seconds, type=_duration, metavar="DURATION", help=text)
    meaning = "ask servers to broadcast their answers"
    parser.add_argument("-broadcast", "--broadcast", nargs="?", const=True, default=False, type=_boolean, help=meaning)
    return parser.parse_args(arguments)


def _duration(text: str) -> float:
    """Returns the seconds of a duration in Go's form, such as 1m30s."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, such as 10s or 1m30s")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def _boolean(text: str) -> bool:
    if text.lower() not in ("1", "t", "true", "0", "f", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() in ("1", "t", "true")


def _listen(path: str) -> socket.socket:
    """Returns the listening socket; raises StartError with the reference's texts, OSError."""
    passed = _passed_descriptors()
    if passed > 1:
        raise StartError(f"Error getting listener: Too many ({passed}) FDs passed through socket activation")
    if passed:
        return socket.socket(fileno=_FIRST_PASSED_FD)
    directories.create(os.path.dirname(path) or ".", 0o700)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if _is_socket(path) and not _is_served(path):
            _unlink(path)
        listening.bind(path)
        os.chmod(path, 0o660)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        reason = (error.strerror or str(error)).lower()  # a path that is too long has no errno
        raise StartError(f"Error getting listener: listen unix {path}: bind: {reason}") from error
    return listening


def _passed_descriptors() -> int:
    """Returns how many sockets systemd passed to this process."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return 0
    number = os.environ.get("LISTEN_FDS", "")
    return int(number) if number.isascii() and number.isdigit() else 0


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _is_served(path: str) -> bool:
    """Returns whether a process listens on a socket file; a killed daemon leaves its file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno != errno.ECONNREFUSED
    return True


def _write_pid(path: str) -> bool:
    """Writes the process ID to a file unless `path` is ""; returns whether it did. Raises StartError, OSError."""
    if not path:
        return False
    if not os.path.isabs(path):
        raise StartError(f'Error writing pidfile "{path}": path not absolute')
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        directories.write(fd, str(os.getpid()).encode())
    finally:
        os.close(fd)
    return True


def _machine_id(prefix: str) -> str:
    try:
        return files.read(f"{prefix}/etc/machine-id", _MACHINE_ID_BYTES).decode("ascii", "replace").strip()
    except (OSError, ValueError):
        return ""


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
