"""Floors: what the kernel alone takes for a verb, so that a ratio that cannot be reached has its account.

One rule: a floor is a static C program (floor.c) that makes the kernel's part of a verb and nothing else, timed in turn
with the two implementations, like them a whole process. Without a C compiler there are none, and that is said.
"""

from __future__ import annotations

import ipaddress
import shutil
from pathlib import Path

from bench.cases import Floor, Samples
from bench.process import Invocation, Run, run
from bench.subject import Config
from tests.support.namespaces import Namespace
from tests.support.processes import output

_SOURCE = Path(__file__).with_name("floor.c")
_OFFSET = 50_000  # of its address in the subnet of a network: nobody else's


class Floors:
    """The program, and what it is to do beside each case."""

    def __init__(self, program: Path, leases: Path) -> None:
        self._program = program
        self._leases = leases
        leases.mkdir()

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

    def _run(self, verb: str, known: dict[str, str]) -> Run:
        done = run(Invocation(str(self._program), {"FLOOR": verb, "LEASES": str(self._leases), **known}))
        if done.outcome.status != 0:
            raise RuntimeError(f"the floor of {verb} failed: {done.outcome.stderr}")
        return done


def compiled(directory: Path) -> Floors | None:
    """Compiles floor.c; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        print("no C compiler: what the kernel alone takes is left out", flush=True)
        return None
    program = directory / "floor"
    output(compiler, "-O2", "-static", "-o", str(program), str(_SOURCE))
    return Floors(program, directory / "floor-leases")
