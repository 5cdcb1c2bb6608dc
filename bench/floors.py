"""Floors: what the kernel alone takes for a verb, so that a ratio that cannot be reached has its account.

One rule: a floor is a static C program that makes the kernel's part of a verb and nothing else, timed in turn with the
two implementations, like them a whole process: floor.c by itself, replay.c with what ours said. Without a C compiler
there are none, and that is told.
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
from bench.process import Invocation, Run, run, settle
from bench.subject import Chained, Config, Subject
from tests.support.namespaces import Namespace
from tests.support.netstate import links
from tests.support.processes import output

_SOURCES = {name: Path(__file__).with_name(f"{name}.c") for name in ("floor", "replay")}
_OFFSET = 50_000  # of its address in the subnet of a network: nobody else's
_INDEX = 900_000  # of its link on the host
_VERBS = ("ADD", "CHECK")


class Floors:
    """The programs, which are in `directory`, and what they are to do beside each case."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._leases = directory / "floor-leases"
        self._leases.mkdir()
        self._numbers = itertools.count()
        self._start_ms = math.inf

    def version(self) -> Samples:
        """Does nothing at all."""
        return {"VERSION": self._run("VERSION", {})}

    def bridge(self, name: str, network: Config, pod: Namespace) -> Floor:
        """Returns the floor of bridge's ADD and CHECK, on the bridge of `network`."""
        known = _known(network, pod)

        def act() -> Samples:
            taken = {f"{name} {verb}": self._run(verb, known) for verb in _VERBS}
            self._run("DEL", known)  # not of interest: it waits for what ours and the reference leave to others
            return taken

        return _guarded(name, act)

    def leases(self, title: str) -> Floor:
        """Returns the floor of host-local's verbs, `title` being that of a case with {} for the verb."""
        known = {"ADDRESS": "10.112.0.77"}
        return lambda: {title.format(verb): self._run(f"LEASE {verb}", known) for verb in ("ADD", "CHECK", "DEL")}

    def replayed(self, name: str, subject: Subject, config: Config, pod: Namespace) -> Floor:
        """Returns the floor of a chained plugin's ADD and CHECK on a pod that stays, ours being recorded."""
        files, _ = self._recorded(subject, config, pod)

        def undo() -> None:
            self._undone(subject, [config], pod)

        undo()

        def act() -> Samples:
            taken = {f"{name} {verb}": self._replayed(files[verb], pod) for verb in _VERBS}
            undo()
            return taken

        return _guarded(name, act, undo)

    def chain(
        self, name: str, subject: Subject, network: Config, chained: Sequence[Chained], pods: Sequence[Namespace]
    ) -> Floor:
        """Returns the floor of a masquerading bridge with chained plugins: the sum of their processes.

        The second of the pods is that of the bridge's own ADD, of which the rules are taken.
        """
        known, (pod, other) = _known(network, pods[0]), pods
        files: list[dict[str, Path]] = []
        configs: list[Config] = []

        def undo() -> None:
            self._undone(subject, configs[::-1], pod)
            self._run("DEL", known)
            self._undone(subject, [bridge], other)

        for _ in range(2):  # the first time more is made than the plugins take away
            masquerade, said = self._recorded(subject, network, other, only_netfilter=True)
            bridge = {**network, "prevResult": json.loads(said)}
            self._run("ADD", known)
            result = _result(network, known, pod)
            files, configs = [], []
            for plugin in chained:
                configs.append({**plugin(subject, result), "name": network["name"]})
                found, said = self._recorded(subject, configs[-1], pod)
                files.append(found)
                result = json.loads(said)
            configs = [{**config, "prevResult": result} for config in configs]
            undo()

        def act() -> Samples:
            taken = {}
            for verb in _VERBS:
                start = self._run("VERSION", {})  # of the process that has the bridge's rules, which is none of its own
                self._start_ms = min(self._start_ms, start.ms)
                runs = [self._run(verb, known), self._replayed(masquerade[verb], other)]
                runs += [self._replayed(found[verb], pod) for found in files]
                taken[f"{name} {verb}"] = Run(start.outcome, sum(run.ms for run in runs) - self._start_ms, 0)
            undo()
            return taken

        return _guarded(name, act, undo)

    def _recorded(
        self, subject: Subject, config: Config, pod: Namespace, *, only_netfilter: bool = False
    ) -> tuple[dict[str, Path], bytes]:
        """Runs a plugin's ADD and CHECK; returns the recording of each, and what ADD answered."""
        files, answer = {}, b""
        for verb in _VERBS:
            full = config if verb == "ADD" else {**config, "prevResult": json.loads(answer)}
            call = subject.call(config["type"], verb, full, pod)
            words, said = replay.recorded(call, pod.path, only_netfilter=only_netfilter)
            answer = answer or said
            files[verb] = self._directory / f"recording-{next(self._numbers)}"
            files[verb].write_bytes(words)
        return files, answer

    def _replayed(self, file: Path, pod: Namespace) -> Run:
        return self._started("replay", {"CNI_NETNS": pod.path, "RECORDING": str(file)})

    def _undone(self, subject: Subject, configs: Sequence[Config], pod: Namespace) -> None:
        for config in configs:
            subject.run(config["type"], "DEL", config, pod)
            settle()

    def _run(self, verb: str, known: dict[str, str]) -> Run:
        return self._started("floor", {"FLOOR": verb, "LEASES": str(self._leases), **known})

    def _started(self, program: str, env: dict[str, str]) -> Run:
        done = run(Invocation(str(self._directory / program), env))
        if done.outcome.status != 0:
            raise RuntimeError(f"a floor failed: {program} {env}: {done.outcome.stderr}")
        return done


def _guarded(name: str, act: Floor, undo: Callable[[], None] = lambda: None) -> Floor:
    """Returns a floor that tells its first failure and is not tried again: the others go on without it."""
    failures: list[RuntimeError] = []

    def careful() -> Samples:
        if failures:
            return {}
        try:
            return act()
        except RuntimeError as failure:
            failures.append(failure)
            print(f"{name}: what the kernel alone takes is left out: {failure}", flush=True)
            with contextlib.suppress(RuntimeError):
                undo()
            return {}

    return careful


def _known(network: Config, pod: Namespace) -> dict[str, str]:
    """Returns what floor.c is told of a network and a pod."""
    subnet = ipaddress.IPv4Network(network["ipam"]["ranges"][0][0]["subnet"])
    return {
        "CNI_NETNS": pod.path,
        "BRIDGE": network["bridge"],
        "ADDRESS": str(subnet[_OFFSET]),
        "GATEWAY": str(subnet[1]),
        "INDEX": str(_INDEX),
    }


def _result(network: Config, known: Mapping[str, str], pod: Namespace) -> Config:
    """Returns the result of floor.c's ADD, as bridge would tell it."""
    host = links(Namespace("host"))  # private.enter calls it so
    return {
        "cniVersion": network["cniVersion"],
        "interfaces": [
            *({"name": name, "mac": host[name]["address"]} for name in (known["BRIDGE"], "floor0")),
            {"name": "eth0", "mac": links(pod)["eth0"]["address"], "sandbox": pod.path},
        ],
        "ips": [{"address": f"{known['ADDRESS']}/16", "gateway": known["GATEWAY"], "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0", "gw": known["GATEWAY"]}],
    }


def compiled(directory: Path) -> Floors | None:
    """Compiles the programs into `directory`; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        print("no C compiler: what the kernel alone takes is left out", flush=True)
        return None
    for name, source in _SOURCES.items():
        output(compiler, "-O2", "-static", "-o", str(directory / name), str(source))
    return Floors(directory)
