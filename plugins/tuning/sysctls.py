"""Sysctls of the container's network namespace.

All sysctls are opened, in the order of the configuration, before the first one is written. If a later step fails, the
previous values are restored.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from cni.errors import CniError, internal
from kernel import sysctl
from kernel.errors import reason
from kernel.netns import Netns, entered
from kernel.sysctl import Setting
from plugins.tuning.conf import Sysctl
from process.undo import Undo

_ROOT = "/proc/sys/net/"
_MAX_SHOWN = 60


@contextmanager
def open_settings(namespace: Netns, configured: tuple[Sysctl, ...]) -> Iterator[list[tuple[Sysctl, Setting]]]:
    """Opens the settings and runs the block in the namespace, which is not entered if there are none.

    Four system calls per setting: open, read, write, close. Raises CniError(999).
    """
    if not configured:
        yield []
        return
    with entered(namespace), ExitStack() as stack:
        settings = []
        for item in configured:
            if setting := _open(item):
                settings.append((item, stack.enter_context(setting)))
        yield settings


def write(namespace: Netns, settings: list[tuple[Sysctl, Setting]], undo: Undo) -> None:
    """Writes the values; raises CniError(999) with the reference plugin's text."""
    for item, setting in settings:
        if setting.value is not None:
            undo.push(f"set {item.name} back", partial(_restore, namespace, item.name, setting.value))
        try:
            setting.write(item.value)
        except OSError as error:
            was = f"; it was {_short(setting.value)}" if setting.value else ""
            raise _error("write", item, error, f"the kernel does not take {_short(item.value)}{was}") from error


def check(namespace: Netns, configured: tuple[Sysctl, ...]) -> None:
    """Checks the values, word by word, since the kernel separates some by tabs; raises CniError(999)."""
    if not configured:
        return
    with entered(namespace):
        for item in configured:
            try:
                current = sysctl.get(item.name)
            except PermissionError:
                continue  # a write-only setting
            except OSError as error:
                raise _error("open", item, error) from error
            if current.split() != item.value.split():
                msg = (
                    f"Error: Tuning configured value of {_ROOT}{item.name} is {item.value}, current value is {current}"
                )
                raise internal(msg, "set it back in the pod, or remove the container and create it again")


def _open(item: Sysctl) -> Setting | None:
    """Opens a setting for writing; returns None for a read-only one that already has the value."""
    try:
        return Setting(item.name)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES) and _has_value(item):
            return None
        raise _error("open", item, error) from error


def _has_value(item: Sysctl) -> bool:
    try:
        return sysctl.get(item.name).split() == item.value.split()
    except OSError:
        return False


def _restore(namespace: Netns, name: str, value: str) -> None:
    with entered(namespace), suppress(FileNotFoundError):  # it was deleted with its interface
        sysctl.write(name, value)


def _short(value: str) -> str:
    """Returns a value for a hint, truncated if it is long."""
    return f'"{value}"' if len(value) <= _MAX_SHOWN else f'"{value[:_MAX_SHOWN]}..."'


def _error(operation: str, item: Sysctl, error: OSError, hint: str = "") -> CniError:
    number = error.errno or 0
    missing = _explain_missing(item) if number == errno.ENOENT else ""
    return internal(
        f"{operation} {_ROOT}{item.name}: {reason(number)}",
        "; ".join(filter(None, (f'"{item.key}" of "sysctl"', missing or sysctl.hint(number) or hint))),
    )


def _explain_missing(item: Sysctl) -> str:
    """Returns the fix for a setting of an interface that does not exist, "" for any other setting.

    Runs in the namespace. All dots of a key separate, as in the reference plugin, also those in an interface's name.
    """
    parts = item.name.split("/")
    if len(parts) < 4 or parts[1] not in ("conf", "neigh"):
        return ""
    version, group, *interface, parameter = parts
    if len(interface) == 1 and sysctl.is_directory(f"{version}/{group}/{interface[0]}"):
        return ""
    key = f'"net.{version}.{group}.IFNAME.{parameter}"'
    if len(interface) > 1:
        return (
            f'dots and slashes separate parts, so the interface is read as "{"/".join(interface)}"; an interface with '
            f"a dot in its name can be named by IFNAME only, if it is the attachment's: {key}"
        )
    return f'the container has no interface "{interface[0]}"; for the interface of the attachment write {key}'
