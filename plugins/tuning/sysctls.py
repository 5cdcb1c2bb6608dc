"""Kernel parameters of the pod's network namespace.

One rule: all of them are opened before the first one is written, in the order of the configuration, and what a value
was goes back when a later step fails.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from cni.errors import CniError, Code
from kernel import sysctl
from kernel.errors import reason
from kernel.netns import Netns, entered
from kernel.sysctl import Setting
from plugins.tuning.conf import Sysctl
from process.undo import Undo

_ROOT = "/proc/sys/net/"
_TOLD = 60


@contextmanager
def opened(namespace: Netns, wanted: tuple[Sysctl, ...]) -> Iterator[list[tuple[Sysctl, Setting]]]:
    """Runs a block in the namespace with what there is to write, opened; without any the namespace is not entered.

    Four system calls a setting: open, read, write, close. Raises CniError(999).
    """
    if not wanted:
        yield []
        return
    with entered(namespace), ExitStack() as stack:
        found = []
        for item in wanted:
            if setting := _opened(item):
                found.append((item, stack.enter_context(setting)))
        yield found


def write(namespace: Netns, settings: list[tuple[Sysctl, Setting]], undo: Undo) -> None:
    """Writes the values; raises CniError(999) in the reference's words."""
    for item, setting in settings:
        if setting.value is not None:
            undo.push(f"set {item.name} back", partial(_put_back, namespace, item.name, setting.value))
        try:
            setting.write(item.value)
        except OSError as error:
            was = f"; it was {_short(setting.value)}" if setting.value else ""
            raise _failed("write", item, error, f"the kernel does not take {_short(item.value)}{was}") from error


def check(namespace: Netns, wanted: tuple[Sysctl, ...]) -> None:
    """Checks the values, as words: the kernel has tabs between those of some; raises CniError(999)."""
    if not wanted:
        return
    with entered(namespace):
        for item in wanted:
            try:
                now = sysctl.get(item.name)
            except PermissionError:
                continue  # it can only be written
            except OSError as error:
                raise _failed("open", item, error) from error
            if now.split() != item.value.split():
                msg = f"Error: Tuning configured value of {_ROOT}{item.name} is {item.value}, current value is {now}"
                raise CniError(
                    Code.INTERNAL, msg, "set it back in the pod, or remove the container and create it again"
                )


def _opened(item: Sysctl) -> Setting | None:
    """Returns a setting to be written, None for one that cannot be and has the value already."""
    try:
        return Setting(item.name)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES) and _is_so(item):
            return None
        raise _failed("open", item, error) from error


def _is_so(item: Sysctl) -> bool:
    try:
        return sysctl.get(item.name).split() == item.value.split()
    except OSError:
        return False


def _put_back(namespace: Netns, name: str, value: str) -> None:
    with entered(namespace), suppress(FileNotFoundError):  # it went with its interface
        sysctl.write(name, value)


def _short(value: str) -> str:
    """Returns a value for a hint: its beginning."""
    return f'"{value}"' if len(value) <= _TOLD else f'"{value[:_TOLD]}..."'


def _failed(doing: str, item: Sysctl, error: OSError, hint: str = "") -> CniError:
    number = error.errno or 0
    return CniError(
        Code.INTERNAL,
        f"{doing} {_ROOT}{item.name}: {reason(number)}",
        "; ".join(filter(None, (f'"{item.key}" of "sysctl"', sysctl.hint(number) or hint))),
    )
