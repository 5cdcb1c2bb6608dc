"""`podwire bugreport`: writes the state of the node into one archive, to find a fault from elsewhere.

The command reads, and writes only the archive.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import dataclass

from cni import gojson
from cni.errors import CniError, Code
from podwire.bugreport import archive
from podwire.bugreport.limits import PartError
from podwire.bugreport.parts import ReportPart, Sources
from podwire.bugreport.redaction import Redaction
from podwire.command import Command, Context, ExitStatus, add_bin_dir, add_json, bin_dirs, places, require_root
from podwire.commands.show import add_places
from podwire.output import Cell, format_time, plural
from process.version import __version__

_DESCRIPTION = """\
Collects what is needed to find a fault on this node from elsewhere, in one file that only its owner can read: the
output of doctor, show, lint, ipam and version; the rules of nftables, iptables-nft and iptables-legacy; links with
statistics, addresses, routes, policy rules, neighbours and qdiscs of the host and of each pod; bridges, listening
sockets, network sysctls; net.d, libcni's cache, host-local's stores; the end of the log; versions. It changes nothing
but the archive, and sends nothing.

Left out are: the environment of every process; in configurations and in the cache the values of `args`, of keys that
have a secret's name ("token"), and the texts of keys that podwire does not know; of CNI_ARGS all but the pod's name;
sysctls that are keys; files of net.d that are not JSON. left-out.txt in the archive lists them. Addresses, pod names
and rules with their comments are in the archive: read it before you pass it on.

Each part may take 5 seconds. A part that fails is named with its reason here and in report.json; the rest is there.

Exit status: 0 the archive is complete; 4 it is written, but lacks parts; 3 it could not be written.

--json: {"file", "bytes", "complete", "parts": [{"name", "bytes", "ms", "error"}], "leftOut": ["..."]}."""


@dataclass(frozen=True)
class _Collected:
    """A part with its content, or the reason why it is missing."""

    name: str
    data: bytes
    ms: int
    error: str = ""

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "bytes": len(self.data), "ms": self.ms, "error": self.error}


def _run(context: Context, options: Namespace) -> ExitStatus:
    require_root(context, "bugreport")
    path = os.path.abspath(options.file)
    if not os.path.isdir(os.path.dirname(path)):
        raise CniError(Code.IO_FAILURE, f"the directory {os.path.dirname(path)} does not exist")
    redaction = Redaction(context.plugins)
    sources = Sources(context, places(context, options), bin_dirs(context, options), redaction, options.log)
    collected = [_collect(part, context) for part in sources.parts()]
    failed = [one for one in collected if one.error]
    report: dict[str, object] = {
        "podwire": __version__,
        "node": os.uname().nodename,
        "time": format_time(time.time()),
        "complete": not failed,
        "parts": [one.to_json() for one in collected],
        "leftOut": redaction.left_out,
    }
    directory = os.path.basename(path).partition(".")[0] or "podwire"
    contents = {one.name: redaction.scrub(one.data) for one in collected if not one.error}
    contents["left-out.txt"] = _left_out(redaction.left_out)
    contents["report.json"] = redaction.scrub(gojson.dumps(report, indent=2).encode() + b"\n")
    archive.write(path, archive.build_tar(directory, contents, int(time.time())), context.env)
    context.progress.clear()
    size = os.stat(path).st_size
    context.out.print_json({"file": path, "bytes": size, **report})
    _print(context, path, size, collected, redaction.left_out)
    return ExitStatus.INCOMPLETE if failed else ExitStatus.FINE


def _collect(part: ReportPart, context: Context) -> _Collected:
    context.progress.show(f"collecting {part.name}")
    start = time.monotonic()
    data, reason = b"", ""
    try:
        data = part.collect()
    except CniError as error:
        reason = error.msg
    except (PartError, OSError, ValueError) as error:
        reason = str(error)
    return _Collected(part.name, data, round((time.monotonic() - start) * 1000), reason)


def _left_out(items: Iterable[str]) -> bytes:
    always = "the environment of every process: not read\n"
    return (always + "".join(f"{item}\n" for item in items)).encode("utf-8", "backslashreplace")


def _print(context: Context, path: str, size: int, collected: list[_Collected], left_out: list[str]) -> None:
    out = context.out
    failed = [one for one in collected if one.error]
    for one in failed:
        out.print(Cell("missing", "warning"), f"{one.name}: {one.error}")
    out.print(f"{plural(len(collected) - len(failed), 'part')} in {path} ({-(-size // 1024)} KiB)")
    out.print(f"{plural(len(left_out), 'value')} left out, as left-out.txt in the archive lists")
    out.print("it contains addresses, names of pods and the rules of the packet filter: read it before you pass it on")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.tar.gz", help="the archive to write; an existing file is replaced")
    parser.add_argument("--log", metavar="FILE", default="", help="the plugins' log (the files that net.d names)")
    add_places(parser)
    add_bin_dir(parser)
    add_json(parser)


COMMAND = Command(
    "bugreport",
    "write the state of the node into one archive, without secrets",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire bugreport /tmp/node.tar.gz", "for an issue, or a colleague"),
        ("tar -xzOf /tmp/node.tar.gz node/left-out.txt", "what is not in it"),
    ),
)
