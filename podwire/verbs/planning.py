"""What DEL and GC would do: our own plugins run in this process, and note each change instead of making it.

One rule: another's plugin is never run, since it would do what it is asked; nobody can tell what that is.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cni import args as cni_args
from cni import conf as cni_conf
from cni import delegate, skel
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError
from cni.skel import Plugin
from podwire.verbs.invoke import Call, Serve, Step, timed
from process import record

_ITSELF = "/proc/self/exe"


class Inside(NamedTuple):
    """A verb of one of our plugins, ready to be served in this process."""

    plugin: Plugin
    args: CmdArgs
    conf: NetConf

    def serve(self) -> object:
        """Serves it; returns ADD's result as JSON, else None."""
        result = skel.run_verb(self.plugin, self.args, self.conf)
        return result and result.to_json(self.conf.cni_version)


def own(kind: str, path: tuple[str, ...], plugins: Mapping[str, Plugin]) -> Plugin | None:
    """Returns the plugin that the file named `kind` is, if it is this very program; raises CniError(7) for no file.

    Run from the sources this process is Python's, so there every plugin that we have counts.
    """
    program = delegate.find(kind, path)
    return plugins.get(kind) if _is_ours(program) else None


def _is_ours(program: str) -> bool:
    """Tells whether a file is this one, or a copy of it: what was installed from elsewhere."""
    itself = os.readlink(_ITSELF)
    if os.path.basename(itself).startswith("python"):
        return True
    try:
        return os.path.samestat(os.stat(program), os.stat(_ITSELF)) or filecmp.cmp(program, _ITSELF, shallow=False)
    except OSError:
        return False


def inside(call: Call, plugin: Plugin, plugins: Mapping[str, Plugin]) -> Inside:
    """Reads a call as skel reads a process's environment and input; raises CniError."""
    args = replace(cni_args.from_env(call.env), stdin=call.stdin, delegates=plugins)
    conf = cni_conf.parse(call.stdin)
    delegated = conf.ipam_type
    return Inside(
        plugin, replace(args, in_process=bool(delegated) and own(delegated, call.path, plugins) is not None), conf
    )


def noting(call: Call, plugin: Plugin, plugins: Mapping[str, Plugin], *, planned: bool) -> Step:
    """Serves a call inside this process and notes the changes, which are made unless they are only `planned`."""
    with record.recording(dry_run=planned) as noted:
        return timed(call, lambda: inside(call, plugin, plugins).serve(), lambda: tuple(noted.changes))


def planning(plugins: Mapping[str, Plugin]) -> Serve:
    """Returns what serves a call by noting what it would change; of another's plugin nothing is known."""

    def serve(call: Call) -> Step:
        try:
            plugin = own(call.kind, call.path, plugins)
        except CniError as error:
            return Step(call.kind, call.command, 0.0, error=error)
        return noting(call, plugin, plugins, planned=True) if plugin else Step(call.kind, call.command, 0.0)

    return serve
