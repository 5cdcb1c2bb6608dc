"""One verb of one plugin of the chain, made to fail as often as asked: what it must leave then, and how it must tell.

One rule: whatever came of an attempt, the next one begins from the same state, or the stage is said to be spoilt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests.support.chained import CHAIN, Chain, differences
from tests.support.namespaces import Namespace
from tests.support.running import Outcome

# Words that tell an operator nothing.
_BARE = re.compile(r"\[Errno|\b\w+Error\b|Exception|defect of podwire|Traceback")


@dataclass
class Stage:
    """A host with a pod that is attached and stays, and another to work with."""

    chain: Chain
    pod: Namespace
    other: Namespace

    def stale(self) -> dict[str, Any]:
        """What GC gets to know: only the other pod is alive."""
        return {
            "cniVersion": "1.1.0",
            "cni.dev/valid-attachments": [{"containerID": self.other.name, "ifname": "eth0"}],
        }


def told(outcome: Outcome, *, speechless: bool = False) -> str:
    """Returns what is wrong with how a failure was told, "" when nothing is; who is `speechless` uses stderr."""
    if outcome.status != 1:
        return f"exit status {outcome.status}"
    if _BARE.search(outcome.stderr):
        return f"stderr: {outcome.stderr.strip()}"
    if speechless and not outcome.stdout.endswith(b"}"):
        return "" if outcome.stderr.startswith("podwire: ") else f"neither stdout nor stderr tells: {outcome}"
    try:
        error = outcome.error()
    except (AssertionError, ValueError) as problem:
        return f"no error object: {problem}"
    return f"told as {error}" if _BARE.search(error["msg"] + error.get("details", "")) else ""


class Drama:
    """One verb of one plugin, as often as asked: `attempt` under a fault, `judge` what came of it."""

    command = ""
    believed = False  # a lie is told (what is there is said not to be), so that success may have missed something

    def __init__(self, stage: Stage, plugin: str) -> None:
        self.stage, self.plugin = stage, plugin
        self.chain, self.pod = stage.chain, stage.pod
        self.earlier = CHAIN[: CHAIN.index(plugin)] if plugin in CHAIN else ()
        self.spoilt = False
        self.before_it = self.chain.add(self.pod, *self.earlier)
        if plugin == "loopback":  # the kernel keeps 127.0.0.1 from the first time that lo comes up
            self.chain.add(self.pod, plugin)
            self.chain.delete(self.pod, plugin)
        self.without = self.chain.everything(self.pod)
        self.result: Any = None
        self.prepare()

    def prepare(self) -> None:
        """Brings about what the verb needs."""

    def attempt(self, *before: Any) -> Outcome:
        """Runs the verb, started by the words of `before`."""
        return self.run(*before)

    def play(self, *before: Any) -> None:
        """Runs the verb without a fault, and returns to where it began."""
        outcome = self.attempt(*before)
        assert outcome.status == 0, outcome
        assert not self.judge(outcome)

    def run(self, *before: Any, **keys: Any) -> Outcome:
        prev_result = self.before_it if self.command == "ADD" else self.result
        return self.chain.run(self.plugin, self.command, self.pod, prev_result, *before, **keys)

    def judge(self, outcome: Outcome) -> list[str]:
        """Returns what is wrong, and returns to where it began, or says that the stage is `spoilt`."""
        raise NotImplementedError

    def leftovers(self, wanted: Any) -> list[str]:
        """Returns what is not as `wanted`; the stage is of no use then."""
        found = differences(wanted, self.chain.everything(self.pod))
        self.spoilt |= bool(found)
        return found

    def untune(self, *, wholly: bool = False) -> None:
        """Sets back what a verb of tuning leaves to the pod's end by design: DEL sysctls, GC all that is in the pod."""
        if self.plugin == "tuning":
            (own,) = (item for item in self.before_it["interfaces"] if item.get("sandbox"))
            self.chain.untune(self.pod, own["mac"] if wholly else "")

    def failed(self, outcome: Outcome, what: str) -> list[str]:
        """Returns what a verb, which must succeed, tells instead."""
        self.spoilt |= outcome.status != 0
        return [f"{what}: {outcome.stdout.decode()} {outcome.stderr}"] if outcome.status else []


class Add(Drama):
    """ADD: complete, or nothing left; what it says it made is proven by CHECK, and DEL takes it away."""

    command = "ADD"

    def judge(self, outcome: Outcome) -> list[str]:
        if outcome.status:
            if "error writing to stdout" in f"{outcome.stdout!r} {outcome.stderr}":
                self.untune()  # what cannot be told of is deleted
            return self.leftovers(self.without)
        result, found = outcome.json, []
        if not self.believed:
            found += self.failed(self.chain.run(self.plugin, "CHECK", self.pod, result), "CHECK after a success")
        found += self.failed(self.chain.run(self.plugin, "DEL", self.pod, result), "DEL after a success")
        self.untune()
        return found + self.leftovers(self.without)


class Del(Drama):
    """DEL: complete, or the next one is."""

    command = "DEL"

    def prepare(self) -> None:
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.before_it)

    def judge(self, outcome: Outcome) -> list[str]:
        found = []
        if outcome.status or self.believed:
            found = self.failed(self.run(), "DEL repeated")
        self.untune(wholly=self.believed or "cannot restore" in outcome.stderr)  # which goes with the pod
        found += self.leftovers(self.without)
        if not self.spoilt:
            self.prepare()
        return found


class Look(Drama):
    """A verb that only looks."""

    def prepare(self) -> None:
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.before_it)
        self.there = self.chain.everything(self.pod)

    def judge(self, outcome: Outcome) -> list[str]:
        return self.leftovers(self.there)


class Check(Look):
    """CHECK."""

    command = "CHECK"


class Status(Look):
    """STATUS."""

    command = "STATUS"

    def attempt(self, *before: Any) -> Outcome:
        return self.chain.run(self.plugin, "STATUS", self.pod, None, *before, cniVersion="1.1.0")


class Gc(Drama):
    """GC for a pod whose namespace is there: links stay, as only DEL takes them; rules and addresses go."""

    command = "GC"

    def prepare(self) -> None:
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.before_it)
        self.attempt().silence()
        self.collected = self.collectable()
        self.again()

    def again(self) -> None:
        self.chain.delete(self.pod, self.plugin)
        self.untune(wholly=True)
        assert not self.leftovers(self.without)
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.before_it)

    def collectable(self) -> dict[str, Any]:
        """Returns what GC changes; the rest of the pod is made anew for each attempt, with other names."""
        whole = self.chain.everything(self.pod)
        return {"nft": whole["host"]["nft"], "leases": whole["leases"]} if not self.earlier else whole

    def attempt(self, *before: Any) -> Outcome:
        return self.chain.run(self.plugin, "GC", self.pod, None, *before, **self.stage.stale())

    def judge(self, outcome: Outcome) -> list[str]:
        found = []
        if outcome.status or self.believed:
            found = self.failed(self.attempt(), "GC repeated")
        left = differences(self.collected, self.collectable())
        self.spoilt |= bool(left)
        found += left
        if not self.spoilt:
            self.again()
        return found


DRAMAS: dict[str, type[Drama]] = {"ADD": Add, "DEL": Del, "CHECK": Check, "GC": Gc, "STATUS": Status}
