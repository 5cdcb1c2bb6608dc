"""`podwire metrics`: the state of the node and of the plugins' verbs, for Prometheus.

The command only reads, and writes the file of --file with its counters beside it.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from cni import gojson
from cni.errors import CniError, Code
from podwire import logs
from podwire.command import Command, Context, ExitStatus, UsageError, add_bin_dir, bin_dirs, places
from podwire.commands.show import add_places
from podwire.doctor.checks import run_checks
from podwire.doctor.node import CheckedNode
from podwire.metrics import exposition, node_metrics, verb_counts
from podwire.metrics.exposition import GAUGE, MetricFamily, Sample
from podwire.metrics.verb_counts import VerbCounts
from podwire.node.inspection import inspect_snapshot
from process import durable
from process.version import __version__

_SUFFIX = ".prom"
_STATE_SUFFIX = ".state"  # the collector does not read it
_DESCRIPTION = """\
Prints metrics in Prometheus' text format: addresses per network and range (size, used, leaked), attachments by state,
leaked objects, doctor's findings by name, and durations and errors of the verbs in the plugins' log. docs/metrics.md
lists them.

--file writes them for the textfile collector of node-exporter, atomically and readable for everyone. The counters of
verbs go on over runs and rotations of the log: their state is in FILE.state. Without --file they are those of the log
as it is now. systemd's units podwire-metrics.service and .timer run it each minute.

Exit status: 0 the metrics are printed or written, whatever they say; 3 they could not be."""


def _run(context: Context, options: Namespace) -> ExitStatus:
    start = time.monotonic()
    if options.file and not options.file.endswith(_SUFFIX):
        raise UsageError(Code.INVALID_ENVIRONMENT, f"--file {options.file}: node-exporter reads only *{_SUFFIX}")
    state = f"{options.file}{_STATE_SUFFIX}" if options.file else ""
    counts = verb_counts.load(state) if state else VerbCounts()
    families = [*_node(context, options), *_verbs(context, options, counts)]
    text = exposition.render((*families, *_collection(time.monotonic() - start)))
    if not options.file:
        context.out.print_block(text)
        return ExitStatus.FINE
    _write(state, gojson.dumps(counts.to_json()), 0o600)
    _write(options.file, text, 0o644)
    return ExitStatus.FINE


def _node(context: Context, options: Namespace) -> Iterator[MetricFamily]:
    directories, path = places(context, options), bin_dirs(context, options)
    context.progress.show("reading the node")
    doctor = CheckedNode(context.plugins, context.env, directories, path)
    node, snapshot = inspect_snapshot(directories, doctor.checker)
    context.progress.show("checking the node")
    return node_metrics.families(node, snapshot, run_checks(doctor))


def _verbs(context: Context, options: Namespace, counts: VerbCounts) -> Iterator[MetricFamily]:
    """Yields the verbs in the logs; a log that cannot be read is a sample, since it hides verbs."""
    paths = [options.log] if options.log else logs.list_files(context.env, places(context, options))
    samples = []
    for path in paths:
        try:
            counts.read_log(path)
        except OSError:
            samples.append(Sample({"path": path}, 0))
        else:
            samples.append(Sample({"path": path}, 1))
    yield from counts.families()
    yield MetricFamily("podwire_log_readable", GAUGE, "Whether this log of the plugins could be read.", tuple(samples))


def _collection(duration_s: float) -> Iterator[MetricFamily]:
    yield MetricFamily("podwire_build_info", GAUGE, "The version of podwire.", (Sample({"version": __version__}, 1),))
    yield MetricFamily(
        "podwire_collection_duration_seconds",
        GAUGE,
        "Duration of this collection.",
        (Sample({}, round(duration_s, 3)),),
    )
    yield MetricFamily(
        "podwire_collection_timestamp_seconds",
        GAUGE,
        "Time of this collection, in seconds since 1970.",
        (Sample({}, round(time.time(), 3)),),
    )


def _write(path: str, text: str, mode: int) -> None:
    """Replaces a file atomically; raises CniError(5)."""
    directory, name = os.path.split(path)
    os.umask(0o022)  # node-exporter runs as another user
    try:
        durable.write(path, text.encode(), mode, draft=os.path.join(directory, f".{name}.{os.getpid()}"))
    except OSError as error:
        hint = "the directory must exist: it is the one of node-exporter's --collector.textfile.directory"
        raise CniError(Code.IO_FAILURE, f"cannot write {path}: {error.strerror}", hint) from error


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--file", metavar="FILE", default="", help="write them to FILE, whose name must end in .prom")
    parser.add_argument("--log", metavar="FILE", default="", help="the plugins' log (the files that net.d names)")
    add_places(parser)
    add_bin_dir(parser)


COMMAND = Command(
    "metrics",
    "the state of the node for Prometheus",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire metrics", "print them"),
        ("podwire metrics --file /var/lib/prometheus/node-exporter/podwire.prom", "as podwire-metrics.service does"),
    ),
)
