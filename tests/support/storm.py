"""A storm: many pods' runtimes at once on one node, what they did, and what must be true of it.

One rule: the model is made of outcomes alone, what each verb said. The real state is looked at when all is quiet
(tests/support/storm_check.py).
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import binaries, hidden_sysctls, namespaces, xtables
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.process_pool import Call, Job, ProcessPool, random_kill_delay_s
from tests.support.tcp import PORT

CHAINED = ("portmap", "bandwidth", "firewall", "tuning")  # behind the interface plugin, in the order of the list
IFNAME = "eth0"
RESULTS = Path("/var/lib/cni/results")  # libcni's cache, hidden by a private one
TRY_AGAIN_LATER = 11

_NAME = "storm"
_FIRST_PORT = 20_000


@dataclass(frozen=True)
class Plan:
    """How hard it blows. `reference` is the directory of the Go plugins, "" when they do not take part.

    `interface` is the plugin that makes the interface, "bridge" or "ptp". With `hidden` some verbs do not see
    /proc/sys: ADD may fail then, and nothing else.
    """

    store: str
    backend: str
    seconds: float
    at_once: int
    containers: int = 200
    seed: int = 0
    reference: str = ""
    tools: str = ""
    killed: float = 0.05  # the share of ADDs and DELs in which one plugin is to be killed
    interface: str = "bridge"
    hidden: bool = False

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins of the list, in order."""
        return (self.interface, *CHAINED)


@dataclass
class Container:
    """A container as its runtime knows it: `state` is absent, present, unknown (to be deleted) or lost (to be GC'd)."""

    number: int
    pod: Namespace
    state: str = "absent"
    busy: bool = False
    disputed: bool = False
    by_reference: bool = False  # whether the Go plugins made any part of it
    result: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Its ID."""
        return f"pod-{self.number}"

    @property
    def address(self) -> str:
        """The address it got; it must be present."""
        assert self.result is not None
        return str(self.result["ips"][0]["address"].partition("/")[0])

    @property
    def host_veth(self) -> str:
        """Its interface on the host; it must have one."""
        assert self.result is not None
        return next(str(each["name"]) for each in self.result["interfaces"] if each["name"].startswith("veth"))

    @property
    def host_port(self) -> int:
        """The port of the host that leads to it."""
        return _FIRST_PORT + self.number

    @property
    def cached(self) -> Path:
        """Its file in libcni's cache."""
        return RESULTS / f"{_NAME}-{self.name}-{IFNAME}"

    def runtime_config(self) -> dict[str, Any]:
        """Returns what the runtime asks for it: TCP, every third one UDP, too, every second one limits."""
        protocols = ("tcp", "udp") if self.number % 3 == 0 else ("tcp",)
        wanted: dict[str, Any] = {
            "portMappings": [
                {"hostPort": self.host_port, "containerPort": PORT, "protocol": protocol} for protocol in protocols
            ]
        }
        if self.number % 2:
            rates = {"ingressRate": 80_000_000, "egressRate": 160_000_000}
            wanted["bandwidth"] = {**rates, "ingressBurst": 8_000_000, "egressBurst": 8_000_000}
        return wanted


@dataclass
class Report:
    """What came of it."""

    problems: list[str] = field(default_factory=list)
    verbs: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    processes: int = 0
    living: int = 0
    seconds: float = 0.0


class Storm:
    """One network on the current host, its containers, and the runtimes that work on them."""

    def __init__(self, plan: Plan, store: Path, containers: list[Container]) -> None:
        self.plan = plan
        self.store = store
        self.containers = containers
        self.report = Report()
        self._chance = random.Random(plan.seed)
        self._used: dict[str, str] = {}  # address: the container that has it
        self._collecting = False
        self._end = 0.0
        self._hidden: Path | None = None

    def run(self) -> None:
        """Lets it blow for the time of the plan, and then has the runtimes clear up what was killed or failed."""
        start = time.monotonic()
        self._end = start + self.plan.seconds
        if self.plan.hidden:
            self._hidden = hidden_sysctls.install(self.store.with_name("hidden"), *self.plan.plugins)
        self._crowd(self.plan.at_once, self._next)
        self._hidden = None
        self.report.seconds = time.monotonic() - start
        self._crowd(8, self._clearing())
        self.report.living = len(self.living())

    @property
    def backups(self) -> Path:
        """Where tuning keeps what interfaces were like."""
        return self.store.with_name(f"{self.store.name}-tuning")

    def living(self) -> list[Container]:
        """Returns those that are attached."""
        return [each for each in self.containers if each.state == "present"]

    def check_all(self) -> None:
        """Has every living attachment checked, when nothing else goes on."""
        self._all(self.living(), self._check)

    def delete_all(self, *, by_reference: bool = False) -> None:
        """Deletes all living attachments, some at a time."""
        self._all(self.living(), partial(self._delete, by_reference=by_reference))
        self.problem(*(f"{each.name} is {each.state} after DEL" for each in self.containers if each.state != "absent"))

    def problem(self, *texts: str) -> None:
        """Notes what must not be."""
        self.report.problems += texts

    def add_like(self, other: Container) -> None:
        """Attaches, here, a container as `other` was elsewhere, with the same address, by the same plugins."""
        own = self.containers[other.number]
        ip = f"IgnoreUnknown=1;IP={other.address}"
        self._crowd(1, iter([self._busy(own, self._add(own, by_reference=other.by_reference, args=ip))]))

    def _crowd(self, at_once: int, works: Any) -> None:
        crowd = ProcessPool(at_once)
        crowd.run(works if callable(works) else lambda: next(works, None))
        self.report.processes += crowd.processes

    def _all(self, containers: list[Container], work: Any) -> None:
        self._crowd(8, iter([self._busy(each, work(each)) for each in containers]))

    def _next(self) -> Job | None:
        """Returns what some runtime does next."""
        if time.monotonic() > self._end:
            return None
        if not self._collecting and self._chance.random() < 0.02:
            return self._collect()
        if self._collecting and self._chance.random() < 0.1:
            lost = [each for each in self.containers if each.state == "lost" and not each.disputed]
            if lost:
                return self._dispute(self._chance.choice(lost))
        idle = [each for each in self.containers if not each.busy and each.state != "lost"]
        if not idle:
            return None
        own = self._chance.choice(idle)
        return self._busy(own, self._verb(own))

    def _verb(self, own: Container) -> Job:
        by_reference = bool(self.plan.reference) and self._chance.random() < 0.3
        fatal = not by_reference and self._chance.random() < self.plan.killed
        if own.state == "absent":
            return self._add(own, by_reference=by_reference, fatal=fatal)
        if own.state == "present" and self._chance.random() < 0.4:
            return self._check(own, by_reference=by_reference)
        if own.state == "unknown":
            by_reference = False
            if not own.by_reference and self._chance.random() < 0.3:
                return self._lose(own)
        elif not by_reference and self._chance.random() < 0.3:
            if not own.by_reference and self._chance.random() < 0.5:
                return self._lose(own)
            own.pod.delete()  # the pod died before its DEL; the reference leaves its rules then
        return self._delete(own, by_reference=by_reference, fatal=fatal)

    def _clearing(self) -> Iterator[Job]:
        """Yields what is left to be done when the storm is over."""
        for own in self.containers:
            if own.state == "unknown":
                yield self._busy(own, self._delete(own))
        yield self._collect(fatal=False)

    def _busy(self, own: Container, work: Job) -> Job:
        own.busy = True
        yield from work
        own.busy = False

    def _add(self, own: Container, *, by_reference: bool = False, fatal: bool = False, args: str = "") -> Job:
        own.state, own.result, own.by_reference = "unknown", None, by_reference
        doomed = self._chance.choice(self.plan.plugins) if fatal else ""
        for plugin in self.plan.plugins:
            call = self._call(own, plugin, "ADD", by_reference, plugin == doomed, args)
            outcome = yield call
            blind = call.program.parent == self._hidden
            if not self._succeeded(own, plugin, "ADD", outcome, by_reference, may_fail=blind):
                return
            own.result = outcome.result()
            if plugin == self.plan.interface:
                owner = self._used.setdefault(own.address, own.name)
                if owner != own.name:
                    self.problem(f"{own.address} was given to {own.name}, and {owner} has it")
        own.state = "present"
        entry = {"kind": "cniCacheV1", "containerId": own.name, "ifName": IFNAME, "networkName": _NAME}
        own.cached.write_text(json.dumps({**entry, "netns": own.pod.path, "result": own.result}))

    def _check(self, own: Container, *, by_reference: bool = False) -> Job:
        # Of Go's, portmap demands rules of IPv6 for a pod without, and bandwidth panics where there are no limits.
        for plugin in self.plan.plugins[:1] if by_reference else self.plan.plugins:
            outcome = yield self._call(own, plugin, "CHECK", by_reference)
            self._succeeded(own, plugin, "CHECK", outcome, by_reference)

    def _delete(self, own: Container, *, by_reference: bool = False, fatal: bool = False) -> Job:
        self._used = {address: name for address, name in self._used.items() if name != own.name}
        own.state = "unknown"
        doomed = self._chance.choice(self.plan.plugins) if fatal else ""
        for plugin in reversed(self.plan.plugins):
            # Go's firewall does not know of our records, which then wait for a GC without the container.
            theirs = by_reference and (own.by_reference or plugin != "firewall")
            outcome = yield self._call(own, plugin, "DEL", theirs, plugin == doomed)
            if not self._succeeded(own, plugin, "DEL", outcome, theirs):
                return
        self._gone(own)

    def _lose(self, own: Container) -> Job:
        """The runtime forgets a container whose pod is gone: the next GC must find what it left."""
        own.state = "lost"
        self._used = {address: name for address, name in self._used.items() if name != own.name}
        own.pod.delete()
        yield from ()

    def _dispute(self, own: Container) -> Job:
        """A late DEL of what GC may be collecting at this moment: each may find what the other is about to delete."""
        own.disputed = True
        for plugin in reversed(self.plan.plugins):
            outcome = yield self._call(own, plugin, "DEL", False)
            self._succeeded(own, plugin, "DEL", outcome, False)
        own.disputed = False

    def _collect(self, *, fatal: bool | None = None) -> Job:
        """GC with all that live, come or go; of those that are not there some are listed, the others wait for it."""
        self._collecting = True
        listed, waiting, lost = [], [], []
        for own in self.containers:
            if (
                own.busy
                or own.state in ("present", "unknown")
                or (own.state == "absent" and self._chance.random() < 0.8)
            ):
                listed.append({"containerID": own.name, "ifname": IFNAME})
                continue
            (lost if own.state == "lost" else waiting).append(own)
            own.busy = True
        doomed = self._chance.choice(self.plan.plugins) if fatal is None and self._chance.random() < 0.1 else ""
        done = []
        for plugin in self.plan.plugins:
            config = self._config(plugin, "1.1.0") | {"cni.dev/valid-attachments": listed}
            kill = random_kill_delay_s(self._chance) if plugin == doomed else None
            outcome = yield Call(self._directory("GC") / plugin, "GC", config, self._variables(), kill)
            done.append(self._succeeded(None, plugin, "GC", outcome, False))
        for own in waiting + lost:
            own.busy = False
        for own in lost:
            if all(done) and not own.disputed:  # otherwise it is the next one's
                self._gone(own)
        self._collecting = False

    def _gone(self, own: Container) -> None:
        own.state, own.result = "absent", None
        own.cached.unlink(missing_ok=True)
        if not own.pod.exists():
            own.pod = namespaces.create()

    def _succeeded(
        self,
        own: Container | None,
        plugin: str,
        verb: str,
        outcome: Outcome,
        by_reference: bool,
        *,
        may_fail: bool = False,
    ) -> bool:
        self.report.verbs[verb] += 1
        if outcome.status == -9:
            self.report.kills += 1
            return False
        if outcome.status == 0:
            return True
        body = json.loads(outcome.stdout or "{}")
        who = "reference " if by_reference else ""
        text = f"{who}{plugin} {verb}: {body.get('code')} {body.get('msg')} | {body.get('details', '')}"
        self.report.errors[text if own is None else text.replace(own.name, "POD")] += 1
        # What Go's plugins cannot do among others is theirs; but nobody may find that a living attachment is not right.
        excused = may_fail or by_reference
        if (verb == "CHECK" or not excused) and body.get("code") != TRY_AGAIN_LATER:
            self.problem(f"{own.name if own else ''} {text} {outcome.stderr}")
        return False

    def _call(
        self, own: Container, plugin: str, verb: str, by_reference: bool, doomed: bool = False, args: str = ""
    ) -> Call:
        config = self._config(plugin, "1.0.0") | {"runtimeConfig": own.runtime_config()}
        if own.result is not None:
            config["prevResult"] = own.result
        directory = Path(self.plan.reference) if by_reference else self._directory(verb)
        variables = {"CNI_CONTAINERID": own.name, "CNI_NETNS": own.pod.path, "CNI_IFNAME": IFNAME, "CNI_ARGS": args}
        kill = random_kill_delay_s(self._chance) if doomed else None
        path = directory if by_reference else None
        return Call(directory / plugin, verb, config, self._variables(path) | variables, kill)

    def _directory(self, verb: str) -> Path:
        """Returns where the plugin of the next call is: some do not see /proc/sys, with which no CHECK can pass."""
        if self._hidden and verb != "CHECK" and self._chance.random() < 0.1:
            return self._hidden
        return binaries.directory()

    def _variables(self, directory: Path | None = None) -> dict[str, str | None]:
        tools = xtables.path(self.plan.tools) if self.plan.tools else {}
        return {"CNI_PATH": str(directory or binaries.directory()), **tools}

    def _config(self, plugin: str, version: str) -> dict[str, Any]:
        own = {"cniVersion": version, "name": _NAME, "type": plugin}
        if plugin == "bandwidth":
            return own | {"capabilities": {"bandwidth": True}}
        if plugin == "portmap":
            return own | {"backend": self.plan.backend, "capabilities": {"portMappings": True}}
        if plugin == "firewall":
            # Debian's makes a bridge's shared rules anew beside ours, which the next of our ADDs tidies up.
            policy = "open" if self.plan.reference or self.plan.interface != "bridge" else "same-bridge"
            return own | {"backend": self.plan.backend, "ingressPolicy": policy}
        if plugin == "tuning":
            sysctl = {"net.ipv4.conf.IFNAME.arp_filter": "1"}
            return own | {"sysctl": sysctl, "mtu": 1400, "dataDir": str(self.backups)}
        ranges, routes = [[{"subnet": "10.22.0.0/24"}]], [{"dst": "0.0.0.0/0"}]
        ipam: dict[str, Any] = {"type": "host-local", "dataDir": str(self.store), "ranges": ranges}
        own |= {"ipMasq": True, "ipMasqBackend": self.plan.backend}
        if plugin == "ptp":
            return own | {"ipam": ipam | {"routes": routes}}
        return own | {
            "bridge": "cni0",
            "isDefaultGateway": True,
            "macspoofchk": not self.plan.reference,  # which runs a program for it that few nodes have
            "ipam": ipam,
        }


def containers(plan: Plan) -> list[Container]:
    """Returns the containers, each with a pod of its own."""
    return [Container(number, namespaces.create()) for number in range(plan.containers)]
