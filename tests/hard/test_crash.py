"""Each verb is killed at each system call that changes something: the next DEL or GC cleans up, the next ADD succeeds.

The tracer runs each verb of each plugin of a chain once to list its calls, then once for each point and signal: the
signal is sent directly before or after a call, in the plugin or in one of its children. A fixed seed draws a sample of
the points; `--nightly` runs all of them. On a host with a neighbour each point is followed by every recovery, on a new
host, which takes more time, by one recovery in turn.
"""

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import promises
from tests.support.crash_node import INTERFACES, Node, State
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.tracing import GRACE_S, Point, Run, as_subreaper, run_traced

pytestmark = [pytest.mark.timeout(7200), pytest.mark.usefixtures("root", "bin_dir", "orphans")]

MOST_FAILURES = 5  # after these the test stops: most failures have one cause


@dataclass(frozen=True)
class Kind:
    """A kind of host: with a running pod whose state is compared, too, or without any earlier pod."""

    backend: str
    neighbour: bool
    interface: str = "bridge"

    def __str__(self) -> str:
        others = "beside a neighbour" if self.neighbour else "the first pod"
        return ", ".join(
            [*filter(None, [self.backend]), others, *([self.interface] if self.interface != "bridge" else [])]
        )

    def create(self, directory: Path) -> Node:
        options: dict[str, Any] = {"interface": self.interface, "spoof": self.neighbour and self.interface == "bridge"}
        return Node.create(directory, self.backend, **options, neighbour=self.neighbour)


KINDS = [Kind(backend, neighbour) for backend in ("iptables", "nftables") for neighbour in (True, False)]
KINDS += [Kind("iptables", neighbour=False, interface="ptp"), Kind("nftables", neighbour=True, interface="ptp")]
# hostAccess creates a link with the first pod, and deletes it with the last one.
KINDS += [Kind("", neighbour=True, interface=interface) for interface in INTERFACES]
KINDS += [Kind("", neighbour=False, interface="macvlan")]


@dataclass
class Step:
    """A pod and the next verb of one plugin; `result` is the runtime's cached result of ADD."""

    node: Node
    pod: Namespace
    verb: str
    plugin: str
    config: dict[str, Any]
    result: dict[str, Any] | None = None

    def run(self, at: Point | None = None, number: signal.Signals = signal.SIGKILL) -> Run:
        """Runs the verb, with a signal at a point if given.

        Children of a verb that is killed after a call are stopped during the recovery; otherwise they run in parallel.
        """
        pod = None if self.verb in ("GC", "STATUS") else self.pod
        return run_traced(
            self.node.host,
            self.plugin,
            self.verb,
            self.config,
            self.node.variables(pod),
            at,
            number,
            hold=at is not None and at.after,
        )


def prepare_step(node: Node, verb: str, place: int) -> Step:
    """Runs the verbs that precede the verb of the plugin at `place` in the list."""
    pod, chain = node.pod(), node.with_capabilities()
    run = node.runner(pod)
    plugin = chain.plugins[place]
    if verb == "STATUS":
        return Step(node, pod, verb, plugin["type"], chain.request(plugin, None))
    if verb == "ADD":
        result = None
        for earlier in chain.plugins[:place]:
            result = run(earlier["type"], "ADD", chain.request(earlier, result)).result()
        return Step(node, pod, verb, plugin["type"], chain.request(plugin, result))
    result = chain.add(run)
    if verb == "GC":
        node.end_pod(pod)
        for earlier in chain.plugins[:place]:
            node.runner(None)(
                earlier["type"], "GC", chain.collection(earlier, node.valid_attachments())
            ).assert_silent()
        return Step(node, pod, verb, plugin["type"], chain.collection(plugin, node.valid_attachments()), result)
    for later in reversed(chain.plugins[place + 1 :]) if verb == "DEL" else ():
        run(later["type"], "DEL", chain.request(later, result)).assert_silent()
    return Step(node, pod, verb, plugin["type"], chain.request(plugin, result), result)


def delete(step: Step) -> None:
    """Runs DEL with the cached result."""
    step.node.with_capabilities().delete(step.node.runner(step.pod), step.result)


def delete_without_result(step: Step) -> None:
    """Runs DEL without a cached result."""
    step.node.chain.delete(step.node.runner(step.pod), None)


def delete_without_netns(step: Step) -> None:
    """Deletes the sandbox, then runs DEL."""
    step.node.end_pod(step.pod)
    step.node.with_capabilities().delete(step.node.runner(step.pod), step.result)


def collect(step: Step) -> None:
    """Deletes the sandbox, then runs GC alone."""
    step.node.end_pod(step.pod)
    step.node.chain.collect(step.node.runner(None), step.node.valid_attachments())


def repair_and_delete(step: Step) -> None:
    """Runs `podwire repair` while the pod is running, then DEL."""
    step.node.repair(step.pod, step.result)
    delete(step)


def repair_and_collect(step: Step) -> None:
    """Deletes the sandbox, runs `podwire repair`, then GC alone."""
    step.node.end_pod(step.pod)
    step.node.repair(step.pod, step.result)
    step.node.chain.collect(step.node.runner(None), step.node.valid_attachments())


RECOVERIES = {
    "ADD": (delete, collect, delete_without_netns),
    "DEL": (delete, collect, delete_without_result, delete_without_netns),
    "CHECK": (delete, collect),
    "GC": (collect, delete),
    "STATUS": (delete,),
}
# Interfaces that `podwire repair` restores, or returns to the host.
REPAIRED = ("macvlan", "host-device")
REPAIRS = (repair_and_delete, repair_and_collect)


@pytest.fixture
def orphans() -> Iterator[None]:
    """Makes a killed plugin's children the children of the test, which waits for them."""
    with as_subreaper():
        yield


class Trial(NamedTuple):
    """A verb of the plugin at `place` in the list, a signal, a point and a recovery."""

    verb: str
    place: int
    by: signal.Signals
    point: Point
    recovery: Callable[[Step], None]

    def __str__(self) -> str:
        side = "after" if self.point.after else "before"
        where = f"process {self.point.process} of plugin {self.place}'s {self.verb}"
        return f"{self.by.name} {side} call {self.point.number} of {where}, then {self.recovery.__name__}"


class TrialRunner:
    """Runs trials sequentially on a host of one kind; records failures, after which it creates a new host."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.kind = kind
        self.failures: list[str] = []
        self._directory = directory
        self._hosts_created = 0
        self._node: Node | None = None
        self._before: State = {}
        self._shared: State | None = None
        if not kind.neighbour:
            node = self._create_host()
            pod = node.pod()
            node.with_capabilities().delete(node.runner(pod), node.with_capabilities().add(node.runner(pod)))
            self._shared = node.state(pod)
            self.close()

    def close(self) -> None:
        """Deletes the host."""
        if self._node:
            self._node.close()
        self._node = None

    def points(self, verb: str) -> Iterator[tuple[int, Point]]:
        """Yields all points of a verb, each with the plugin's place in the list."""
        for place in range(len(self._host().chain.plugins)):
            step = prepare_step(self._host(), verb, place)
            run = step.run()
            assert run.outcome.status == 0, run.outcome
            delete(step) if verb != "GC" else collect(step)
            self._assert_clean(step)
            self._close_if_used()
            yield from ((place, point) for point in run.points())

    def run(self, trial: Trial) -> bool:
        """Runs a trial; returns whether its point was reached."""
        assert_end = assert_killed if trial.by == signal.SIGKILL else assert_terminated
        signalled_call = ""
        try:
            step = prepare_step(self._host(), trial.verb, trial.place)
            may_fail = trial.verb == "ADD" and (assert_end is assert_terminated or trial.point.process > 0)
            earlier = step.node.state(step.pod) if may_fail else self._before
            run = step.run(trial.point, trial.by)
            signalled_call = run.signalled_call
            try:
                assert_end(step, run)
                if may_fail and run.outcome.status == 1 and self.kind.neighbour:
                    step.node.await_state(earlier, None, step.pod)
                trial.recovery(step)
            finally:
                run.await_orphans()
            self._assert_clean(step)
            self._attach_again(step)
            self._close_if_used()
        except Exception as error:
            self.failures.append(
                f"{self.kind}: {trial}, {signalled_call or 'not reached'}: {type(error).__name__}: {error}"
            )
            self.close()
        return bool(signalled_call)

    def _assert_clean(self, step: Step) -> None:
        step.node.await_state(self._before, self._shared, step.pod)
        step.node.check_neighbour()

    def _attach_again(self, step: Step) -> None:
        """Attaches and detaches the pod again, in a new namespace if the old one is missing."""
        node = step.node
        pod = step.pod if step.pod.exists() else node.pod()
        chain, run = node.with_capabilities(), node.runner(pod)
        result = chain.add(run)
        chain.check(run, result)
        chain.delete(run, result)
        node.await_state(self._before, self._shared, pod)

    def _close_if_used(self) -> None:
        """Closes a host that must have no earlier pod."""
        if not self.kind.neighbour:
            self.close()

    def _host(self) -> Node:
        if self._node is None:
            self._node = self._create_host()
            self._before = self._node.state(self._node.pod())
        return self._node

    def _create_host(self) -> Node:
        self._hosts_created += 1
        directory = self._directory / str(self._hosts_created)
        directory.mkdir()
        self._node = self.kind.create(directory)
        return self._node


def assert_killed(step: Step, run: Run) -> None:
    """Asserts that the plugin was killed; a plugin whose child was killed must succeed or report a failure."""
    if run.outcome.status != -signal.SIGKILL:
        assert_valid_outcome(step, run.outcome)


def assert_terminated(step: Step, run: Run) -> None:
    """Asserts that SIGTERM ends a verb at once, with a success or a reported failure."""
    assert run.duration_s < GRACE_S, f"it took {run.duration_s:.1f} s to end"
    assert_valid_outcome(step, run.outcome)


def assert_valid_outcome(step: Step, outcome: Outcome) -> None:
    if outcome.status:
        outcome.error()
    elif step.verb == "ADD":
        step.result = outcome.result()
    else:
        outcome.assert_silent()


def _sample(points: list[tuple[int, Point]], count: int, seed: str) -> list[tuple[int, Point]]:
    return random.Random(seed).sample(points, min(len(points), count))


SAMPLE = {"ADD": 7, "DEL": 5, "CHECK": 1, "GC": 3, "STATUS": 1}

# Verbs that change nothing run only on the host with a neighbour. So does SIGTERM: there all objects that may remain
# exist already, so that an incomplete rollback of ADD is visible.
CASES = [
    pytest.param(kind, verb, by, id=f"{kind}, {by.name} in {verb}")
    for kind in KINDS
    for verb in RECOVERIES
    for by in (signal.SIGKILL, signal.SIGTERM)
    if kind.neighbour or (verb in ("ADD", "DEL", "GC") and by == signal.SIGKILL)
]


@pytest.mark.parametrize(("kind", "verb", "by"), CASES)
def test_killed_verb_leaks_nothing(kind: Kind, verb: str, by: signal.Signals, tmp_path: Path, nightly: bool) -> None:
    """After SIGKILL or SIGTERM at any call, DEL and GC restore the earlier state, and the next ADD succeeds."""
    runner = TrialRunner(kind, tmp_path)
    reached = 0
    try:
        points = list(runner.points(verb))
        if by == signal.SIGTERM:  # its time between two calls makes no difference; children do not get it
            points = [(place, point) for place, point in points if not point.after and point.process == 0]
        recoveries = RECOVERIES[verb]
        if kind.interface in REPAIRED and verb in ("ADD", "DEL"):
            recoveries = (*recoveries, *(REPAIRS if kind.neighbour else REPAIRS[:1]))
        if nightly and kind.neighbour:
            trials = [Trial(verb, place, by, point, recovery) for place, point in points for recovery in recoveries]
        else:
            some = points if nightly else _sample(points, SAMPLE[verb], f"{kind} {verb} {by}")
            trials = [
                Trial(verb, place, by, point, recoveries[i % len(recoveries)]) for i, (place, point) in enumerate(some)
            ]
        for trial in trials:
            if len(runner.failures) < MOST_FAILURES:
                reached += runner.run(trial)
    finally:
        runner.close()
    promises.record("crash", **{"kills" if by == signal.SIGKILL else "terms": reached})
    print(f"{kind} {verb} {by.name}: {reached} of {len(trials)} reached")
    if runner.failures:
        pytest.fail(f"{len(runner.failures)} of {reached}:\n" + "\n".join(runner.failures), pytrace=False)
    # Sometimes a verb needs one call more or less to wait for the kernel.
    assert reached >= 0.95 * len(trials) - 1, "the verb makes other calls than in the first run"
