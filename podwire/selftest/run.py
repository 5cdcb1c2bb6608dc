"""Runs one network of the self-test: STATUS, ADD, CHECK, packets, GC, DEL; then again, for the times."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cni.conf import Attachment
from cni.errors import CniError, Code
from kernel import hostcopy
from kernel.errors import KernelError
from kernel.netns import Netns, entered
from kernel.system import PROGRAM_DIRECTORIES
from kernel.unnamed_netns import create_unnamed, set_loopback_up
from podwire.networks import Network
from podwire.selftest.node import BIN_DIR, PrivateNode
from podwire.selftest.packets import LostError
from podwire.selftest.trials import Measurement, TestPod, Trial
from podwire.verbs import invoke, network_list
from podwire.verbs.invoke import PodArgs
from podwire.verbs.network_list import PluginRunner

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_REPETITIONS = 3  # after the first run, which loads modules and creates what pods share


@dataclass
class Report:
    """The outcome of a trial: PASSED, FAILED or SKIPPED with a reason, and what was measured.

    `ms` has the times of each verb by plugin and verb, in the order of the calls.
    """

    trial: Trial
    outcome: str = PASSED
    reason: str = ""
    ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Returns the report as --json prints it."""
        verbs = [
            {"plugin": kind, "command": command, "calls": len(ms), "leastMs": round(min(ms), 3), "medianMs": median(ms)}
            for (kind, command), ms in self.ms.items()
        ]
        packets = [{"what": one.what, "value": round(one.value, 3), "unit": one.unit} for one in self.measurements]
        return {
            "network": self.trial.name,
            "plugins": self.trial.kinds,
            "outcome": self.outcome,
            "reason": self.reason,
            "verbs": verbs,
            "packets": packets,
        }


class TrialError(Exception):
    """A trial that failed; the text says which verb of which plugin, or which packet, and why."""


def median(values: list[float]) -> float:
    """Returns the median, rounded to microseconds if these are milliseconds."""
    ordered, middle = sorted(values), len(values) // 2
    return round((ordered[middle] + ordered[~middle]) / 2, 3)


def run(trial: Trial, node: PrivateNode) -> Report:
    """Runs a trial on the node; failures are in the report."""
    report = Report(trial)
    network = Network(f"selftest-{trial.name.replace(', ', '-')}", "1.1.0", trial.plugins)
    env = {"PATH": ":".join(PROGRAM_DIRECTORIES)}
    runtime = PluginRunner(
        (BIN_DIR,), env, (), lambda call: invoke.execute(call, hostcopy.spawn), lambda step: None, writes=False
    )
    try:
        try:
            with trial.prepare(node):
                if reason := _unavailable(runtime, network):
                    report.outcome, report.reason = SKIPPED, reason
                    return report
                _attach_and_detach(trial, node, runtime, network, report)
                for _ in range(_REPETITIONS):
                    _repeat(trial, runtime, network)
        except KernelError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # A kind of link that the network needs; STATUS names the module.
            report.outcome, report.reason = SKIPPED, _unavailable(runtime, network) or str(error)
    except (TrialError, LostError, CniError, OSError) as error:
        report.outcome, report.reason = FAILED, str(error)
    finally:
        for step in runtime.done:
            report.ms.setdefault((step.kind, step.command), []).append(step.ms)
    return report


def _unavailable(runtime: PluginRunner, network: Network) -> str:
    """Returns the reason for which a plugin's STATUS says that it cannot work here, "" if all can.

    Raises TrialError for any other error.
    """
    network_list.status(runtime, network)
    for step in runtime.done:
        if step.error and step.error.code == Code.PLUGIN_NOT_AVAILABLE:
            return f"{step.kind}: {step.error}"
    _require_success(runtime)
    return ""


def _attach_and_detach(
    trial: Trial, node: PrivateNode, runtime: PluginRunner, network: Network, report: Report
) -> None:
    """Runs every verb; raises TrialError, LostError."""
    links = node.list_links()
    with _pods(trial, trial.pods) as pods:
        results = [_attach(runtime, network, pod) for pod, _ in pods]
        attached = [TestPod(netns, _ips(result)) for (_, netns), result in zip(pods, results, strict=True)]
        _check_all(runtime, network, pods, results)
        report.measurements += trial.packets(node, attached)
        network_list.gc(runtime, network, lambda: [pod.attachment for pod, _ in pods])
        _check_all(runtime, network, pods, results)
        next(trial.packets(node, attached), None)  # GC has kept what running pods need
        network_list.delete(runtime, network, pods[0][0], results[0])
        network_list.gc(runtime, network, list)
        _require_success(runtime)
        if remaining := node.list_reservations(network.name):
            raise TrialError(f"GC without attachments left the reservations {', '.join(remaining)}")
        for (pod, _), result in zip(pods, results, strict=True):
            network_list.delete(runtime, network, pod, result)  # the first one for the second time
        _require_success(runtime)
        if remaining := sorted(node.list_links() - links - set(trial.leaves)):
            raise TrialError(f"DEL left the links {', '.join(remaining)}")


def _repeat(trial: Trial, runtime: PluginRunner, network: Network) -> None:
    with _pods(trial, 1) as pods:
        result = _attach(runtime, network, pods[0][0])
        _check_all(runtime, network, pods, [result])
        network_list.delete(runtime, network, pods[0][0], result)
        _require_success(runtime)


def _attach(runtime: PluginRunner, network: Network, pod: PodArgs) -> object:
    result = network_list.add(runtime, network, pod)
    if result is None:
        step = next(step for step in reversed(runtime.done) if step.command == "ADD" and step.error)
        raise TrialError(f"ADD of {step.kind}: {step.error}")
    return result


def _check_all(
    runtime: PluginRunner, network: Network, pods: list[tuple[PodArgs, Netns]], results: list[object]
) -> None:
    for (pod, _), result in zip(pods, results, strict=True):
        network_list.check(runtime, network, pod, result)
    _require_success(runtime)


@contextmanager
def _pods(trial: Trial, number: int) -> Iterator[list[tuple[PodArgs, Netns]]]:
    """Yields new pods with their namespaces; the first one has the capability arguments."""
    with ExitStack() as stack:
        pods = []
        for index in range(number):
            netns = stack.enter_context(create_unnamed())
            if trial.ifname != "lo":  # a runtime has run loopback before
                with entered(netns):
                    set_loopback_up()
            attachment = Attachment(f"selftest-{index}", trial.ifname)
            arguments = trial.capability_args if index == 0 else {}
            pods.append((PodArgs(attachment, netns.path, "", arguments), netns))
        yield pods


def _ips(result: object) -> tuple[Mapping[str, str], ...]:
    return tuple(result.get("ips") or ()) if isinstance(result, dict) else ()


def _require_success(runtime: PluginRunner) -> None:
    for step in runtime.done:
        if step.error:
            raise TrialError(f"{step.command} of {step.kind}: {step.error}")
