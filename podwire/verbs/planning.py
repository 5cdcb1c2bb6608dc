"""Dry runs of DEL and GC: podwire's plugins run in this process and record each change instead of making it.

Other vendors' plugins are never run, since they would make their changes.
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


class PreparedVerb(NamedTuple):
    """A verb of one of our plugins, ready to be served in this process."""

    plugin: Plugin
    args: CmdArgs
    conf: NetConf

    def serve(self) -> object:
        """Runs the verb; returns ADD's result as JSON, else None."""
        result = skel.run_verb(self.plugin, self.args, self.conf)
        return result and result.to_json(self.conf.cni_version)


def podwire_plugin(kind: str, path: tuple[str, ...], plugins: Mapping[str, Plugin]) -> Plugin | None:
    """Returns the plugin in the file named `kind` if that file is this program; raises CniError(7) if there is none.

    Run from source, this process is Python: there every plugin of podwire matches.
    """
    program = delegate.find(kind, path)
    return plugins.get(kind) if _is_ours(program) else None


def _is_ours(program: str) -> bool:
    """Returns whether a file is this executable or a copy of it."""
    itself = os.readlink(_ITSELF)
    if os.path.basename(itself).startswith("python"):
        return True
    try:
        return os.path.samestat(os.stat(program), os.stat(_ITSELF)) or filecmp.cmp(program, _ITSELF, shallow=False)
    except OSError:
        return False


def prepare(call: Call, plugin: Plugin, plugins: Mapping[str, Plugin]) -> PreparedVerb:
    """Parses a call's environment and stdin as skel does; raises CniError."""
    args = replace(cni_args.from_env(call.env), stdin=call.stdin, delegates=plugins)
    conf = cni_conf.parse(call.stdin)
    delegated = conf.ipam_type
    return PreparedVerb(
        plugin,
        replace(args, in_process=bool(delegated) and podwire_plugin(delegated, call.path, plugins) is not None),
        conf,
    )


def run_recorded(call: Call, plugin: Plugin, plugins: Mapping[str, Plugin], *, planned: bool) -> Step:
    """Runs a call in this process and records its changes; with `planned` they are not made."""
    with record.recording(dry_run=planned) as recorded:
        return timed(call, lambda: prepare(call, plugin, plugins).serve(), lambda: tuple(recorded.changes))


def planning(plugins: Mapping[str, Plugin]) -> Serve:
    """Returns a function that runs a call without making its changes; those of other vendors' plugins are unknown."""

    def serve(call: Call) -> Step:
        try:
            plugin = podwire_plugin(call.kind, call.path, plugins)
        except CniError as error:
            return Step(call.kind, call.command, 0.0, error=error)
        return run_recorded(call, plugin, plugins, planned=True) if plugin else Step(call.kind, call.command, 0.0)

    return serve
