"""What the agent reports about itself: the conditions on /readyz, metrics, the log and Events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from agent.cluster import Cluster
from agent.events import EventRecorder
from agent.http_server import Answer, Pages, metrics_answer, text_answer
from agent.log import Log
from agent.metrics import Metrics
from agent.networks_source import NetworksSource
from agent.readiness import CONDITIONS, NETWORK, NODE, POLICIES, POOLS, ROUTES, Readiness, joined
from agent.route_report import describe_problems
from agent.routes import Routes
from process.loop import Loop, now

_BEAT_S, _BEAT_MAX_S = 30.0, 120.0


class AgentStatus:
    """The status of the agent. `on_ready` is called when all conditions are met for the first time.

    `is_watching` returns whether the threads of the watch run. `further` are conditions of optional parts.
    """

    def __init__(
        self,
        loop: Loop,
        log: Log,
        metrics: Metrics,
        events: EventRecorder,
        cluster: Cluster,
        routes: Routes,
        source: NetworksSource,
        *further: str,
    ) -> None:
        self._loop, self._log, self._metrics, self._events = loop, log, metrics, events
        self._cluster, self._routes, self._source = cluster, routes, source
        conditions = CONDITIONS if source.are_fixed else (*CONDITIONS, POOLS)
        self._readiness = Readiness((*conditions, *further), self._on_condition)
        self.on_ready: Callable[[], None] = lambda: None
        self.is_watching: Callable[[], bool] = lambda: True
        self._was_ready = self._is_scheduled = False
        self._route_failure: str | None = None
        self._beat_s = now()

    def start(self) -> None:
        """Starts the beat of the main thread, without which /healthz fails."""
        self._beat()

    def _beat(self) -> None:
        self._beat_s = now()
        self._loop.call_at(self._beat_s + _BEAT_S, self._beat)

    def set_condition(self, condition: str, problem: str = "") -> None:
        """Sets the problem of a condition, "" if it is met."""
        self._readiness.set(condition, problem)

    def set_note(self, condition: str, note: str) -> None:
        """Sets the note of a condition, "" for none; logs another one."""
        if self._readiness.set_note(condition, note) and note:
            self._log.write("warning", note)

    def schedule_report(self) -> None:
        """Schedules a report of nodes and routes: one for all events that have arrived, as there may be thousands."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_at(now(), self._report)

    def set_routes(self, failure: str) -> None:
        """Stores the failure of the last change of the routes, "" if it succeeded, and schedules a report."""
        self._route_failure = failure
        self.schedule_report()

    def _report(self) -> None:
        self._is_scheduled = False
        problems, conflicts = self._routes.problems, self._cluster.conflicts
        unreachable = len({problem.node for problem in problems} - {""})
        self._metrics.set_nodes(len(self._cluster.nodes), len(conflicts), self._routes.counters.routes, unreachable)
        self.set_condition(NODE, self.node_problem)
        if self._route_failure is not None:
            of_nodes = chain(describe_problems(problems), conflicts.describe(), self._cluster.describe_wrong())
            self.set_condition(ROUTES, joined(chain([self._route_failure], of_nodes)))
        self.set_note(ROUTES, joined(chain([self._routes.note], conflicts.describe_addresses())))

    @property
    def node_problem(self) -> str:
        """The reason why this node has no certain network, "" if it has one."""
        this = self._cluster.this
        return self._source.problem(self._cluster.name, this, self._cluster.conflicts.describe_of(this))

    @property
    def is_ready(self) -> bool:
        """Whether all conditions are met."""
        return self._readiness.is_ready

    @property
    def is_starting(self) -> bool:
        """Whether a condition is not known yet."""
        return self._readiness.is_starting

    def _on_condition(self, condition: str, problem: str) -> None:
        self._metrics.condition.labels(condition).set(not problem)
        is_ready = self._readiness.is_ready
        self._metrics.ready.set(is_ready)
        if problem:
            self._log.write("error", f"not ready: {condition}: {problem}")
            if condition in (NODE, NETWORK, POLICIES):
                self._events.report("PodNetworkNotReady", f"{condition}: {problem}")
        else:
            self._log.write("info", f"{condition} ok")
        if is_ready and not self._was_ready:
            self._was_ready = True
            self.on_ready()

    def pages(self) -> Pages:
        """Returns the pages of the HTTP server."""
        return {"/healthz": self._health, "/readyz": self._ready, "/metrics": self._metrics_page}

    def _health(self) -> Answer:
        problem = ""
        if now() - self._beat_s >= _BEAT_MAX_S:
            problem = "the main thread has not run for two minutes"
        elif self._loop.failures or not self.is_watching():
            problem = "a part of the agent has ended after an internal error, which the log shows"
        return text_answer(f"{problem or 'ok'}\n", ok=not problem)

    def _ready(self) -> Answer:
        lines = (f"{line}\n" for line in self._readiness.describe())
        return text_answer("".join(lines), ok=self._readiness.is_ready)

    def _metrics_page(self) -> Answer:
        return metrics_answer(self._metrics.render())
