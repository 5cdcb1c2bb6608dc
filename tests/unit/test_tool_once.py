"""What the tool does once, however many pods and networks a node has: programs, CHECK, a backend's probe."""

import sys

from attachment.presence import Presence
from cni.conf import Attachment
from kernel.netfilter.backends import Backend, Backends
from kernel.netfilter.iptables_program import RESOURCE_PROBLEM
from podwire.attachments import CachedAttachment
from podwire.checking import Checker
from podwire.programs_once import ProgramsOnce
from process.child import ChildCommand, Notice

_APPENDS = "import sys; open(sys.argv[1], 'a').write('x'); print(sys.argv[2]); sys.exit(int(sys.argv[2]))"


def run(system, path, *statuses):
    """Runs a program for each status; returns the statuses that it ended with, and how often it has run."""
    commands = [
        ChildCommand((sys.executable, "-c", _APPENDS, str(path), str(one)), {}, capture_stderr=True) for one in statuses
    ]
    outcomes = system.run_programs(*commands, limit_s=60.0, notice=Notice(60.0, lambda: None))
    return [one.status for one in outcomes], len(path.read_text())


def test_equal_programs_run_once(tmp_path):
    """Equal programs run once, others are run, and one that failed for lack of a resource is repeated."""
    system, path = ProgramsOnce(), tmp_path / "runs"
    assert run(system, path, 0) == ([0], 1)
    assert run(system, path, 0, 3) == ([0, 3], 2)
    assert run(system, path, 3, 0) == ([3, 0], 2)
    assert run(system, path, RESOURCE_PROBLEM) == ([RESOURCE_PROBLEM], 3)
    assert run(system, path, RESOURCE_PROBLEM, 0) == ([RESOURCE_PROBLEM, 0], 4)


def test_an_attachment_is_checked_once():
    """A second check of an attachment returns the first verdict: `podwire metrics` needs it twice."""
    one = CachedAttachment("path", "net", Attachment("a", "eth0"), "/run/netns/a", Presence.HERE)
    checker = Checker({}, {}, ())
    assert checker.check(one) is checker.check(one)


class Probed(Backend[object]):
    """A backend that counts its probes."""

    def __init__(self, problem):
        self.problem, self.probes = problem, 0

    def add(self, desired):
        """Does nothing."""

    def check(self, desired):
        """Does nothing."""

    def get_problem(self):
        """Returns the problem."""
        self.probes += 1
        return self.problem


def test_the_second_backend_is_probed_only_without_the_first():
    """With no backend configured, nftables is probed only if iptables does not work."""
    for first, second, problem, probes in (
        ("", "b", "", 0),
        ("a", "", "", 1),
        ("a", "b", "iptables: a; nftables: b", 1),
    ):
        one, other = Probed(first), Probed(second)
        assert Backends(one, other, "").get_problem("") == problem
        assert (one.probes, other.probes) == (1, probes)
