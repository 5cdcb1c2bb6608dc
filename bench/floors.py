"""Floors: what the kernel alone takes for a verb, so that a ratio that cannot be reached has its account.

One rule: a floor is a static C program that makes the kernel's part of a verb and nothing else, timed in turn with the
two implementations, like them a whole process: floor.c by itself, replay.c with what ours said. Without a C compiler
there are none, and that is told.
"""

from __future__ import annotations

import ipaddress
import shutil
from pathlib import Path

from bench import replay
from bench.cases import Floor, Samples
from bench.process import Invocation, Run, run, settle
from bench.subject import Config, Subject
from tests.support.namespaces import Namespace
from tests.support.processes import output

_SOURCES = {name: Path(__file__).with_name(f"{name}.c") for name in ("floor", "replay")}
_OFFSET = 50_000  # of its address in the subnet of a network: nobody else's


class Floors:
    """The programs, which are in `directory`, and what they are to do beside each case."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._leases = directory / "floor-leases"
        self._leases.mkdir()

    def version(self) -> Samples:
        """Does nothing at all."""
        return {"VERSION": self._run("VERSION", {})}

    def bridge(self, name: str, network: Config, pod: Namespace) -> Floor:
        """Returns the floor of bridge's ADD and CHECK, on the bridge of `network`."""
        subnet = ipaddress.IPv4Network(network["ipam"]["ranges"][0][0]["subnet"])
        known = {
            "CNI_NETNS": pod.path,
            "BRIDGE": network["bridge"],
            "ADDRESS": str(subnet[_OFFSET]),
            "GATEWAY": str(subnet[1]),
        }

        def act() -> Samples:
            taken = {f"{name} {verb}": self._run(verb, known) for verb in ("ADD", "CHECK")}
            self._run("DEL", known)  # not of interest: it waits for what ours and the reference leave to others
            return taken

        return act

    def leases(self, title: str) -> Floor:
        """Returns the floor of host-local's verbs, `title` being that of a case with {} for the verb."""
        known = {"ADDRESS": "10.112.0.77"}
        return lambda: {title.format(verb): self._run(f"LEASE {verb}", known) for verb in ("ADD", "CHECK", "DEL")}

    def replayed(self, name: str, subject: Subject, config: Config, pod: Namespace) -> Floor:
        """Returns the floor of a chained plugin's ADD and CHECK on a pod that stays, ours being recorded."""
        said = {verb: self._directory / f"{name} {verb}" for verb in ("ADD", "CHECK")}
        for verb, file in said.items():
            file.write_bytes(replay.recorded(subject.call(config["type"], verb, config, pod), pod.path))
        self._undone(subject, config, pod)

        def act() -> Samples:
            taken = {
                f"{name} {verb}": self._started("replay", {"CNI_NETNS": pod.path, "RECORDING": str(file)})
                for verb, file in said.items()
            }
            self._undone(subject, config, pod)
            return taken

        return act

    def _undone(self, subject: Subject, config: Config, pod: Namespace) -> None:
        subject.run(config["type"], "DEL", config, pod)
        settle()

    def _run(self, verb: str, known: dict[str, str]) -> Run:
        return self._started("floor", {"FLOOR": verb, "LEASES": str(self._leases), **known})

    def _started(self, program: str, env: dict[str, str]) -> Run:
        done = run(Invocation(str(self._directory / program), env))
        if done.outcome.status != 0:
            raise RuntimeError(f"a floor failed: {program} {env}: {done.outcome.stderr}")
        return done


def compiled(directory: Path) -> Floors | None:
    """Compiles the programs into `directory`; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        print("no C compiler: what the kernel alone takes is left out", flush=True)
        return None
    for name, source in _SOURCES.items():
        output(compiler, "-O2", "-static", "-o", str(directory / name), str(source))
    return Floors(directory)
