"""The node's files: the plugins in /opt/cni/bin and the network in /etc/cni/net.d, which `podwire install` writes.

`podwire install` writes each file atomically, the plugins before the network, and refuses to change the addresses of
a network while pods run on its bridge: a node whose podCIDR changed must be drained first.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import NamedTuple

from agent.node import Node, format_networks
from agent.program import Ended, Program
from agent.settings import Settings
from cni.errors import CniError, Code
from kernel.netfilter.owned import IPTABLES, NFTABLES
from process.loop import Loop

_INSTALL_LIMIT_S = 120.0
_CONF_BYTES = 1 << 20


class _Content(NamedTuple):
    """What an installation depends on: the podCIDRs ("" with a pool), the network's file, and the executable."""

    networks: str
    conf: bytes
    program: tuple[int, int]


class NodeFiles:
    """Installs the files for the podCIDRs of this node; `report` gets the problem, "" for none, and the output."""

    def __init__(self, settings: Settings, loop: Loop, report: Callable[[str, str], None]) -> None:
        self._settings, self._loop, self._report = settings, loop, report
        self._installed: _Content | None = None
        self._next: Node | None = None  # to install for when the running installation has ended
        self.is_running = False

    def ensure(self, node: Node) -> None:
        """Installs for this node's podCIDRs unless that is done; starts after the installation that runs, if any."""
        if self.is_running:
            self._next = node
            return
        try:
            content = self._content(node)
            if content == self._installed and os.path.exists(self._conf_path()):
                return
            self._start(node, content)
        except OSError as error:
            self._report(f"cannot start podwire install: {error.filename or ''} {error.strerror}".strip(), "")

    @property
    def is_installed(self) -> bool:
        """Whether the last installation succeeded."""
        return self._installed is not None

    def _start(self, node: Node, content: _Content) -> None:
        settings = self._settings
        arguments = [settings.podwire, "install", "--conf", settings.conf]
        arguments += ["--bin-dir", settings.bin_dir, "--conf-dir", settings.conf_dir, "--cache-dir", settings.cache_dir]
        if settings.dry_run:
            arguments.append("--dry-run")
        document = {"kind": "Node", "metadata": {"name": node.name}, "spec": {"podCIDRs": content.networks.split(", ")}}
        if content.networks:
            arguments += ["--node", "/dev/stdin"]

        def done(ended: Ended) -> None:
            self.is_running = False
            self._installed = None if ended.status else content
            self._report(self._problem(ended), ended.output)
            following, self._next = self._next, None
            if following is not None:
                self.ensure(following)

        Program(self._loop, arguments, done, _INSTALL_LIMIT_S, json.dumps(document))
        self.is_running = True

    def _problem(self, ended: Ended) -> str:
        """Returns why the installation failed, "" if it succeeded."""
        if ended.status == 0:
            return ""
        lines = ended.output.splitlines()
        errors = [line for line in lines if not line.startswith(("wrote ", "left ", "nothing to do"))]
        return f"podwire install failed (exit status {ended.status}): {' '.join(errors[-3:]) or 'it printed nothing'}"

    def _content(self, node: Node) -> _Content:
        with open(self._settings.conf, "rb") as file:
            conf = file.read(_CONF_BYTES)
        program = os.stat(self._settings.podwire)
        networks = "" if self._settings.pools.store else format_networks(node.pod_cidrs)
        return _Content(networks, conf, (program.st_ino, program.st_mtime_ns))

    def _conf_path(self) -> str:
        return os.path.join(self._settings.conf_dir, os.path.basename(self._settings.conf))


def masquerade_backends(conf: str) -> tuple[str, ...]:
    """Returns the backends that the network's bridge may use for masquerading: one, or both if the file names none."""
    try:
        with open(conf, encoding="utf-8") as file:
            plugins = json.load(file)["plugins"]
        named = {plugin.get("ipMasqBackend") for plugin in plugins if plugin.get("ipMasq")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return (NFTABLES,)  # the problem of the file is that of `podwire install`
    return tuple(name for name in (IPTABLES, NFTABLES) if name in named) or (IPTABLES, NFTABLES)


def uninstall(settings: Settings) -> str:
    """Restores the files that were there before podwire; returns what was done. Raises CniError(5)."""
    arguments = [settings.podwire, "uninstall", "--force", "--bin-dir", settings.bin_dir]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CniError(Code.IO_FAILURE, f"podwire uninstall: {error}") from error
    if done.returncode:
        raise CniError(Code.IO_FAILURE, f"podwire uninstall failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
