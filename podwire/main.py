"""The multi-call entry: the name the file was started under chooses the plugin (argv[0]).

One rule: this is the only room that knows every plugin, so it alone hands the table of delegates down. A new plugin
is one line in PLUGINS: a table in code, which the type checker and both packers read, rather than package metadata.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import BinaryIO, TextIO

from cni import skel
from cni.skel import Plugin
from ipam.host_local.main import PLUGIN as HOST_LOCAL
from plugins.bridge.main import PLUGIN as BRIDGE
from plugins.loopback.main import PLUGIN as LOOPBACK
from podwire import __version__

PLUGINS: dict[str, Plugin] = {plugin.name: plugin for plugin in (BRIDGE, HOST_LOCAL, LOOPBACK)}

_USAGE = f"""\
podwire {__version__}: CNI network plugins in one file

usage: podwire list        the plugins in this file
       podwire --version   the version
       podwire --help      this text

A container runtime runs this file under the name of a plugin, with the CNI_* variables set and the network
configuration on standard input. Install it in the runtime's bin directory (usually /opt/cni/bin) under each name.
"""


def entry() -> int:
    """Runs the program named by argv[0] on the process's own environment and streams; returns the exit status."""
    name = os.path.basename(sys.argv[0])
    plugin = PLUGINS.get(name)
    if plugin is None:
        return _operator(name, sys.argv[1:])
    signal.pthread_sigmask(signal.SIG_BLOCK, skel.TERMINATION)  # skel lets them arrive where they can be answered
    for number in skel.TERMINATION:
        signal.signal(number, _terminate)
    return skel.run(
        plugin,
        os.environ,
        _binary(sys.stdin),
        _binary(sys.stdout),
        about=f"CNI {name} plugin podwire {__version__}",
        delegates=PLUGINS,
    )


def console() -> None:
    """Runs `entry` as the program of an ordinary Python installation."""
    sys.exit(entry())


def _binary(stream: TextIO | None) -> BinaryIO:
    """Returns the bytes of a standard stream; one that fails at every use when our caller has closed it."""
    if stream is not None:
        return stream.buffer
    closed = io.BytesIO()
    closed.close()
    return closed


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Makes the first signal unwind the undo steps; further ones wait for the end."""
    for number in skel.TERMINATION:
        signal.signal(number, signal.SIG_IGN)
    raise skel.Terminated


def _operator(name: str, arguments: list[str]) -> int:
    """Runs the operator's tool: what this file does under any name that is no plugin's."""
    match arguments:
        case ["list"]:
            print("\n".join(sorted(PLUGINS)))
        case ["--version"]:
            print(f"podwire {__version__}")
        case ["--help"]:
            print(_USAGE, end="")
        case _:
            print(_USAGE, end="", file=sys.stderr)
            if name != "podwire":
                print(
                    f"\nThere is no plugin named {name!r} in this file: {', '.join(sorted(PLUGINS))}", file=sys.stderr
                )
            return 2
    return 0
