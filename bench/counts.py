"""Counts per verb: processes, system calls, files and netlink messages of podwire and of the reference.

One rule: counts, not times. They do not depend on the machine's load, so a test limits podwire's
(tests/netns/test_counts.py); the reference's system calls vary a little with the scheduling of Go's runtime.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench import chains
from bench.figures import table
from bench.subject import DUAL, IPTABLES, NFTABLES, SINGLE, Chained, Config, Kind, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace

# -s also limits the number of messages shown per send; abbrev=none shows each message in full.
_STRACE = ("strace", "-f", "-qq", "-s", "4096", "-e", "abbrev=none", "-o")
_TIMEOUT_S = 60

_LINE = re.compile(r"\d+ +(<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_RESULT = re.compile(r"= (\d+)[^=]*$")
_SENDS, _RECEIVES = ("sendto", "sendmsg"), ("recvfrom", "recvmsg")
_STARTS = ("fork", "vfork", "clone", "clone3")

_HEAD = ("processes", "system calls", "files opened", "requests", "sends", "receives", "bytes received")


class Counts(NamedTuple):
    """The counts of one or several processes: `requests` are netlink messages, `sends` the calls that sent them."""

    processes: int = 0
    calls: int = 0
    files: int = 0
    requests: int = 0
    sends: int = 0
    receives: int = 0
    received_bytes: int = 0

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


def count(trace: Iterable[str]) -> Counts:
    """Returns the counts of the lines of `strace -f`; a call that another process interrupts has two lines."""
    totals = dict.fromkeys(Counts._fields, 0)
    totals["processes"] = 1
    for line in trace:
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
        elif name in _RECEIVES and "nlmsg_len=" in rest and result:
            totals["receives"] += 1
            totals["received_bytes"] += int(result[1])
    return Counts(**totals)


def count_call(
    subject: Subject, plugin: str, verb: str, config: Config, pod: Namespace, *, may_fail: bool = False
) -> tuple[Counts, bytes]:
    """Runs one call with strace until its last process has ended; returns its counts and its stdout.

    Raises RuntimeError when the call fails, except with `may_fail`.
    """
    call = subject.call(plugin, verb, config, pod)
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-") as trace:
        argv = [*_STRACE, trace.name, call.program]
        done = subprocess.run(  # strace ends with the last process that it follows
            argv, input=call.stdin, env=dict(call.env), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0 and not may_fail:
            output = (done.stdout + done.stderr).decode(errors="replace")
            raise RuntimeError(f"{subject.label}: {call.program} {verb} failed: {output}")
        return count(trace), done.stdout


def count_chain(
    subject: Subject, kind: Kind, chained: Sequence[Chained], pod: Namespace
) -> Iterator[tuple[str, str, Counts]]:
    """Runs ADD, CHECK and DEL of a chain; yields each plugin's type, the verb and its counts.

    CHECK of the reference's portmap fails (bench/ports.py); it is counted up to its error.
    """
    network = subject.network(kind)
    configs: list[Config] = []
    result: Config = {}
    for plugin in [None, *chained]:
        config = network if plugin is None else {**plugin(subject, result), "name": network["name"]}
        counts, stdout = count_call(subject, config["type"], "ADD", config, pod)
        result = json.loads(stdout)
        configs.append(config)
        yield config["type"], "ADD", counts
    for verb, order in (("CHECK", configs), ("DEL", configs[::-1])):
        for config in order:
            plugin_type, call_config = config["type"], {**config, "prevResult": result}
            counts, _ = count_call(subject, plugin_type, verb, call_config, pod, may_fail=verb == "CHECK")
            yield plugin_type, verb, counts


def count_all(subjects: tuple[Subject, Subject]) -> list[Comparison]:
    """Counts the verbs of bridge networks, of chained plugins alone, and of full chains."""
    ours, reference = (dict(_cases(subject)) for subject in subjects)
    titles = list(dict.fromkeys(case.rpartition(" ")[0] for case in ours))
    cases = sorted(ours, key=lambda case: titles.index(case.rpartition(" ")[0]))  # DEL runs a chain in reverse order
    return [Comparison(case, ours[case], reference[case]) for case in cases]


def text(rows: Sequence[Comparison]) -> str:
    """Returns the table as text, each cell podwire / reference."""
    return table(("counts", *_HEAD), [(row.case, *cells(row.ours, row.reference)) for row in rows])


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a report's rows as Markdown."""
    lines = [f"| podwire / reference | {' | '.join(_HEAD)} |", "|---" * (len(_HEAD) + 1) + "|"]
    for row in rows:
        both = (Counts(**row[side]) for side in ("podwire", "reference"))
        lines.append(f"| {row['case']} | {' | '.join(cells(*both))} |")
    return "\n".join(lines)


def cells(ours: Counts, reference: Counts) -> list[str]:
    """Returns a cell for each count."""
    return [f"{one:,} / {two:,}" for one, two in zip(ours, reference, strict=True)]


def _cases(subject: Subject) -> Iterator[tuple[str, Counts]]:
    with namespaces.temporary() as resident, namespaces.temporary() as pod:
        yield "VERSION", count_call(subject, "bridge", "VERSION", {}, pod)[0]
        lo = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}
        for verb in ("ADD", "DEL"):
            yield f"loopback {verb}", count_call(subject, "loopback", verb, lo, pod)[0]
        for kind, title in ((SINGLE, "bridge"), (DUAL, "bridge, dual stack")):
            with subject.resident(subject.network(kind), resident):
                for _, verb, counts in count_chain(subject, kind, [], pod):
                    yield f"{title} {verb}", counts
        for kind, backend in ((IPTABLES, "iptables"), (NFTABLES, "nftables")):
            with subject.resident(subject.network(kind), resident):
                yield from _chains(subject, kind, backend, pod)


def _chains(subject: Subject, kind: Kind, backend: str, pod: Namespace) -> Iterator[tuple[str, Counts]]:
    """Yields the counts of each plugin of a backend once, from the first chain that contains it, and of full chains."""
    one_port, many_ports = chains.host_port(backend), chains.host_port(backend, 100)
    titles = {
        "bridge": f"masquerade, {backend}",
        "portmap": f"1 host port, {backend}:",
        "bandwidth": "2 limits:",
        "firewall": f"firewall, {backend}:",
        "tuning": "tuning:",
    }
    yielded: set[str] = set()
    for title, plugins in (
        ("1 host port, 2 limits", [one_port, Subject.bandwidth]),
        ("1 host port, firewall, tuning", [one_port, Subject.firewall, Subject.tuning]),
    ):
        rows = list(count_chain(subject, kind, plugins, pod))
        for plugin, verb, counts in rows:
            case = f"{titles[plugin]} {verb}"
            is_same = backend == "nftables" and plugin in ("bandwidth", "firewall", "tuning")  # as with iptables
            if case not in yielded and not is_same:
                yield case, counts
            yielded.add(case)
        for verb in ("ADD", "CHECK", "DEL"):
            of_verb = [counts for _, row_verb, counts in rows if row_verb == verb]
            yield f"masquerading bridge, {title}, {backend}: {verb}", _sum(of_verb)
    for plugin, verb, counts in count_chain(subject, kind, [many_ports], pod):
        if plugin == "portmap":
            yield f"100 host ports, {backend}: {verb}", counts


def _sum(several: Iterable[Counts]) -> Counts:
    total = Counts()
    for counts in several:
        total = total.plus(counts)
    return total
