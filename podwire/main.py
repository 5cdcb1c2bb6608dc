"""The multi-call entry: the name the file was started under chooses the plugin (argv[0]).

One rule: this is the only room that knows every plugin, so it alone hands the table of delegates down. A new plugin
is one line in PLUGINS: a table in code, which the type checker and both packers read, rather than package metadata.
"""

from __future__ import annotations

import io
import os
import sys
from typing import BinaryIO, TextIO, cast

from cni import gojson, signals, skel, versions
from cni.errors import CniError, Code
from cni.skel import Plugin
from ipam.host_local.main import PLUGIN as HOST_LOCAL
from ipam.static.main import PLUGIN as STATIC
from plugins.bandwidth.main import PLUGIN as BANDWIDTH
from plugins.bridge.main import PLUGIN as BRIDGE
from plugins.firewall.main import PLUGIN as FIREWALL
from plugins.loopback.main import PLUGIN as LOOPBACK
from plugins.portmap.main import PLUGIN as PORTMAP
from plugins.ptp.main import PLUGIN as PTP
from plugins.tuning.main import PLUGIN as TUNING
from podwire import __version__, cli

PLUGINS: dict[str, Plugin] = {
    plugin.name: plugin for plugin in (BANDWIDTH, BRIDGE, FIREWALL, HOST_LOCAL, LOOPBACK, PORTMAP, PTP, STATIC, TUNING)
}

# The reference whose options these plugins know. nerdctl reads it from firewall's first line, as a semantic version,
# and asks no other firewall than one from 1.7.1 on to isolate.
_REFERENCE = "1.9.1"


def entry() -> int:
    """Runs the program named by argv[0] on the process's own environment and streams; returns the exit status."""
    name = os.path.basename(sys.argv[0])
    plugin = PLUGINS.get(name)
    if plugin is None:
        return _operator(name, sys.argv[1:])
    signals.hold()
    return skel.run(
        plugin,
        os.environ,
        _binary(sys.stdin),
        _binary(sys.stdout),
        about=f"CNI {name} plugin v{_REFERENCE}+podwire.{__version__}",
        delegates=PLUGINS,
        release=__version__,
    )


def console() -> None:
    """Runs `entry` as the program of an ordinary Python installation."""
    sys.exit(entry())


def _binary(stream: TextIO | None) -> BinaryIO:
    """Returns the bytes of a standard stream, unbuffered for writing; one that always fails when it is closed."""
    if stream is not None:
        return cast(BinaryIO, stream.buffer.raw) if isinstance(stream.buffer, io.BufferedWriter) else stream.buffer
    closed = io.BytesIO()
    closed.close()
    return closed


def _operator(name: str, arguments: list[str]) -> int:
    """Runs the operator's tool: what this file does under any name that is no plugin's."""
    if os.environ.get("CNI_COMMAND") and not arguments:  # a runtime, which understands an error object, nothing else
        known = f"this file is podwire; its plugins are {', '.join(sorted(PLUGINS))}"
        failure = CniError(Code.INVALID_NETWORK_CONFIG, f"there is no plugin named {name!r} in this file", known)
        print(gojson.dumps(failure.to_json(versions.CURRENT), indent=4))
        return 1
    return cli.run(arguments, os.environ, sys.stdout, PLUGINS)
