"""The features of the running kernel, for `@pytest.mark.needs("vlan_filtering")`, and the tests that each kernel ran.

As a program it reads the reports of all kernels, prints a summary, and fails if a test ran on no kernel.

One rule: a feature is probed by using it in a temporary namespace; no code depends on kernel versions.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.support import binaries, second_kernel

_ADD_LINKS = "ip link add l0 type veth peer l1; ip link add"
_NAT = "-t nat -A POSTROUTING -m comment --comment c -j MASQUERADE"
_QDISC = "ip link add l0 type veth peer l1; tc qdisc add dev l0"

# Shell commands that succeed if the kernel has the feature; run with -e in a new network namespace.
FEATURES = {
    "vlan_filtering": "ip link add b0 type bridge vlan_filtering 1; ip -d link show b0 | grep -q 'vlan_filtering 1'",
    "vlan_device": f"{_ADD_LINKS} link l0 name l0.5 type vlan id 5",
    "dummy": "ip link add d0 type dummy",
    "macvlan": f"{_ADD_LINKS} link l0 name m0 type macvlan",
    "ipvlan": f"{_ADD_LINKS} link l0 name i0 type ipvlan",
    "vrf": "ip link add vrf0 type vrf table 5",
    "ifb": "ip link add ifb0 type ifb",
    "br_netfilter": "test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
    "nft_bridge": "nft add table bridge t; nft 'add chain bridge t c { type filter hook prerouting priority 0; }'",
    "nft_inet": "nft add table inet t; nft 'add chain inet t c { type filter hook forward priority 0; }'",
    "nft_nat": "nft add table inet t; nft 'add chain inet t c { type nat hook postrouting priority 100; }';"
    "nft add rule inet t c masquerade",
    "nft_queue": "nft add table bridge t; nft 'add chain bridge t c { type filter hook forward priority 0; }';"
    "nft add rule bridge t c queue num 7",
    "iptables_nft_nat": f"iptables-nft {_NAT}; ip6tables-nft {_NAT}",
    "iptables_legacy_nat": f"iptables-legacy {_NAT}; ip6tables-legacy {_NAT}",
    "tbf": f"{_QDISC} root tbf rate 1mbit burst 10kb latency 10ms",
    "htb": f"{_QDISC} root htb",
    "fq": f"{_QDISC} root fq",
    "netem": f"{_QDISC} root netem delay 1ms",
    "matchall": f"{_QDISC} clsact; tc filter add dev l0 ingress matchall action pass",
    "sctp": "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)'",
    "time_namespace": "unshare --time true",
    "user_mode_linux": "command -v linux.uml; ! grep PODWIRE_ /proc/cmdline",  # it cannot run in itself
    "private_kernel": "grep PODWIRE_ /proc/cmdline",  # kernel_boot booted it: modules can be removed, the clock set
    # Not a feature of the network: strace can make system calls fail.
    "syscall_injection": "test $(strace -o /dev/null -e inject=geteuid:retval=77 id -u) = 77",
}

PASSED, FAILED = "passed", "failed"
AGAIN = 32  # in `make test` the second kernel repeats each 32nd of the tests that passed on the first


@functools.cache
def has(feature: str) -> bool:
    """Returns whether the running kernel has a feature of FEATURES; KeyError for an unknown feature."""
    probe = ["unshare", "--net", "sh", "-ec", FEATURES[feature]]
    return subprocess.run(probe, check=False, capture_output=True, timeout=60).returncode == 0


def lacking(needed: Iterable[str]) -> str:
    """Returns a message if the running kernel lacks one of the needed features, "" if it has all of them.

    Also "" without root, which probing needs: such tests then report that they need root.
    """
    if os.geteuid() != 0:
        return ""
    return next((f"this kernel ({os.uname().release}) has no {name}" for name in needed if not has(name)), "")


@dataclass(frozen=True)
class Session:
    """The outcomes of the tests on one kernel, by test ID: PASSED, FAILED or the reason why it was skipped.

    `seconds` has their times, with setup and teardown.
    """

    release: str
    outcomes: Mapping[str, str]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Session:
        """Reads a report that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Writes the report."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    def ran(self) -> set[str]:
        """Returns the tests that were not skipped."""
        return {test for test, outcome in self.outcomes.items() if outcome in (PASSED, FAILED)}


class Recorder:
    """A plugin of pytest that records the outcome of each test and writes a report at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records the outcome of one phase (setup, call, teardown): failed overrides skipped, and skipped passed."""
        before = self._outcomes.get(report.nodeid, PASSED)
        self._seconds[report.nodeid] = round(self._seconds.get(report.nodeid, 0) + report.duration, 3)
        if report.failed:
            self._outcomes[report.nodeid] = FAILED
        elif report.skipped and before != FAILED:
            self._outcomes[report.nodeid] = _reason(report)
        else:
            self._outcomes[report.nodeid] = before

    def pytest_sessionfinish(self) -> None:
        """Writes the report."""
        Session(os.uname().release, self._outcomes, self._seconds).save(self._path)


def passed_elsewhere(directory: Path) -> frozenset[str]:
    """Returns the tests that passed on other kernels, according to the reports in a directory.

    Reports of the running kernel are other shares of this run; ignoring them makes the result independent of timing.
    """
    sessions = map(Session.load, directory.glob("*.json"))
    others = [session for session in sessions if session.release != os.uname().release]
    return frozenset(name for session in others for name, outcome in session.outcomes.items() if outcome == PASSED)


def by_kernel(sessions: Iterable[Session]) -> list[Session]:
    """Returns one session for each kernel, merged from its shares."""
    outcomes: dict[str, dict[str, str]] = {}
    for session in sessions:
        outcomes.setdefault(session.release, {}).update(session.outcomes)
    return [Session(release, whole) for release, whole in outcomes.items()]


def summary(sessions: Sequence[Session]) -> str:
    """Returns a table of the outcomes on each kernel, and the reasons for skipped tests."""
    lines = [f"{'kernel':<24}{'passed':>8}{'failed':>8}{'skipped':>10}"]
    for session in sessions:
        counts = Counter(session.outcomes.values())
        skipped = len(session.outcomes) - counts[PASSED] - counts[FAILED]
        lines.append(f"{session.release:<24}{counts[PASSED]:>8}{counts[FAILED]:>8}{skipped:>10}")
    everywhere = set.intersection(*(session.ran() for session in sessions))
    lines.append(f"ran on every kernel: {len(everywhere)}")
    for session in sessions:
        only = session.ran().difference(*(other.ran() for other in sessions if other is not session))
        lines += [f"ran on {session.release} only: {_by_file(only)}"] if only and len(sessions) > 1 else []
    for session in sessions:
        reasons = Counter(outcome for outcome in session.outcomes.values() if outcome not in (PASSED, FAILED))
        lines += [f"skipped on {session.release}: {number}: {reason}" for reason, number in reasons.most_common()]
    return "\n".join(lines)


def failures(sessions: Sequence[Session]) -> list[str]:
    """Returns a line for each test that failed, on each kernel."""
    return [
        f"failed on {session.release}: {test}"
        for session in sessions
        for test, outcome in session.outcomes.items()
        if outcome == FAILED
    ]


def ran_nowhere(sessions: Sequence[Session]) -> list[str]:
    """Returns a line for each test that was skipped on every kernel, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for session in sessions:
        for test, outcome in session.outcomes.items():
            reasons.setdefault(test, []).append(outcome)
    ran = set().union(*(session.ran() for session in sessions))
    return [f"ran on no kernel: {test}: {'; '.join(why)}" for test, why in reasons.items() if test not in ran]


def problems(sessions: Sequence[Session], *, in_ci: bool) -> list[str]:
    """Returns the problems of a run; outside CI, a run on one kernel may skip tests that need another one."""
    if len(sessions) > 1:
        return failures(sessions) + ran_nowhere(sessions)
    return failures(sessions) + (["only one kernel was tested: CI must test two"] if in_ci else [])


def _reason(report: pytest.TestReport) -> str:
    """Returns why a test was skipped: the third item of file, line, reason."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def _by_file(tests: Iterable[str]) -> str:
    counts = Counter(test.partition("::")[0].rpartition("/")[2] for test in tests)
    return ", ".join(f"{file} {number}" for file, number in sorted(counts.items()))


def main(directory: Path) -> int:
    """Prints the summary of all reports in `directory`; returns 1 if a test failed or ran on no kernel."""
    sessions = by_kernel(Session.load(path) for path in sorted(directory.glob("*.json")))
    if not sessions:
        print(f"no reports of kernels in {directory}", file=sys.stderr)
        return 1
    print(summary(sessions))
    if len(sessions) == 1:
        print(second_kernel.missing() or "the second kernel made no report", file=sys.stderr)
    for problem in (lines := problems(sessions, in_ci=binaries.in_ci())):
        print(problem, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
