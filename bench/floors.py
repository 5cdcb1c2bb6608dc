"""Floors: the time of the kernel's work alone for a verb, below which no implementation can get.

One rule: a floor is a static C program that only sends the verb's requests to the kernel: floor.c requests written by
hand, replay.c those that podwire sent. It is measured as a whole process, in alternation with the implementations.
Without a C compiler there are no floors, and a message says so.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import replay
from bench.cases import Floor, Samples
from bench.process import Invocation, Run, run, wait_all
from bench.subject import Chained, Config, Subject
from tests.support.namespaces import Namespace
from tests.support.netstate import links
from tests.support.processes import output

_SOURCES = {name: Path(__file__).with_name(f"{name}.c") for name in ("floor", "replay")}
_OFFSET = 50_000  # of its address in a network's subnet; host-local does not get this far
_INDEX = 900_000  # of its link on the host; no other link has one as high
_VERBS = ("ADD", "CHECK")


class Floors:
    """The compiled programs in `directory`, and the floor of each case."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._leases = directory / "floor-leases"
        self._leases.mkdir()
        self._numbers = itertools.count()
        self._start_ms = math.inf

    def version(self) -> Samples:
        """Measures a process that does nothing."""
        return {"VERSION": self._run("VERSION", {})}

    def bridge(self, name: str, network: Config, pod: Namespace) -> Floor:
        """Returns the floor of bridge's ADD and CHECK, on the bridge of `network`."""
        env = _floor_env(network, pod)

        def measure() -> Samples:
            samples = {f"{name} {verb}": self._run(verb, env) for verb in _VERBS}
            self._run("DEL", env)  # not measured: it waits for the kernel, which podwire's DEL does not
            return samples

        return _guarded(name, measure)

    def leases(self, title: str) -> Floor:
        """Returns the floor of host-local's verbs; `title` is a case's title with {} for the verb."""
        env = {"ADDRESS": "10.112.0.77"}
        return lambda: {title.format(verb): self._run(f"LEASE {verb}", env) for verb in ("ADD", "CHECK", "DEL")}

    def replayed(self, name: str, subject: Subject, config: Config, pod: Namespace) -> Floor:
        """Returns the floor of a chained plugin's ADD and CHECK for a pod that stays, recorded from `subject`."""
        files, _ = self._record(subject, config, pod)

        def undo() -> None:
            self._delete(subject, [config], pod)

        undo()

        def measure() -> Samples:
            samples = {f"{name} {verb}": self._replay(files[verb], pod) for verb in _VERBS}
            undo()
            return samples

        return _guarded(name, measure, undo)

    def chain(
        self, name: str, subject: Subject, network: Config, chained: Sequence[Chained], pods: Sequence[Namespace]
    ) -> Floor:
        """Returns the floor of a masquerading bridge with chained plugins: the sum of their processes.

        floor.c attaches the first pod; the rules of the bridge are recorded with the second one, attached by `subject`.
        """
        env, (pod, other) = _floor_env(network, pods[0]), pods
        files: list[dict[str, Path]] = []
        configs: list[Config] = []

        def undo() -> None:
            self._delete(subject, configs[::-1], pod)
            self._run("DEL", env)
            self._delete(subject, [bridge], other)

        for _ in range(2):  # the first ADD also creates shared chains, which DEL keeps
            masquerade, stdout = self._record(subject, network, other, only_netfilter=True)
            bridge = {**network, "prevResult": json.loads(stdout)}
            self._run("ADD", env)
            files, configs = self._record_chained(subject, network, chained, _result(network, env, pod), pod)
            undo()

        def measure() -> Samples:
            samples = {}
            for verb in _VERBS:
                # Subtracted: a bridge and its rules are one process, but floor.c and replay.c are two.
                start = self._run("VERSION", {})
                self._start_ms = min(self._start_ms, start.ms)
                runs = [self._run(verb, env), self._replay(masquerade[verb], other)]
                runs += [self._replay(by_verb[verb], pod) for by_verb in files]
                samples[f"{name} {verb}"] = Run(start.outcome, sum(run.ms for run in runs) - self._start_ms, 0)
            undo()
            return samples

        return _guarded(name, measure, undo)

    def _record_chained(
        self, subject: Subject, network: Config, chained: Sequence[Chained], result: Config, pod: Namespace
    ) -> tuple[list[dict[str, Path]], list[Config]]:
        """Records the chained plugins after `result`; returns their recordings, and their configurations for DEL."""
        files, configs = [], []
        for plugin in chained:
            configs.append({**plugin(subject, result), "name": network["name"]})
            by_verb, stdout = self._record(subject, configs[-1], pod)
            files.append(by_verb)
            result = json.loads(stdout)
        return files, [{**config, "prevResult": result} for config in configs]

    def _record(
        self, subject: Subject, config: Config, pod: Namespace, *, only_netfilter: bool = False
    ) -> tuple[dict[str, Path], bytes]:
        """Runs a plugin's ADD and CHECK; returns the recording of each, and the stdout of ADD."""
        files, result = {}, b""
        for verb in _VERBS:
            verb_config = config if verb == "ADD" else {**config, "prevResult": json.loads(result)}
            call = subject.call(config["type"], verb, verb_config, pod)
            recording, stdout = replay.record(call, pod.path, only_netfilter=only_netfilter)
            result = result or stdout
            files[verb] = self._directory / f"recording-{next(self._numbers)}"
            files[verb].write_bytes(recording)
        return files, result

    def _replay(self, file: Path, pod: Namespace) -> Run:
        return self._start("replay", {"CNI_NETNS": pod.path, "RECORDING": str(file)})

    def _delete(self, subject: Subject, configs: Sequence[Config], pod: Namespace) -> None:
        for config in configs:
            subject.run(config["type"], "DEL", config, pod)
            wait_all()

    def _run(self, verb: str, env: dict[str, str]) -> Run:
        return self._start("floor", {"FLOOR": verb, "LEASES": str(self._leases), **env})

    def _start(self, program: str, env: dict[str, str]) -> Run:
        measured = run(Invocation(str(self._directory / program), env))
        if measured.outcome.status != 0:
            raise RuntimeError(f"a floor failed: {program} {env}: {measured.outcome.stderr}")
        return measured


def _guarded(name: str, measure: Floor, undo: Callable[[], None] = lambda: None) -> Floor:
    """Returns a floor that prints its first failure and is not measured again; other floors are."""
    failures: list[RuntimeError] = []

    def guarded() -> Samples:
        if failures:
            return {}
        try:
            return measure()
        except RuntimeError as failure:
            failures.append(failure)
            print(f"{name}: measured without the kernel-alone floor: {failure}", flush=True)
            with contextlib.suppress(RuntimeError):
                undo()
            return {}

    return guarded


def _floor_env(network: Config, pod: Namespace) -> dict[str, str]:
    """Returns the environment of floor.c for a network and a pod."""
    subnet = ipaddress.IPv4Network(network["ipam"]["ranges"][0][0]["subnet"])
    return {
        "CNI_NETNS": pod.path,
        "BRIDGE": network["bridge"],
        "ADDRESS": str(subnet[_OFFSET]),
        "GATEWAY": str(subnet[1]),
        "INDEX": str(_INDEX),
    }


def _result(network: Config, env: Mapping[str, str], pod: Namespace) -> Config:
    """Returns the result of floor.c's ADD as bridge would print it."""
    host = links(Namespace("host"))  # the name that private_host.enter registers
    return {
        "cniVersion": network["cniVersion"],
        "interfaces": [
            *({"name": name, "mac": host[name]["address"]} for name in (env["BRIDGE"], "floor0")),
            {"name": "eth0", "mac": links(pod)["eth0"]["address"], "sandbox": pod.path},
        ],
        "ips": [{"address": f"{env['ADDRESS']}/16", "gateway": env["GATEWAY"], "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0", "gw": env["GATEWAY"]}],
    }


def compiled(directory: Path) -> Floors | None:
    """Compiles the programs into `directory`; returns None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        print("no C compiler: measured without the kernel-alone floors", flush=True)
        return None
    for name, source in _SOURCES.items():
        output(compiler, "-O2", "-static", "-o", str(directory / name), str(source))
    return Floors(directory)
