"""A verb that dies at any system call that changes something: the next DEL or GC cleans up, and the next ADD succeeds.

Each verb of each plugin of a whole chain is run under the tracer once to learn its calls, then once for each call and
each end, the signal coming right before the call or when it has taken effect, in the plugin or in one of its children.
A sample of the points is drawn by a fixed seed; `--nightly` runs all of them: beside a neighbour with every way to go
on, on a host of its own, which costs more, with one in turn.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import promises
from tests.support.crash_node import Node, State
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.tracing import GRACE_S, Point, Run, as_subreaper, run_traced

pytestmark = [pytest.mark.timeout(7200), pytest.mark.usefixtures("root", "bin_dir", "orphans")]

MOST_FAILURES = 5  # then the rest is not run: they are mostly of one cause


@dataclass(frozen=True)
class Kind:
    """A host: with a living pod on the network, whose state is compared as well, or that never had a pod."""

    backend: str
    neighbour: bool
    interface: str = "bridge"

    def __str__(self) -> str:
        others = "beside a neighbour" if self.neighbour else "the first pod"
        return ", ".join([self.backend, others, *(["ptp"] if self.interface == "ptp" else [])])

    def create(self, directory: Path) -> Node:
        own = {"interface": self.interface, "spoof": self.neighbour and self.interface == "bridge"}
        return Node.create(directory, self.backend, **own, neighbour=self.neighbour)


KINDS = [Kind(backend, neighbour) for backend in ("iptables", "nftables") for neighbour in (True, False)]
KINDS += [Kind("iptables", neighbour=False, interface="ptp"), Kind("nftables", neighbour=True, interface="ptp")]


@dataclass
class Scene:
    """A pod, and one verb of one plugin that is to run next; `result` is what the runtime has of ADD."""

    node: Node
    pod: Namespace
    verb: str
    plugin: str
    config: dict[str, Any]
    result: dict[str, Any] | None = None

    def run(self, at: Point | None = None, number: signal.Signals = signal.SIGKILL) -> Run:
        """Runs the verb, to a point if one is given.

        When it is killed after a call, its children stand still while the runtime goes on; otherwise they run beside.
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


def scene(node: Node, verb: str, place: int) -> Scene:
    """Brings a node to where the verb of the plugin at `place` in the list is next."""
    pod, chain = node.pod(), node.with_capabilities()
    run = node.runner(pod)
    plugin = chain.plugins[place]
    if verb == "STATUS":
        return Scene(node, pod, verb, plugin["type"], chain.request(plugin, None))
    if verb == "ADD":
        result = None
        for earlier in chain.plugins[:place]:
            result = run(earlier["type"], "ADD", chain.request(earlier, result)).result()
        return Scene(node, pod, verb, plugin["type"], chain.request(plugin, result))
    result = chain.add(run)
    if verb == "GC":
        pod.delete()
        for earlier in chain.plugins[:place]:
            node.runner(None)(
                earlier["type"], "GC", chain.collection(earlier, node.valid_attachments())
            ).assert_silent()
        return Scene(node, pod, verb, plugin["type"], chain.collection(plugin, node.valid_attachments()), result)
    for later in reversed(chain.plugins[place + 1 :]) if verb == "DEL" else ():
        run(later["type"], "DEL", chain.request(later, result)).assert_silent()
    return Scene(node, pod, verb, plugin["type"], chain.request(plugin, result), result)


def deleted(now: Scene) -> None:
    """The runtime deletes with all that it knows."""
    now.node.with_capabilities().delete(now.node.runner(now.pod), now.result)


def deleted_from_memory(now: Scene) -> None:
    """The runtime deletes, and has nothing but the names."""
    now.node.chain.delete(now.node.runner(now.pod), None)


def deleted_when_lost(now: Scene) -> None:
    """The sandbox disappears, then the runtime deletes."""
    now.pod.delete()
    now.node.with_capabilities().delete(now.node.runner(now.pod), now.result)


def collected(now: Scene) -> None:
    """The sandbox disappears, and GC alone cleans."""
    now.pod.delete()
    now.node.chain.collect(now.node.runner(None), now.node.valid_attachments())


WAYS = {
    "ADD": (deleted, collected, deleted_when_lost),
    "DEL": (deleted, collected, deleted_from_memory, deleted_when_lost),
    "CHECK": (deleted, collected),
    "GC": (collected, deleted),
    "STATUS": (deleted,),
}


@pytest.fixture
def orphans() -> Iterator[None]:
    """Makes what a killed plugin leaves running ours to wait for."""
    with as_subreaper():
        yield


class Trial(NamedTuple):
    """A verb of the plugin at `place` in the list, the signal and the point, and the way to go on."""

    verb: str
    place: int
    by: signal.Signals
    point: Point
    way: Callable[[Scene], None]

    def __str__(self) -> str:
        side = "after" if self.point.after else "before"
        where = f"process {self.point.process} of plugin {self.place}'s {self.verb}"
        return f"{self.by.name} {side} call {self.point.number} of {where}, then {self.way.__name__}"


class Bench:
    """Runs trials one after the other on a host of a kind; what fails is noted, and the next one gets a fresh host."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.kind = kind
        self.failures: list[str] = []
        self._directory = directory
        self._made = 0
        self._node: Node | None = None
        self._before: State = {}
        self._shared: State | None = None
        if not kind.neighbour:
            node = self._fresh()
            pod = node.pod()
            node.with_capabilities().delete(node.runner(pod), node.with_capabilities().add(node.runner(pod)))
            self._shared = node.state(pod)
            self.close()

    def close(self) -> None:
        """Removes the host."""
        if self._node:
            self._node.close()
        self._node = None

    def points(self, verb: str) -> Iterator[tuple[int, Point]]:
        """Yields the place in the list of plugins and the point, of all calls of a verb."""
        for place in range(len(self._host().chain.plugins)):
            now = scene(self._host(), verb, place)
            run = now.run()
            assert run.outcome.status == 0, run.outcome
            deleted(now) if verb != "GC" else collected(now)
            self._settle(now)
            self._renew()
            yield from ((place, point) for point in run.points())

    def run(self, trial: Trial) -> bool:
        """Runs a verb to a point, and on from there; tells whether the point was reached."""
        end = killed if trial.by == signal.SIGKILL else terminated
        struck = ""
        try:
            now = scene(self._host(), trial.verb, trial.place)
            may_fail = trial.verb == "ADD" and (end is terminated or trial.point.process > 0)
            earlier = now.node.state(now.pod) if may_fail else self._before
            died = now.run(trial.point, trial.by)
            struck = died.struck
            try:
                end(now, died)
                if may_fail and died.outcome.status == 1 and self.kind.neighbour:
                    now.node.await_state(earlier, None, now.pod)
                trial.way(now)
            finally:
                died.await_orphans()
            self._settle(now)
            self._again(now)
            self._renew()
        except Exception as error:
            self.failures.append(f"{self.kind}: {trial}, {struck or 'not reached'}: {type(error).__name__}: {error}")
            self.close()
        return bool(struck)

    def _settle(self, now: Scene) -> None:
        now.node.await_state(self._before, self._shared, now.pod)
        now.node.check_neighbour()

    def _again(self, now: Scene) -> None:
        """The runtime attaches the pod again (its sandbox, when that is gone, under a new name)."""
        node = now.node
        pod = now.pod if now.pod.exists() else node.pod()
        chain, run = node.with_capabilities(), node.runner(pod)
        result = chain.add(run)
        chain.check(run, result)
        chain.delete(run, result)
        node.await_state(self._before, self._shared, pod)

    def _renew(self) -> None:
        """Gives up a host that is to have its first pod once."""
        if not self.kind.neighbour:
            self.close()

    def _host(self) -> Node:
        if self._node is None:
            self._node = self._fresh()
            self._before = self._node.state(self._node.pod())
        return self._node

    def _fresh(self) -> Node:
        self._made += 1
        directory = self._directory / str(self._made)
        directory.mkdir()
        self._node = self.kind.create(directory)
        return self._node


def killed(now: Scene, died: Run) -> None:
    """Demands that a kill was one; a plugin that lost a child to it must have gone on, or failed in good order."""
    if died.outcome.status != -signal.SIGKILL:
        in_good_order(now, died.outcome)


def terminated(now: Scene, died: Run) -> None:
    """Demands that SIGTERM ends a verb at once, in good order."""
    assert died.took_s < GRACE_S, f"it took {died.took_s:.1f} s to end"
    in_good_order(now, died.outcome)


def in_good_order(now: Scene, outcome: Outcome) -> None:
    if outcome.status:
        outcome.error()
    elif now.verb == "ADD":
        now.result = outcome.result()
    else:
        outcome.assert_silent()


def _drawn(points: list[tuple[int, Point]], count: int, seed: str) -> list[tuple[int, Point]]:
    return random.Random(seed).sample(points, min(len(points), count))


SAMPLE = {"ADD": 7, "DEL": 5, "CHECK": 1, "GC": 3, "STATUS": 1}

# What changes nothing is run beside a neighbour only; so is SIGTERM, since what ADD undoes shows where all that may
# stay is there already.
CASES = [
    pytest.param(kind, verb, by, id=f"{kind}, {by.name} in {verb}")
    for kind in KINDS
    for verb in WAYS
    for by in (signal.SIGKILL, signal.SIGTERM)
    if kind.neighbour or (verb in ("ADD", "DEL", "GC") and by == signal.SIGKILL)
]


@pytest.mark.parametrize(("kind", "verb", "by"), CASES)
def test_nothing_is_lost(kind: Kind, verb: str, by: signal.Signals, tmp_path: Path, nightly: bool) -> None:
    """After a kill or SIGTERM at any call, DEL and GC leave the state of before, and the next ADD succeeds."""
    bench = Bench(kind, tmp_path)
    reached = 0
    try:
        points = list(bench.points(verb))
        if by == signal.SIGTERM:  # between two calls it is all the same when it comes, and children are not asked
            points = [(place, point) for place, point in points if not point.after and point.process == 0]
        ways = WAYS[verb]
        if nightly and kind.neighbour:
            trials = [Trial(verb, place, by, point, way) for place, point in points for way in ways]
        else:
            drawn = points if nightly else _drawn(points, SAMPLE[verb], f"{kind} {verb} {by}")
            trials = [Trial(verb, place, by, point, ways[i % len(ways)]) for i, (place, point) in enumerate(drawn)]
        for trial in trials:
            if len(bench.failures) < MOST_FAILURES:
                reached += bench.run(trial)
    finally:
        bench.close()
    promises.record("crash", **{"kills" if by == signal.SIGKILL else "terms": reached})
    print(f"{kind} {verb} {by.name}: {reached} of {len(trials)} reached")
    if bench.failures:
        pytest.fail(f"{len(bench.failures)} of {reached}:\n" + "\n".join(bench.failures), pytrace=False)
    # Once in a while the kernel is waited for with a call more or less.
    assert reached >= 0.95 * len(trials) - 1, "the verb does not do again what it did under observation"
