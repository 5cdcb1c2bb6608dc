"""Runs the verbs of a whole network: its plugins in sequence, as libcni does (libcni/api.go).

The order is libcni's: ADD forwards, each plugin with the previous one's result; CHECK with the cached
result; DEL backwards. ADD and DEL stop at the first failure. Unlike cnitool, a failed ADD is followed by DEL, as in
every runtime, so that nothing remains; CHECK, GC and STATUS run every plugin.

Unlike libcni, GC and STATUS also run podwire's plugins in lists before CNI 1.1.0, and STATUS flannel's delegate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cni import versions
from cni.conf import Attachment
from cni.errors import CniError, Code
from cni.result import from_json
from podwire.flannel import is_flannel, resolve_delegate
from podwire.layers import Layer
from podwire.networks import Network
from podwire.verbs import origin, result_cache
from podwire.verbs.invoke import PluginCall, PluginOutcome, PodArgs, Serve, environment
from process import signals


@dataclass
class PluginRunner:
    """The means to run plugins: CNI_PATH, environment, a function that runs a call, one that reports its outcome.

    ADD writes to the cache of the first of `layers`, DEL deletes from all. Without `writes` no cache is changed. `done`
    has the steps run so far.
    """

    path: tuple[str, ...]
    env: Mapping[str, str]
    layers: tuple[Layer, ...]
    serve: Serve
    report: Callable[[PluginOutcome], None]
    writes: bool = True
    done: list[PluginOutcome] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether any plugin has failed so far."""
        return any(step.error for step in self.done)

    def run(
        self, command: str, pod: PodArgs, plugin: Mapping[str, object], request: Mapping[str, object]
    ) -> PluginOutcome:
        """Runs a verb of one plugin and reports its outcome."""
        env = environment(command, pod, self.env, self.path)
        call = PluginCall(str(plugin.get("type")), command, request, env, self.path)
        step = replace(self.serve(call), attachment=pod.attachment)
        self.done.append(step)
        self.report(step)
        return step


def add(runtime: PluginRunner, network: Network, pod: PodArgs) -> object:
    """Attaches a pod, writes the cache and returns the last result; after a failure detaches it and returns None.

    Raises CniError(5) if the cache cannot be written, and Terminated; the pod is detached in both cases.
    """
    result: object = None
    try:
        for plugin in network.plugins:
            request = network.build_config(plugin, capability_args=pod.capability_args, prev_result=result)
            step = runtime.run("ADD", pod, plugin, request)
            if step.error:
                _roll_back(runtime, network, pod)
                return None
            result = step.result
        if runtime.writes:
            _write_cache(runtime, network, pod, result)
    except BaseException:
        _roll_back(runtime, network, pod)
        raise
    return result


def check(runtime: PluginRunner, network: Network, pod: PodArgs, result: object) -> None:
    """Checks an attachment against the `result` of its ADD; raises CniError(1) for a version that has no CHECK."""
    if not versions.at_least(network.version, versions.SINCE["CHECK"]):
        raise CniError(
            Code.INCOMPATIBLE_VERSION,
            f'network "{network.name}" cannot be checked: it is of cniVersion {network.version}',
            'CHECK came with 0.4.0; set "cniVersion" to "0.4.0" or later and attach the pod again',
        )
    if network.disable_check:
        return
    for plugin in network.plugins:
        request = network.build_config(
            plugin, capability_args=pod.capability_args, prev_result=convert_result(result, network.version)
        )
        runtime.run("CHECK", pod, plugin, request)


def delete(runtime: PluginRunner, network: Network, pod: PodArgs, result: object = None) -> bool:
    """Detaches a pod and deletes its cache entry; returns whether all plugins succeeded. Stops at the first failure."""
    prev_result = None
    if result is not None and versions.at_least(network.version, "0.4.0"):
        try:
            prev_result = convert_result(result, network.version)
        except CniError:
            prev_result = None  # as libcni: DEL continues without an unreadable result
    for plugin in reversed(network.plugins):
        request = network.build_config(plugin, capability_args=pod.capability_args, prev_result=prev_result)
        if runtime.run("DEL", pod, plugin, request).error:
            return False
    if runtime.writes:
        for layer in runtime.layers:
            try:
                result_cache.delete_entry(layer, network.name, pod)
            except OSError as error:
                path = result_cache.path_of(layer, network.name, pod)
                raise CniError(Code.IO_FAILURE, f"cannot remove {path}: {error.strerror}") from error
    return True


def gc(runtime: PluginRunner, network: Network, valid: Callable[[], Iterable[Attachment]]) -> tuple[str, ...]:
    """Runs GC of every plugin that has it; returns the types of the others.

    GC keeps the `valid` attachments, which are listed anew for each plugin, since pods start meanwhile. host-local also
    keeps reservations that are younger than the list.
    """
    without_verb = []
    for plugin in network.plugins:
        serving = _serving("GC", runtime, network, plugin)
        if serving:
            listed_at_ns = time.time_ns()
            runtime.run("GC", PodArgs(), plugin, serving.build_config(plugin, valid=valid(), listed_at_ns=listed_at_ns))
        else:
            without_verb.append(str(plugin["type"]))
    return tuple(without_verb)


def status(runtime: PluginRunner, network: Network) -> tuple[str, ...]:
    """Runs STATUS of every plugin that has it, VERSION of the others; returns the types of the others.

    flannel's plugin has none, but bridge, which it runs, may have it.
    """
    without_verb = []
    for plugin in network.plugins:
        serving = _serving("STATUS", runtime, network, plugin)
        if serving:
            runtime.run("STATUS", PodArgs(), plugin, serving.build_config(plugin))
        else:
            runtime.run("VERSION", PodArgs(), plugin, {"cniVersion": network.version})
            without_verb.append(str(plugin["type"]))
        delegate = resolve_delegate(plugin)
        if is_flannel(plugin) and (serving := _serving("STATUS", runtime, network, delegate)):
            runtime.run("STATUS", PodArgs(), delegate, serving.build_config(delegate))
    return tuple(without_verb)


def _serving(command: str, runtime: PluginRunner, network: Network, plugin: Mapping[str, object]) -> Network | None:
    """Returns the network in the version in which a plugin has GC or STATUS, None if it has none.

    libcni runs these for no list before 1.1.0. podwire's plugins are run in the current version instead: what they
    read and remove does not depend on it.
    """
    if network.version not in versions.SUPPORTED:
        return None
    if versions.at_least(network.version, versions.SINCE[command]):
        return network
    is_ours = origin.is_all_podwire(plugin, runtime.path, runtime.env)
    return replace(network, version=versions.CURRENT) if is_ours else None


def convert_result(result: object, version: str) -> object:
    """Returns a result in the shape of `version`, untouched when it is of that version; raises CniError(7)."""
    version_of_result = result.get("cniVersion") if isinstance(result, dict) else None
    if not isinstance(version_of_result, str) or version_of_result == version:
        return result
    return from_json(result, version_of_result).to_json(version)


def _write_cache(runtime: PluginRunner, network: Network, pod: PodArgs, result: object) -> None:
    try:
        result_cache.write_entry(runtime.layers[0], network, pod, result)
    except OSError as error:
        path = result_cache.path_of(runtime.layers[0], network.name, pod)
        hint = "without the entry the pod could not be detached later, so it has been detached now"
        raise CniError(Code.IO_FAILURE, f"cannot write {path}: {error.strerror}", hint) from error


def _roll_back(runtime: PluginRunner, network: Network, pod: PodArgs) -> None:
    """Runs DEL of every plugin, even if others fail, as a runtime does after a failed ADD."""
    if not runtime.writes:
        return  # the copy of the host is removed as a whole
    with signals.ignored():
        for plugin in reversed(network.plugins):
            runtime.run("DEL", pod, plugin, network.build_config(plugin, capability_args=pod.capability_args))
