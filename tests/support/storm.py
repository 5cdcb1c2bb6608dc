"""A storm: the runtimes of many pods run verbs in parallel on one node, at random, and some verbs are killed.

One rule: the model of the node is computed from the outcomes of verbs alone; storm_check compares it with the kernel.
"""

import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import binaries, namespaces, pod_interfaces, xtables
from tests.support.invocation import Outcome
from tests.support.process_pool import Call, Job, ProcessPool, random_kill_delay_s
from tests.support.storm_plan import IFNAME, NAME, Container, Plan, Report

TRY_AGAIN_LATER = 11  # the error code


class Storm:
    """One network on the current host, its containers and their runtimes."""

    def __init__(self, plan: Plan, store: Path, containers: list[Container]) -> None:
        self.plan = plan
        self.store = store
        self.containers = containers
        self.report = Report()
        self._chance = random.Random(plan.seed)
        self._used: dict[str, str] = {}  # address: the container that it is allocated to
        self._collecting = False
        self._end = 0.0
        self._last_verb = 0

    def run(self) -> None:
        """Runs verbs for the time of the plan, then the DELs and the GC that must follow killed and failed verbs."""
        start = time.monotonic()
        self._end = start + self.plan.seconds
        self._last_verb = self.report.verbs.total() + self.plan.verbs
        self._run_jobs(self.plan.at_once, self._next_job)
        self.report.seconds = time.monotonic() - start
        self._run_jobs(8, self._cleanup())
        self.report.running = len(self.running())

    @property
    def backups(self) -> Path:
        """The directory of original settings of tuning."""
        return self.store.with_name(f"{self.store.name}-tuning")

    def running(self) -> list[Container]:
        """Returns the attached containers."""
        return [each for each in self.containers if each.state == "present"]

    def check_all(self) -> None:
        """Runs CHECK for every running container."""
        self._all(self.running(), self._check)

    def delete_all(self, *, by_reference: bool = False) -> None:
        """Runs DEL for all running containers, eight in parallel."""
        self._all(self.running(), partial(self._delete, by_reference=by_reference))
        self.add_problems(
            *(f"{each.name} is {each.state} after DEL" for each in self.containers if each.state != "absent")
        )

    def add_problems(self, *texts: str) -> None:
        """Adds problems to the report."""
        self.report.problems += texts

    def add_like(self, other: Container) -> None:
        """Attaches a container on this host with the same address and plugins as `other` on another host."""
        container = self.containers[other.number]
        ip = f"IgnoreUnknown=1;IP={other.address}"
        self._run_jobs(1, iter([self._busy(container, self._add(container, by_reference=other.by_reference, args=ip))]))

    def _run_jobs(self, at_once: int, jobs: Any) -> None:
        pool = ProcessPool(at_once)
        pool.run(jobs if callable(jobs) else lambda: next(jobs, None))
        self.report.processes += pool.processes

    def _all(self, containers: list[Container], job: Any) -> None:
        self._run_jobs(8, iter([self._busy(each, job(each)) for each in containers]))

    def _next_job(self) -> Job | None:
        """Returns the next job of a random runtime."""
        if time.monotonic() > self._end and self.report.kills and self.report.verbs.total() > self._last_verb:
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
        container = self._chance.choice(idle)
        return self._busy(container, self._choose_verb(container))

    def _choose_verb(self, container: Container) -> Job:
        by_reference = bool(self.plan.reference) and self._chance.random() < 0.3
        fatal = not by_reference and self._chance.random() < self.plan.killed
        if container.state == "absent":
            return self._add(container, by_reference=by_reference, fatal=fatal)
        if container.state == "present" and self._chance.random() < 0.4:
            return self._check(container, by_reference=by_reference)
        if container.state == "unknown":
            by_reference = False
            if not container.by_reference and self._chance.random() < 0.3:
                return self._forget(container)
        elif not by_reference and self._chance.random() < 0.3:
            if not container.by_reference and self._chance.random() < 0.5:
                return self._forget(container)
            container.end_pod(
                self.plan.interface
            )  # the pod ended before its DEL; the reference plugins then leave its rules
        return self._delete(container, by_reference=by_reference, fatal=fatal)

    def _cleanup(self) -> Iterator[Job]:
        """Yields the jobs that must follow the storm."""
        for container in self.containers:
            if container.state == "unknown":
                yield self._busy(container, self._delete(container))
        yield self._collect(fatal=False)

    def _busy(self, container: Container, job: Job) -> Job:
        container.busy = True
        yield from job
        container.busy = False

    def _add(self, container: Container, *, by_reference: bool = False, fatal: bool = False, args: str = "") -> Job:
        container.state, container.result, container.by_reference = "unknown", None, by_reference
        doomed = self._chance.choice(self.plan.plugins) if fatal else ""
        for plugin in self.plan.plugins:
            outcome = yield self._call(container, plugin, "ADD", by_reference, plugin == doomed, args)
            if not self._succeeded(container, plugin, "ADD", outcome, by_reference):
                return
            container.result = outcome.result()
            if plugin == self.plan.interface:
                owner = self._used.setdefault(container.address, container.name)
                if owner != container.name:
                    self.add_problems(f"{container.address} was allocated to {container.name}, but {owner} has it")
        container.state = "present"
        entry = {"kind": "cniCacheV1", "containerId": container.name, "ifName": IFNAME, "networkName": NAME}
        container.cached.write_text(json.dumps({**entry, "netns": container.pod.path, "result": container.result}))

    def _check(self, container: Container, *, by_reference: bool = False) -> Job:
        # Reference portmap requires IPv6 rules even for an IPv4 pod, and reference bandwidth panics without limits.
        for plugin in self.plan.plugins[:1] if by_reference else self.plan.plugins:
            outcome = yield self._call(container, plugin, "CHECK", by_reference)
            self._succeeded(container, plugin, "CHECK", outcome, by_reference)

    def _delete(self, container: Container, *, by_reference: bool = False, fatal: bool = False) -> Job:
        self._used = {address: name for address, name in self._used.items() if name != container.name}
        container.state = "unknown"
        doomed = self._chance.choice(self.plan.plugins) if fatal else ""
        for plugin in reversed(self.plan.plugins):
            # The reference firewall ignores podwire's records, which then wait for a GC without the container.
            theirs = by_reference and (container.by_reference or plugin != "firewall")
            outcome = yield self._call(container, plugin, "DEL", theirs, plugin == doomed)
            if not self._succeeded(container, plugin, "DEL", outcome, theirs):
                return
        self._forget_attachment(container)

    def _forget(self, container: Container) -> Job:
        """The runtime forgets a container whose pod no longer runs: the next GC must remove its objects."""
        container.state = "lost"
        self._used = {address: name for address, name in self._used.items() if name != container.name}
        container.end_pod(self.plan.interface)
        yield from ()

    def _dispute(self, container: Container) -> Job:
        """A late DEL of a container that GC may be collecting in parallel."""
        container.disputed = True
        for plugin in reversed(self.plan.plugins):
            outcome = yield self._call(container, plugin, "DEL", False)
            self._succeeded(container, plugin, "DEL", outcome, False)
        container.disputed = False

    def _collect(self, *, fatal: bool | None = None) -> Job:
        """GC that lists all running, starting and stopping containers and some absent ones; the others wait for it."""
        self._collecting = True
        listed: list[dict[str, str]] = []
        waiting: list[Container] = []
        lost: list[Container] = []
        for container in self.containers:
            if (
                container.busy
                or container.state in ("present", "unknown")
                or (container.state == "absent" and self._chance.random() < 0.8)
            ):
                listed.append({"containerID": container.name, "ifname": IFNAME})
                continue
            (lost if container.state == "lost" else waiting).append(container)
            container.busy = True
        doomed = self._chance.choice(self.plan.plugins) if fatal is None and self._chance.random() < 0.1 else ""
        done = []
        for plugin in self.plan.plugins:
            config = self._config(plugin, "1.1.0") | {"cni.dev/valid-attachments": listed}
            kill = random_kill_delay_s(self._chance) if plugin == doomed else None
            outcome = yield Call(binaries.directory() / plugin, "GC", config, self._variables(), kill)
            done.append(self._succeeded(None, plugin, "GC", outcome, False))
        for container in waiting + lost:
            container.busy = False
        for container in lost:
            if all(done) and not container.disputed:  # otherwise the next GC collects it
                self._forget_attachment(container)
        self._collecting = False

    def _forget_attachment(self, container: Container) -> None:
        container.state, container.result = "absent", None
        container.cached.unlink(missing_ok=True)
        if not container.pod.exists():
            container.pod = namespaces.create()

    def _succeeded(
        self, container: Container | None, plugin: str, verb: str, outcome: Outcome, by_reference: bool
    ) -> bool:
        self.report.verbs[verb] += 1
        if outcome.status == -9:
            self.report.kills += 1
            return False
        if outcome.status == 0:
            return True
        body = json.loads(outcome.stdout or "{}")
        prefix = "reference " if by_reference else ""
        text = f"{prefix}{plugin} {verb}: {body.get('code')} {body.get('msg')} | {body.get('details', '')}"
        self.report.errors[text if container is None else text.replace(container.name, "POD")] += 1
        # The reference plugins may fail in parallel; but a CHECK of a running container must never fail.
        if (verb == "CHECK" or not by_reference) and body.get("code") != TRY_AGAIN_LATER:
            self.add_problems(f"{container.name if container else ''} {text} {outcome.stderr}")
        return False

    def _call(
        self, container: Container, plugin: str, verb: str, by_reference: bool, doomed: bool = False, args: str = ""
    ) -> Call:
        config = self._config(plugin, "1.0.0") | pod_interfaces.keys_of_pod(plugin, container.number)
        config["runtimeConfig"] = container.runtime_config()
        if container.result is not None:
            config["prevResult"] = container.result
        directory = Path(self.plan.reference) if by_reference else binaries.directory()
        variables = {
            "CNI_CONTAINERID": container.name,
            "CNI_NETNS": container.pod.path,
            "CNI_IFNAME": IFNAME,
            "CNI_ARGS": args,
        }
        kill = random_kill_delay_s(self._chance) if doomed else None
        path = directory if by_reference else None
        return Call(directory / plugin, verb, config, self._variables(path) | variables, kill)

    def _variables(self, directory: Path | None = None) -> dict[str, str | None]:
        tools = xtables.path(self.plan.tools) if self.plan.tools else {}
        return {"CNI_PATH": str(directory or binaries.directory()), **tools}

    def _config(self, plugin: str, version: str) -> dict[str, Any]:
        config: dict[str, Any] = {"cniVersion": version, "name": NAME, "type": plugin}
        if plugin == "bandwidth":
            return config | {"capabilities": {"bandwidth": True}}
        if plugin == "portmap":
            return config | {"backend": self.plan.backend, "capabilities": {"portMappings": True}}
        if plugin == "firewall":
            # Debian's firewall adds a bridge's shared rules again; podwire's next ADD removes the duplicates.
            policy = "open" if self.plan.reference or self.plan.interface != "bridge" else "same-bridge"
            return config | {"backend": self.plan.backend, "ingressPolicy": policy}
        if plugin == "tuning":
            sysctl = {"net.ipv4.conf.IFNAME.arp_filter": "1"}
            return config | {"sysctl": sysctl, "mtu": 1400, "dataDir": str(self.backups)}
        if plugin == "vrf":
            return config | {"vrfname": "blue"}
        if plugin == "sbr":
            return config
        ranges, routes = [[{"subnet": "10.22.0.0/24"}]], [{"dst": "0.0.0.0/0"}]
        ipam: dict[str, Any] = {"type": "host-local", "dataDir": str(self.store), "ranges": ranges}
        if plugin in pod_interfaces.KEYS:
            return config | pod_interfaces.options(plugin, 0, self.store) | {"ipam": ipam | {"routes": routes}}
        config |= {"ipMasq": True, "ipMasqBackend": self.plan.backend}
        if plugin == "ptp":
            return config | {"ipam": ipam | {"routes": routes}}
        return config | {
            "bridge": "cni0",
            "isDefaultGateway": True,
            "macspoofchk": not self.plan.reference,  # the reference plugin runs a program that few nodes have
            "ipam": ipam,
        }
