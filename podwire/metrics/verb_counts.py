"""Counts the verbs in the plugins' log: durations by plugin and verb, errors by their code.

The counts go on from those of the previous run, which a state file has with the position up to which each log was
read. A rotated log is read to its end under its new name; a truncated one from its start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cni import gojson
from cni.errors import CniError, Code
from podwire.metrics.exposition import COUNTER, HISTOGRAM, MetricFamily, Sample
from process import files

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_FORMAT = 1  # of the state file
_STATE_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 20
_FIRST_BYTES = 64 << 20  # of a log that is read for the first time: its end


@dataclass
class Durations:
    """The verbs of a plugin: how many were at most as long as each of BOUNDS_S and longer, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0


@dataclass
class VerbCounts:
    """The counts; `positions` are inode and offset of each log by path."""

    durations: dict[tuple[str, str], Durations] = field(default_factory=dict)
    errors: dict[tuple[str, str, str], int] = field(default_factory=dict)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)

    def read_log(self, path: str) -> None:
        """Counts the verbs that a log has had since the last time; raises OSError."""
        inode, offset = self.positions.get(path, (0, 0))
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if inode and inode != status.st_ino:
                self._read_rotated(path, inode, offset)
                offset = 0
            if not inode:
                offset = max(0, status.st_size - _FIRST_BYTES)
            if offset > status.st_size:
                offset = 0
            file.seek(offset)
            self.positions[path] = status.st_ino, offset + self._count(_chunks(file.fileno()))

    def families(self) -> Iterator[MetricFamily]:
        """Yields the counts as metrics."""
        samples = []
        for (plugin, command), one in sorted(self.durations.items()):
            labels = {"plugin": plugin, "command": command}
            total = 0
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), one.counts, strict=True):
                total += count
                samples.append(Sample({**labels, "le": bound}, total, "_bucket"))
            samples += [Sample(labels, one.sum_s, "_sum"), Sample(labels, total, "_count")]
        yield MetricFamily(
            "podwire_verb_duration_seconds", HISTOGRAM, "Durations of the verbs in the log.", tuple(samples)
        )
        errors = (
            Sample({"plugin": plugin, "command": command, "code": code}, number)
            for (plugin, command, code), number in sorted(self.errors.items())
        )
        yield MetricFamily("podwire_verb_errors_total", COUNTER, "Verbs in the log that failed.", tuple(errors))

    def to_json(self) -> dict[str, object]:
        """Returns the content of the state file."""
        return {
            "format": _FORMAT,
            "durations": [[*key, one.counts, one.sum_s] for key, one in self.durations.items()],
            "errors": [[*key, number] for key, number in self.errors.items()],
            "positions": [[path, *position] for path, position in self.positions.items()],
        }

    def _read_rotated(self, path: str, inode: int, offset: int) -> None:
        """Counts the rest of a log that was renamed; a compressed one is lost."""
        directory, name = os.path.split(path)
        for other in os.listdir(directory):
            candidate = os.path.join(directory, other)
            if other.startswith(name) and other != name and os.lstat(candidate).st_ino == inode:
                with open(os.open(candidate, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
                    file.seek(offset)
                    self._count(_chunks(file.fileno()))

    def _count(self, chunks: Iterable[bytes]) -> int:
        """Counts whole lines, and returns their number of bytes."""
        number, rest = 0, b""
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                number += len(line) + 1
                self._count_line(line)
        return number

    def _count_line(self, line: bytes) -> None:
        try:
            value = gojson.loads(line)
        except ValueError:
            return
        if not isinstance(value, dict) or not isinstance(value.get("ms"), int | float):
            return
        plugin, command = str(value.get("plugin")), str(value.get("command"))
        seconds = float(value["ms"]) / 1000
        one = self.durations.setdefault((plugin, command), Durations())
        one.counts[sum(bound < seconds for bound in BOUNDS_S)] += 1
        one.sum_s += seconds
        error = value.get("error")
        if isinstance(error, dict):
            key = plugin, command, str(error.get("code"))
            self.errors[key] = self.errors.get(key, 0) + 1


def load(path: str) -> VerbCounts:
    """Returns the counts of a state file, none if it does not exist; raises CniError(6) for another content."""
    try:
        value = gojson.loads(files.read(path, _STATE_BYTES))
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise ValueError("it has another format")
        return VerbCounts(
            {
                (plugin, command): Durations(list(counts), sum_s)
                for plugin, command, counts, sum_s in value["durations"]
            },
            {(plugin, command, code): number for plugin, command, code, number in value["errors"]},
            {log: (inode, offset) for log, inode, offset in value["positions"]},
        )
    except FileNotFoundError:
        return VerbCounts()
    except (ValueError, TypeError, KeyError) as error:
        hint = "delete it: the counters then start again"
        raise CniError(Code.DECODING_FAILURE, f"cannot read the state {path}: {error}", hint) from error


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk
