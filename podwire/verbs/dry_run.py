"""What ADD would do: the plugins run, for once in earnest, in a throw-away copy of the host.

One rule: nothing leaves the copy. Its network is namespaces without a name, its files are read-only but for private
copies of what plugins write to, and no socket of the host's programs is in it; the kernel takes it all away with this
process. So a process that has entered it prints what came of it, and ends.
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
from podwire.verbs.invoke import Call, Serve, Step
from podwire.verbs.planning import noting, own

_STATE = "/var/lib/cni"  # host-local's leases and libcni's cache
_RUN, _RUN_FILE_BYTES = "/run", 1 << 20  # a journal may be there, and need not be copied
_BUS, _BUS_SOCKET = "DBUS_SYSTEM_BUS_ADDRESS", "/run/dbus/system_bus_socket"
_FIREWALLD = ("what firewalld would be told, if it runs: nobody is asked in the copy",)


@dataclass(frozen=True)
class Stage:
    """The copy, once entered: the path of its sandbox, and what it lacks, in words."""

    sandbox: str
    missing: tuple[str, ...]


def enter(network: Network, *directories: str) -> Stage:
    """Moves this process into a copy of the host, for good; `directories` are copied with those of the network."""
    picture = hostcopy.read_host_state()
    rules = copying.read()
    unasked = _FIREWALLD if os.path.exists(_BUS_SOCKET) and _names_firewall(network) else ()
    sandbox = hostcopy.enter(picture)
    os.environ.pop(_BUS, None)  # firewalld, were it asked, would change the host
    covered: list[str] = []
    mounts.mount_private_copy(_RUN, most_bytes=_RUN_FILE_BYTES)
    for directory in sorted({*_stores(network), *directories, _STATE}, key=len):
        path = os.path.realpath(directory)
        if not any(path == one or path.startswith(f"{one}/") for one in (*covered, _RUN)):
            mounts.mount_private_copy(path)
            covered.append(path)
    return Stage(sandbox, (*copying.write(rules), *unasked))


def rehearsing(plugins: Mapping[str, Plugin], stage: Stage) -> Serve:
    """Returns what serves a call on the stage and notes our own plugins' changes; another's run, and end with us."""

    def serve(call: Call) -> Step:
        env = {name: value for name, value in call.env.items() if name != _BUS}
        there = replace(call, env={**env, "CNI_NETNS": stage.sandbox})
        try:
            plugin = own(call.kind, call.path, plugins)
        except CniError as error:
            return Step(call.kind, call.command, 0.0, error=error)
        return noting(there, plugin, plugins, planned=False) if plugin else invoke.execute(there, hostcopy.spawn)

    return serve


def renamed(done: Step, stage: Stage, netns: str) -> Step:
    """Returns what became of a call with the path of the sandbox that the stage's stands for."""
    changes = None if done.changes is None else tuple(text.replace(stage.sandbox, netns) for text in done.changes)
    error = done.error and CniError(done.error.code, done.error.msg.replace(stage.sandbox, netns), done.error.details)
    return replace(done, changes=changes, error=error, result=replaced(done.result, stage, netns))


def replaced(result: object, stage: Stage, netns: str) -> object:
    """Returns a result with that path."""
    if isinstance(result, dict):
        return {key: replaced(item, stage, netns) for key, item in result.items()}
    if isinstance(result, list):
        return [replaced(item, stage, netns) for item in result]
    return netns if result == stage.sandbox else result


def _names_firewall(network: Network) -> bool:
    return any(plugin.get("type") == "firewall" for plugin in network.plugins)


def _stores(network: Network) -> Iterable[str]:
    """Yields the directories in which the plugins of a network keep what they must remember."""
    for plugin in network.plugins:
        for part in (plugin, plugin.get("ipam")):
            directory = part.get("dataDir") if isinstance(part, Mapping) else None
            if isinstance(directory, str) and os.path.isabs(directory):
                yield directory
                yield f"{directory}.podwire"
