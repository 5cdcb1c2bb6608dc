"""Detects whether a plugin's file is podwire's.

The line that the file prints when it is run without CNI_COMMAND decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni import delegate
from cni.errors import CniError
from cni.fields import Fields
from process import child

_LIMIT_S = 10.0
_MARK = "+podwire."  # in the version of our plugins (podwire.main)


def about(program: str, env: Mapping[str, str]) -> str:
    """Runs a plugin for the line that it prints about itself, "" for none; raises OSError, CniError."""
    silent = {key: value for key, value in env.items() if not key.startswith("CNI_")}
    (outcome,) = child.run(child.ChildCommand((program,), silent, capture_stderr=True), limit_s=_LIMIT_S)
    return next(iter(outcome.stderr.decode("utf-8", "replace").splitlines()), "")


def is_podwire(line: str) -> bool:
    """Returns whether a plugin that prints `line` about itself is podwire's."""
    return _MARK in line


def is_all_podwire(plugin: Mapping[str, object], path: tuple[str, ...], env: Mapping[str, str]) -> bool:
    """Returns whether a plugin of a list and its IPAM plugin are podwire's files; False for files that do not start."""
    try:
        ipam = Fields(plugin).section("ipam").string("type")
        names = filter(None, (str(plugin.get("type")), ipam))
        return all(is_podwire(about(delegate.find(name, path), env)) for name in names)
    except (OSError, CniError):
        return False
