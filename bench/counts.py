"""Counts per verb: processes, system calls, files and netlink messages of podwire and of the reference.

One rule: counts, not times. They do not depend on the machine's load, so a test limits podwire's
(tests/netns/test_counts.py); the reference's system calls vary a little with the scheduling of Go's runtime.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from bench.attachment import Attachment, run_calls
from bench.cases import VERBS
from bench.figures import table
from bench.process import Invocation
from bench.subject import BANDWIDTH, NFTABLES, SINGLE, Config, Kind, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace

# -s also limits the number of messages shown per send; abbrev=none shows each message in full.
_STRACE = ("strace", "-f", "-qq", "-s", "4096", "-e", "abbrev=none", "-o")
_TIMEOUT_S = 60

_LINE = re.compile(r"\d+ +(<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_RESULT = re.compile(r"= (\d+)[^=]*$")
_SENDS = ("sendto", "sendmsg")
_STARTS = ("fork", "vfork", "clone", "clone3")

_HEAD = ("processes", "system calls", "files opened", "requests", "sends")
_ON_PAGE = ("processes", "system calls", "sends")


class Counts(NamedTuple):
    """The counts of one or several processes: `requests` are netlink messages, `sends` the calls that sent them."""

    processes: int = 0
    calls: int = 0
    files: int = 0
    requests: int = 0
    sends: int = 0

    def plus(self, other: Counts) -> Counts:
        """Returns the sum of both."""
        return Counts(*(one + two for one, two in zip(self, other, strict=True)))


class Comparison(NamedTuple):
    """A verb of a plugin or a chain, with the counts of both implementations."""

    case: str
    ours: Counts
    reference: Counts

    def as_json(self) -> Mapping[str, object]:
        """Returns the comparison as values for JSON."""
        return {"case": self.case, "podwire": self.ours._asdict(), "reference": self.reference._asdict()}


def count(lines: Iterable[str]) -> Counts:
    """Returns the counts of the lines of `strace -f`; a call that another process interrupts has two lines."""
    totals = dict.fromkeys(Counts._fields, 0)
    totals["processes"] = 1
    for line in lines:
        matched = _LINE.match(line)
        if not matched:
            continue  # a signal, an exit
        resumed, name, rest = matched.groups()
        result = _RESULT.search(rest)
        totals["calls"] += not resumed
        if name in _STARTS and not resumed:
            totals["processes"] += "CLONE_THREAD" not in rest
        elif name in ("open", "openat"):
            totals["files"] += bool(result)
        elif name in _SENDS and "nlmsg_len=" in rest:
            totals["sends"] += 1
            totals["requests"] += rest.count("nlmsg_len=")
    return Counts(**totals)


def trace(call: Invocation) -> tuple[list[str], bytes]:
    """Runs one call with strace until its last process has ended; returns the lines of strace, and the call's stdout.

    CHECK of the reference's portmap fails (bench/subject.py). Raises RuntimeError when another verb fails.
    """
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-") as file:
        argv = [*_STRACE, file.name, call.program]
        done = subprocess.run(  # strace ends with the last process that it follows
            argv, input=call.stdin, env=dict(call.env), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0 and call.env["CNI_COMMAND"] != "CHECK":
            output = (done.stdout + done.stderr).decode(errors="replace")
            raise RuntimeError(f"{call.program} {call.env['CNI_COMMAND']} failed: {output}")
        return file.readlines(), done.stdout


def count_call(call: Invocation) -> tuple[Counts, bytes]:
    """Runs one call with strace; returns its counts and its stdout."""
    lines, stdout = trace(call)
    return count(lines), stdout


def count_verbs(subject: Subject, kind: Kind, chained: Sequence[Config], pod: Namespace) -> dict[str, Counts]:
    """Runs ADD, CHECK and DEL of a list; returns the counts of all its plugins together, by verb."""
    attachment = Attachment(subject, subject.network(kind), chained, pod)
    return {verb: _sum(run_calls(attachment.calls(verb), count_call)) for verb in VERBS}


def count_all(subjects: tuple[Subject, Subject]) -> list[Comparison]:
    """Counts VERSION, and the verbs of bridge networks without and with chained plugins."""
    ours, reference = (dict(_cases(subject)) for subject in subjects)
    return [Comparison(case, ours[case], reference[case]) for case in ours]


def text(rows: Sequence[Comparison]) -> str:
    """Returns the table as text, each cell podwire / reference."""
    return table(("counts", *_HEAD), [(row.case, *cells(row.ours, row.reference)) for row in rows])


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a report's rows as Markdown, with the columns of the page, without CHECK."""
    lines = [f"| podwire / reference | {' | '.join(_ON_PAGE)} |", "|---" * (len(_ON_PAGE) + 1) + "|"]
    for row in (row for row in rows if not row["case"].endswith("CHECK")):
        by_name = dict(zip(_HEAD, cells(*(Counts(**row[side]) for side in ("podwire", "reference"))), strict=True))
        lines.append(f"| {row['case']} | {' | '.join(by_name[name] for name in _ON_PAGE)} |")
    return "\n".join(lines)


def cells(ours: Counts, reference: Counts) -> list[str]:
    """Returns a cell for each count."""
    return [f"{one:,} / {two:,}" for one, two in zip(ours, reference, strict=True)]


def _cases(subject: Subject) -> Iterator[tuple[str, Counts]]:
    yield "VERSION", count_call(subject.call("bridge", "VERSION", {}))[0]
    name = "masquerading bridge"
    lists: list[tuple[Kind, str, Sequence[Config]]] = [
        (SINGLE, "bridge", []),
        (NFTABLES, f"{name}, 1 host port, 2 limits, nftables", [subject.portmap("nftables"), BANDWIDTH]),
        (NFTABLES, f"{name}, 100 host ports, nftables", [subject.portmap("nftables", 100)]),
    ]
    for kind, title, chained in lists:
        network = subject.network(kind)
        with namespaces.temporary() as resident, namespaces.temporary() as pod, subject.resident(network, resident):
            count_verbs(subject, kind, chained, pod)  # creates what all pods share
            for verb, counts in count_verbs(subject, kind, chained, pod).items():
                yield f"{title} {verb}", counts


def _sum(several: Iterable[Counts]) -> Counts:
    return reduce(Counts.plus, several, Counts())
