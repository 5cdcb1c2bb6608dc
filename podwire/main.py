"""The multi-call entry: argv[0] chooses the plugin, or else the name of the executable file.

Only this module imports every plugin and passes the table of delegates down. A new plugin is one line in
PLUGINS: code, unlike package metadata, is read by the type checker and both packers.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import BinaryIO, TextIO, cast

from cni import skel
from cni.errors import CniError, invalid_conf
from cni.skel import Plugin
from ipam.dhcp.daemon import program as dhcp_daemon
from ipam.dhcp.main import PLUGIN as DHCP
from ipam.host_local.main import PLUGIN as HOST_LOCAL
from ipam.static.main import PLUGIN as STATIC
from plugins.bandwidth.main import PLUGIN as BANDWIDTH
from plugins.bridge.main import PLUGIN as BRIDGE
from plugins.dummy.main import PLUGIN as DUMMY
from plugins.firewall.main import PLUGIN as FIREWALL
from plugins.host_device.main import PLUGIN as HOST_DEVICE
from plugins.ipvlan.main import PLUGIN as IPVLAN
from plugins.loopback.main import PLUGIN as LOOPBACK
from plugins.macvlan.main import PLUGIN as MACVLAN
from plugins.portmap.main import PLUGIN as PORTMAP
from plugins.ptp.main import PLUGIN as PTP
from plugins.sbr.main import PLUGIN as SBR
from plugins.tap.main import PLUGIN as TAP
from plugins.tuning.main import PLUGIN as TUNING
from plugins.vlan.main import PLUGIN as VLAN
from plugins.vrf.main import PLUGIN as VRF
from podwire import cli, kubectl
from process.version import __version__

PLUGINS: dict[str, Plugin] = {
    plugin.name: plugin
    for plugin in (
        BANDWIDTH,
        BRIDGE,
        DHCP,
        DUMMY,
        FIREWALL,
        HOST_DEVICE,
        HOST_LOCAL,
        IPVLAN,
        LOOPBACK,
        MACVLAN,
        PORTMAP,
        PTP,
        SBR,
        STATIC,
        TAP,
        TUNING,
        VLAN,
        VRF,
    )
}

# The release of the reference plugins whose options these plugins support. nerdctl reads it from firewall's first line,
# as a semantic version, and isolates networks only with a firewall of 1.7.1 or later.
_REFERENCE = "1.9.1"
_TOOL = "podwire"
_DAEMON = [DHCP.name, "daemon"]


def entry() -> int:
    """Runs the program that its name chooses on the process's environment and streams; returns the exit status."""
    name, arguments = _name(), sys.argv[1:]
    if name == _TOOL and arguments[:2] == _DAEMON:  # an image has the file under no other name
        name, arguments = DHCP.name, arguments[1:]
    plugin = PLUGINS.get(name)
    if plugin is None:
        return _operator(name, arguments)
    sys.stderr = _STDERR
    if [name, *arguments[:1]] == _DAEMON:
        return dhcp_daemon.run(arguments[1:])
    stdout = _binary(sys.stdout)
    try:
        skel.block_signals()
    except CniError as failure:
        return skel.write_error(failure, stdout)
    return skel.run(
        plugin,
        os.environ,
        _binary(sys.stdin),
        stdout,
        about=f"CNI {name} plugin v{_REFERENCE}+podwire.{__version__}",
        delegates=PLUGINS,
        release=__version__,
    )


def console() -> None:
    """Runs `entry` as the program of an ordinary Python installation."""
    sys.exit(entry())


def _binary(stream: TextIO | None) -> skel.Stream:
    """Returns the unbuffered binary stream of a standard stream; for a closed one, a stream that always fails."""
    if stream is not None:
        return cast("skel.Stream", getattr(stream.buffer, "raw", stream.buffer))
    with open(os.devnull, "r+b", buffering=0) as closed:
        return closed


def _name() -> str:
    """Returns the name that chooses the program: argv[0]'s base name, or the executable's if argv[0] names no program.

    A runtime may set argv[0] to any text; the reference plugins, one file each, do not read it.
    """
    started_as = os.path.basename(sys.argv[0]) if sys.argv else ""
    if started_as in PLUGINS or started_as == _TOOL:
        return started_as
    try:
        file = os.path.basename(os.readlink("/proc/self/exe")).removesuffix(" (deleted)")
    except OSError:
        return started_as
    return file if file in PLUGINS else started_as


def _operator(name: str, arguments: list[str]) -> int:
    """Runs the operator's tool: the program of every name that is not a plugin's."""
    if os.environ.get("CNI_COMMAND") and not arguments:  # called by a runtime, which expects an error object
        msg = f"there is no plugin named {name!r} in this file"
        hint = f"the file's name chooses the plugin: link or rename it to one of {', '.join(sorted(PLUGINS))}"
        return skel.write_error(invalid_conf(msg, hint), _binary(sys.stdout))
    if name in (kubectl.PLUGIN, kubectl.COMPLETION):
        return kubectl.run(name, arguments, os.environ, sys.stdout, PLUGINS)
    return cli.run(arguments, os.environ, sys.stdout, PLUGINS)


class _Stderr(io.RawIOBase):
    """Standard error that ignores failed writes: an unreadable warning must not fail a verb."""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # a plain str cannot come here
        with suppress(OSError):
            os.write(2, data)
        return len(data)


_STDERR = io.TextIOWrapper(cast(BinaryIO, _Stderr()), "utf-8", "backslashreplace", line_buffering=True)
