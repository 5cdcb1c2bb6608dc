"""One verb of one plugin of the chain, run again and again under faults, and what it must leave and report each time.

One rule: each attempt starts from the same state; a scenario that cannot return to that state is `dirty`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests import promises
from tests.support import pod_interfaces
from tests.support.chained import CHAIN, Chain, differences
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace

Fault = TypeVar("Fault")

EARLIER = {"sbr": CHAIN[:1], "vrf": ("dummy",)}  # the plugins before one that is not in the chain
# Texts that do not help an operator.
_UNHELPFUL = re.compile(r"\[Errno|\b\w+Error\b|Exception|defect of podwire|Traceback")


@dataclass
class ScenarioHost:
    """A host with two pods: `other` stays attached, the scenario attaches and detaches `pod`."""

    chain: Chain
    pod: Namespace
    other: Namespace

    def valid_attachments(self) -> dict[str, Any]:
        """Returns the configuration keys with which GC collects everything but the other pod."""
        return {
            "cniVersion": "1.1.0",
            "cni.dev/valid-attachments": [{"containerID": self.other.name, "ifname": "eth0"}],
        }


def explain_bad_report(outcome: Outcome, *, stdout_closed: bool = False) -> str:
    """Returns what is wrong with the report of a failure, "" for a correct one; on stderr with `stdout_closed`."""
    if outcome.status != 1:
        return f"exit status {outcome.status}"
    if _UNHELPFUL.search(outcome.stderr):
        return f"stderr: {outcome.stderr.strip()}"
    if stdout_closed and not outcome.stdout.endswith(b"}"):
        return "" if outcome.stderr.startswith("podwire: ") else f"no report on stdout or stderr: {outcome}"
    try:
        error = outcome.error()
    except (AssertionError, ValueError) as problem:
        return f"no error object: {problem}"
    return f"reported as {error}" if _UNHELPFUL.search(error["msg"] + error.get("details", "")) else ""


class Scenario:
    """One verb of one plugin: `attempt` runs it under a fault, `find_defects` examines the state that it leaves."""

    command = ""
    misinformed = False  # the fault is a false answer (an object is missing), after which success may be incomplete

    def __init__(self, host: ScenarioHost, plugin: str) -> None:
        self.host, self.plugin = host, plugin
        self.chain, self.pod = host.chain, host.pod
        self.earlier_plugins = CHAIN[: CHAIN.index(plugin)] if plugin in CHAIN else EARLIER.get(plugin, ())
        self.dirty = False
        self.earlier_result = self.chain.add(self.pod, *self.earlier_plugins)
        if plugin == "loopback":  # the kernel keeps 127.0.0.1 from the first time that lo comes up
            self.chain.add(self.pod, plugin)
            self.chain.delete(self.pod, plugin)
        self.detached_state = self.chain.everything(self.pod)
        self.result: Any = None
        self.prepare()

    def prepare(self) -> None:
        """Creates what the verb needs."""

    def attempt(self, *before: Any) -> Outcome:
        """Runs the verb; `before` is a command line that starts it."""
        return self.run(*before)

    def run_without_fault(self, *before: Any) -> None:
        """Runs the verb, which must succeed, and restores the initial state."""
        outcome = self.attempt(*before)
        assert outcome.status == 0, outcome
        assert not self.find_defects(outcome)

    def run(self, *before: Any, **keys: Any) -> Outcome:
        prev_result = self.earlier_result if self.command == "ADD" else self.result
        return self.chain.run(self.plugin, self.command, self.pod, prev_result, *before, **keys)

    def find_defects(self, outcome: Outcome) -> list[str]:
        """Returns what is wrong after an attempt, and restores the initial state; `dirty` when that fails."""
        raise NotImplementedError

    def compare(self, expected: Any) -> list[str]:
        """Returns the differences between the present state and `expected`; any makes the scenario `dirty`."""
        defects = differences(expected, self.chain.everything(self.pod))
        self.dirty |= bool(defects)
        return defects

    def restore_settings(self, *, everything: bool = False) -> None:
        """Restores what DEL leaves by design: tuning's sysctls, sbr's routes; with `everything` also what GC leaves.

        And what DEL of host-device could not restore, which it prints.
        """
        if self.plugin == "host-device" and everything:
            pod_interfaces.restore_device(self.chain.host)
        if self.plugin == "sbr":
            self.chain.unroute(self.pod)
        if self.plugin == "tuning":
            (interface,) = (item for item in self.earlier_result["interfaces"] if item.get("sandbox"))
            self.chain.untune(self.pod, interface["mac"] if everything else "")

    def failure(self, outcome: Outcome, verb: str) -> list[str]:
        """Returns the report of a verb that failed but must succeed, [] for a success."""
        self.dirty |= outcome.status != 0
        return [f"{verb}: {outcome.stdout.decode()} {outcome.stderr}"] if outcome.status else []


class Add(Scenario):
    """ADD is complete, as CHECK confirms, and DEL removes everything; or ADD fails and leaves nothing."""

    command = "ADD"

    def find_defects(self, outcome: Outcome) -> list[str]:
        if outcome.status:
            if "error writing to stdout" in f"{outcome.stdout!r} {outcome.stderr}":
                self.restore_settings()  # the plugin deletes an attachment whose result it cannot print
            return self.compare(self.detached_state)
        result, defects = outcome.json, []
        if not self.misinformed:
            defects += self.failure(self.chain.run(self.plugin, "CHECK", self.pod, result), "CHECK after a success")
        defects += self.failure(self.chain.run(self.plugin, "DEL", self.pod, result), "DEL after a success")
        self.restore_settings()
        return defects + self.compare(self.detached_state)


class Del(Scenario):
    """DEL removes everything, or the next DEL does."""

    command = "DEL"

    def prepare(self) -> None:
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.earlier_result)

    def find_defects(self, outcome: Outcome) -> list[str]:
        defects = []
        if outcome.status or self.misinformed:
            defects = self.failure(self.run(), "DEL repeated")
        # Settings that DEL did not restore end with the pod.
        self.restore_settings(everything=self.misinformed or "cannot restore" in outcome.stderr)
        defects += self.compare(self.detached_state)
        if not self.dirty:
            self.prepare()
        return defects


class ReadOnly(Scenario):
    """A verb that changes nothing."""

    def prepare(self) -> None:
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.earlier_result)
        self.attached_state = self.chain.everything(self.pod)

    def find_defects(self, outcome: Outcome) -> list[str]:
        return self.compare(self.attached_state)


class Check(ReadOnly):
    """CHECK."""

    command = "CHECK"


class Status(ReadOnly):
    """STATUS."""

    command = "STATUS"

    def attempt(self, *before: Any) -> Outcome:
        return self.chain.run(self.plugin, "STATUS", self.pod, None, *before, cniVersion="1.1.0")


class Gc(Scenario):
    """GC of a pod whose namespace exists: it removes rules and addresses; the links stay, as only DEL removes them."""

    command = "GC"

    def prepare(self) -> None:
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.earlier_result)
        self.attempt().assert_silent()
        self.collected_state = self.collectable_state()
        self.attach_again()

    def attach_again(self) -> None:
        self.chain.delete(self.pod, self.plugin)
        self.restore_settings(everything=True)
        assert not self.compare(self.detached_state)
        self.result = self.chain.add(self.pod, self.plugin, prev_result=self.earlier_result)

    def collectable_state(self) -> dict[str, Any]:
        """Returns the state that GC changes; an interface plugin's other objects have new names in each attempt."""
        state = self.chain.everything(self.pod)
        if self.earlier_plugins:
            return state
        access = pod_interfaces.host_access(state["host"])
        return {"nft": state["host"]["nft"], "leases": state["leases"], "access": access}

    def attempt(self, *before: Any) -> Outcome:
        return self.chain.run(self.plugin, "GC", self.pod, None, *before, **self.host.valid_attachments())

    def find_defects(self, outcome: Outcome) -> list[str]:
        defects = []
        if outcome.status or self.misinformed:
            defects = self.failure(self.attempt(), "GC repeated")
        remaining = differences(self.collected_state, self.collectable_state())
        self.dirty |= bool(remaining)
        defects += remaining
        if not self.dirty:
            self.attach_again()
        return defects


SCENARIOS: dict[str, type[Scenario]] = {"ADD": Add, "DEL": Del, "CHECK": Check, "GC": Gc, "STATUS": Status}

Case = tuple[str, str, str]  # verb, plugin, backend
CASES: list[Case] = [
    *(
        (verb, plugin, backend)
        for verb in SCENARIOS
        for plugin in ("bridge", "portmap", "firewall")
        for backend in ("iptables", "nftables")
    ),
    *((verb, plugin, "nftables") for verb in SCENARIOS for plugin in ("bandwidth", "tuning", "ptp")),
    *((verb, "loopback", "nftables") for verb in ("ADD", "DEL", "CHECK")),
    *((verb, "sbr", "nftables") for verb in ("ADD", "DEL", "CHECK", "STATUS")),
    *((verb, plugin, "none") for plugin in pod_interfaces.KEYS for verb in SCENARIOS),
    *((verb, "vrf", "none") for verb in ("ADD", "DEL", "CHECK", "STATUS")),
]


def assert_survives(
    create: Callable[[], Scenario],
    scenario: Scenario,
    faults: Sequence[Fault],
    attempt: Callable[[Scenario, Fault], Outcome],
    explain: Callable[[Fault, Outcome], Sequence[str]],
) -> None:
    """Attempts the verb of `scenario` under each of `faults`; AssertionError with the defects.

    `explain` returns what is wrong with the report of a failure; `create` creates the scenario again when it is dirty.
    """
    problems = []
    for fault in faults:
        outcome = attempt(scenario, fault)
        defects = scenario.find_defects(outcome)
        if outcome.status:
            defects = [*defects, *filter(None, explain(fault, outcome))]
        if defects:
            problems.append("\n    ".join((f"{fault}: {outcome.status}", *defects)))
        if scenario.dirty:
            scenario = create()
    promises.record("faults", faults=len(faults))
    assert not problems, f"{len(problems)} of {len(faults)}:\n" + "\n".join(problems)
