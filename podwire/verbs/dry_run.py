"""Dry run of ADD: the plugins run for real in a disposable copy of the host.

Nothing leaves the copy. Its network namespaces have no name, its files are read-only except private copies
of those that plugins write, and it has no socket of the host's programs. The kernel removes it with this process, so
a process that has entered the copy prints the outcome and exits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cni.errors import CniError
from cni.skel import Plugin
from kernel import hostcopy, mounts
from kernel.netfilter import copying
from podwire.networks import Network
from podwire.verbs import invoke
from podwire.verbs.invoke import PluginCall, PluginOutcome, Serve
from podwire.verbs.planning import serve

_STATE = "/var/lib/cni"  # host-local's leases and libcni's cache
_RUN, _RUN_FILE_BYTES = "/run", 1 << 20  # larger files, such as a journal, are not copied
_BUS, _BUS_SOCKET = "DBUS_SYSTEM_BUS_ADDRESS", "/run/dbus/system_bus_socket"
_FIREWALLD = ("changes in firewalld, if it runs: the copy cannot reach it",)


@dataclass(frozen=True)
class HostCopy:
    """The entered copy: the path of its sandbox, and descriptions of what is missing in it."""

    sandbox: str
    missing: tuple[str, ...]


def enter(network: Network, *directories: str) -> HostCopy:
    """Moves this process into a copy of the host, irreversibly; `directories` are copied with those of the network."""
    picture = hostcopy.read_host_state()
    rules = copying.read()
    not_copied = _FIREWALLD if os.path.exists(_BUS_SOCKET) and "firewall" in network.kinds else ()
    sandbox = hostcopy.enter(picture)
    os.environ.pop(_BUS, None)  # firewalld would change the host
    covered: list[str] = []
    mounts.mount_private_copy(_RUN, most_bytes=_RUN_FILE_BYTES)
    for directory in sorted({*_stores(network), *directories, _STATE}, key=len):
        path = os.path.realpath(directory)
        if not any(path == one or path.startswith(f"{one}/") for one in (*covered, _RUN)):
            mounts.mount_private_copy(path)
            covered.append(path)
    return HostCopy(sandbox, (*copying.write(rules), *not_copied))


def runner_in(plugins: Mapping[str, Plugin], copy: HostCopy) -> Serve:
    """Returns a function that runs a call in the copy; it records the changes of podwire's plugins only."""

    def run(call: PluginCall) -> PluginOutcome:
        env = {name: value for name, value in call.env.items() if name != _BUS}
        there = replace(call, env={**env, "CNI_NETNS": copy.sandbox})
        return serve(there, plugins, lambda _: invoke.execute(there, hostcopy.spawn), planned=False)

    return run


def renamed(step: PluginOutcome, copy: HostCopy, netns: str) -> PluginOutcome:
    """Returns a step with the copy's sandbox path replaced by `netns`."""
    changes = None if step.changes is None else tuple(text.replace(copy.sandbox, netns) for text in step.changes)
    error = step.error and CniError(step.error.code, step.error.msg.replace(copy.sandbox, netns), step.error.details)
    return replace(step, changes=changes, error=error, result=replaced(step.result, copy, netns))


def replaced(result: object, copy: HostCopy, netns: str) -> object:
    """Returns a result with the copy's sandbox path replaced by `netns`."""
    if isinstance(result, dict):
        return {key: replaced(item, copy, netns) for key, item in result.items()}
    if isinstance(result, list):
        return [replaced(item, copy, netns) for item in result]
    return netns if result == copy.sandbox else result


def _stores(network: Network) -> Iterable[str]:
    """Yields the directories in which the plugins of a network store state."""
    for plugin in network.plugins:
        for part in (plugin, plugin.get("ipam")):
            directory = part.get("dataDir") if isinstance(part, Mapping) else None
            if isinstance(directory, str) and os.path.isabs(directory):
                yield directory
                yield f"{directory}.podwire"
