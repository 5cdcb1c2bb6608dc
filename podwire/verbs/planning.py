"""Dry runs of DEL and GC: podwire's plugins run in this process and record each change instead of making it.

Other vendors' plugins are never run, since they would make their changes.
"""

from __future__ import annotations

import filecmp
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from cni import args as cni_args
from cni import conf as cni_conf
from cni import delegate, skel
from cni.errors import CniError
from cni.skel import Plugin
from podwire.verbs.invoke import PluginCall, PluginOutcome, Serve
from process import record

_ITSELF = "/proc/self/exe"


def planning(plugins: Mapping[str, Plugin]) -> Serve:
    """Returns a function that runs a call without making its changes; those of other vendors' plugins are unknown."""
    return lambda call: serve(call, plugins, lambda _: PluginOutcome(call.kind, call.command, 0.0), planned=True)


def serve(call: PluginCall, plugins: Mapping[str, Plugin], serve_foreign: Serve, *, planned: bool) -> PluginOutcome:
    """Runs a call of podwire's plugins in this process and records its changes; with `planned` they are not made.

    `serve_foreign` runs those of other vendors' plugins.
    """
    try:
        plugin = _podwire_plugin(call.kind, call.path, plugins)
    except CniError as error:
        return PluginOutcome(call.kind, call.command, 0.0, error=error)
    if plugin is None:
        return serve_foreign(call)
    start_ns = time.perf_counter_ns()
    result, failed = None, None
    with record.recording(dry_run=planned) as recorded:
        try:
            result = _run(call, plugin, plugins)
        except Exception as failure:
            failed = skel.as_cni_error(failure)
    ms = (time.perf_counter_ns() - start_ns) / 1e6
    return PluginOutcome(call.kind, call.command, ms, result, failed, changes=tuple(recorded.changes))


def _run(call: PluginCall, plugin: Plugin, plugins: Mapping[str, Plugin]) -> object:
    """Runs a verb as skel does; returns ADD's result as JSON, else None."""
    conf = cni_conf.parse(call.stdin)
    delegated = conf.ipam_type
    in_process = bool(delegated) and _podwire_plugin(delegated, call.path, plugins) is not None
    args = replace(cni_args.from_env(call.env), stdin=call.stdin, delegates=plugins, in_process=in_process)
    result = skel.run_verb(plugin, args, conf)
    return result and result.to_json(conf.cni_version)


def _podwire_plugin(kind: str, path: tuple[str, ...], plugins: Mapping[str, Plugin]) -> Plugin | None:
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
