"""What each verb says to the kernel, counted: processes, system calls, files, netlink; ours and the reference's.

One rule: counts, not times. What is counted does not depend on the machine's load, so a test can hold ours to it
(tests/netns/test_conversation.py); the reference's system calls vary a little, since its runtime waits and wakes.
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

# -s: no more of a string is of interest, but as many messages of a send are shown; abbrev=none: all of each.
_STRACE = ("strace", "-f", "-qq", "-s", "4096", "-e", "abbrev=none", "-o")
_TIMEOUT_S = 60

_LINE = re.compile(r"\d+ +(<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_DONE = re.compile(r"= (\d+)[^=]*$")
_SENDS, _RECEIVES = ("sendto", "sendmsg"), ("recvfrom", "recvmsg")
_STARTS = ("fork", "vfork", "clone", "clone3")

_HEAD = ("processes", "system calls", "files opened", "requests", "sends", "receives", "bytes received")


class Talk(NamedTuple):
    """What one or several processes said: `requests` are netlink messages that were sent, `sends` the calls for it."""

    processes: int = 0
    calls: int = 0
    files: int = 0
    requests: int = 0
    sends: int = 0
    receives: int = 0
    received_bytes: int = 0

    def plus(self, other: Talk) -> Talk:
        """Returns the sum of both."""
        return Talk(*(one + two for one, two in zip(self, other, strict=True)))


class Counted(NamedTuple):
    """A verb of a plugin or a chain, with both implementations' counts."""

    case: str
    ours: Talk
    reference: Talk

    def as_json(self) -> Mapping[str, object]:
        """Returns it as what JSON can hold."""
        return {"case": self.case, "podwire": self.ours._asdict(), "reference": self.reference._asdict()}


def count(trace: Iterable[str]) -> Talk:
    """Returns what the lines of `strace -f` tell; a call that another process interrupts is two lines, and one call."""
    found = dict.fromkeys(Talk._fields, 0)
    found["processes"] = 1
    for line in trace:
        matched = _LINE.match(line)
        if not matched:
            continue  # a signal, an end
        resumed, name, rest = matched.groups()
        done = _DONE.search(rest)
        found["calls"] += not resumed
        if name in _STARTS and not resumed:
            found["processes"] += "CLONE_THREAD" not in rest
        elif name in ("open", "openat"):
            found["files"] += bool(done)
        elif name in _SENDS and "nlmsg_len=" in rest:
            found["sends"] += 1
            found["requests"] += rest.count("nlmsg_len=")
        elif name in _RECEIVES and "nlmsg_len=" in rest and done:
            found["receives"] += 1
            found["received_bytes"] += int(done[1])
    return Talk(**found)


def traced(
    subject: Subject, plugin: str, verb: str, config: Config, pod: Namespace, *, may_fail: bool = False
) -> tuple[Talk, bytes]:
    """Runs one call with strace until its last process has ended; returns what was said, and its stdout.

    Raises RuntimeError when the call fails, unless it may.
    """
    call = subject.call(plugin, verb, config, pod)
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-") as trace:
        argv = [*_STRACE, trace.name, call.program]
        done = subprocess.run(  # strace ends with the last one it follows
            argv, input=call.stdin, env=dict(call.env), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0 and not may_fail:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise RuntimeError(f"{subject.label}: {call.program} {verb} failed: {said}")
        return count(trace), done.stdout


def of_chain(
    subject: Subject, kind: Kind, chained: Sequence[Chained], pod: Namespace
) -> Iterator[tuple[str, str, Talk]]:
    """Runs ADD, CHECK and DEL of a chain, and yields the plugin's type, the verb and what was said.

    CHECK of the reference's portmap fails (bench/ports.py) and is counted to its answer.
    """
    network = subject.network(kind)
    configs: list[Config] = []
    result: Config = {}
    for make in [None, *chained]:
        config = network if make is None else {**make(subject, result), "name": network["name"]}
        talk, said = traced(subject, config["type"], "ADD", config, pod)
        result = json.loads(said)
        configs.append(config)
        yield config["type"], "ADD", talk
    for verb, order in (("CHECK", configs), ("DEL", configs[::-1])):
        for config in order:
            full = {**config, "prevResult": result}
            yield config["type"], verb, traced(subject, config["type"], verb, full, pod, may_fail=verb == "CHECK")[0]


def everything(subjects: tuple[Subject, Subject]) -> list[Counted]:
    """Counts the verbs of bridge networks, of chained plugins alone, and of whole chains."""
    ours, reference = (dict(_all(subject)) for subject in subjects)
    titles = list(dict.fromkeys(case.rpartition(" ")[0] for case in ours))
    cases = sorted(ours, key=lambda case: titles.index(case.rpartition(" ")[0]))  # a chain's DEL goes backwards
    return [Counted(case, ours[case], reference[case]) for case in cases]


def text(rows: Sequence[Counted]) -> str:
    """Returns the table to read: in each cell ours / the reference's."""
    return table(("counts", *_HEAD), [(row.case, *cells(row.ours, row.reference)) for row in rows])


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a report's rows."""
    lines = [f"| podwire / reference | {' | '.join(_HEAD)} |", "|---" * (len(_HEAD) + 1) + "|"]
    for row in rows:
        both = (Talk(**row[side]) for side in ("podwire", "reference"))
        lines.append(f"| {row['case']} | {' | '.join(cells(*both))} |")
    return "\n".join(lines)


def cells(ours: Talk, reference: Talk) -> list[str]:
    """Returns a cell for each count."""
    return [f"{one:,} / {two:,}" for one, two in zip(ours, reference, strict=True)]


def _all(subject: Subject) -> Iterator[tuple[str, Talk]]:
    with namespaces.temporary() as resident, namespaces.temporary() as pod:
        yield "VERSION", traced(subject, "bridge", "VERSION", {}, pod)[0]
        lo = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}
        for verb in ("ADD", "DEL"):
            yield f"loopback {verb}", traced(subject, "loopback", verb, lo, pod)[0]
        for kind, title in ((SINGLE, "bridge"), (DUAL, "bridge, dual stack")):
            with subject.resident(subject.network(kind), resident):
                for _, verb, talk in of_chain(subject, kind, [], pod):
                    yield f"{title} {verb}", talk
        for kind, backend in ((IPTABLES, "iptables"), (NFTABLES, "nftables")):
            with subject.resident(subject.network(kind), resident):
                yield from _chains(subject, kind, backend, pod)


def _chains(subject: Subject, kind: Kind, backend: str, pod: Namespace) -> Iterator[tuple[str, Talk]]:
    """Yields each plugin of a backend once, from the chain where it stands, and whole chains."""
    port, many = chains.host_port(backend), chains.host_port(backend, 100)
    titles = {
        "bridge": f"masquerade, {backend}",
        "portmap": f"1 host port, {backend}:",
        "bandwidth": "2 limits:",
        "firewall": f"firewall, {backend}:",
        "tuning": "tuning:",
    }
    shown: set[str] = set()
    for title, plugins in (
        ("1 host port, 2 limits", [port, Subject.limits]),
        ("1 host port, firewall, tuning", [port, Subject.protected, Subject.tuned]),
    ):
        said = list(of_chain(subject, kind, plugins, pod))
        for plugin, verb, talk in said:
            case = f"{titles[plugin]} {verb}"
            if case not in shown and not (backend == "nftables" and plugin in ("bandwidth", "firewall", "tuning")):
                yield case, talk
            shown.add(case)
        for verb in ("ADD", "CHECK", "DEL"):
            whole = [talk for _, of, talk in said if of == verb]
            yield f"masquerading bridge, {title}, {backend}: {verb}", _sum(whole)
    for plugin, verb, talk in of_chain(subject, kind, [many], pod):
        if plugin == "portmap":
            yield f"100 host ports, {backend}: {verb}", talk


def _sum(talks: Iterable[Talk]) -> Talk:
    total = Talk()
    for talk in talks:
        total = total.plus(talk)
    return total
