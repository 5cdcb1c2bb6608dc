"""Host ports: portmap on its own.

One rule: before the measurement, connections through the host ports must reach the pod, so that no rule is measured
that does not work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.cases import Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.floors import Floors
from bench.process import Run, wait_all
from bench.subject import PORTS, Config, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace
from tests.support.netstate import links
from tests.support.tcp import serving, source_address

# CHECK of the reference before 1.2.0 ends by looking for IPv6 rules, also of a pod without an IPv6 address.
IPV4_ONLY = "could not check ipv6 dnat"
_HOST = Namespace("host")  # the name that private_host.enter registers

Pods = dict[str, tuple[Namespace, Config]]  # by implementation: a pod and the result of its ADD


@contextlib.contextmanager
def attached(subjects: Subjects) -> Iterator[Pods]:
    """Yields for each implementation a pod on its bridge, IPv4 only, and the result of its ADD."""
    with contextlib.ExitStack() as stack:
        pods: Pods = {}
        for subject in subjects:
            pod = stack.enter_context(namespaces.temporary())
            network = subject.network(PORTS)
            result = subject.run("bridge", "ADD", network, pod).outcome.result()
            stack.callback(_detach, subject, {**network, "prevResult": result}, pod)
            pods[subject.label] = pod, result
        yield pods


def portmap(
    subjects: Subjects, rounds: int, name: str, backend: str, count: int, pods: Pods, floors: Floors | None
) -> list[Row]:
    """Measures ADD, CHECK and DEL of portmap with `count` host ports.

    The pods have no IPv6 address, so the reference's CHECK fails: its time to the error is measured.
    """

    def measure(subject: Subject) -> Samples:
        pod, result = pods[subject.label]
        return with_prefix(name, _cycle(subject, subject.portmap(backend, count, result), pod))

    for subject in subjects:
        pod, result = pods[subject.label]
        _verify(subject, subject.portmap(backend, count, result), pod)
    first = subjects[0]
    pod, result = pods[first.label]
    config = first.portmap(backend, count, result)
    return compare(subjects, rounds, measure, floors.replayed(name, first, config, pod) if floors else None)


def _cycle(subject: Subject, config: Config, pod: Namespace) -> dict[str, Run]:
    runs = {"ADD": subject.run("portmap", "ADD", config, pod)}
    runs["CHECK"] = subject.run("portmap", "CHECK", config, pod, allowed_error=IPV4_ONLY)
    runs["DEL"] = subject.run("portmap", "DEL", config, pod)
    return runs


def _verify(subject: Subject, config: Config, pod: Namespace) -> None:
    """Connects from the host to the first and the last host port: they reach the pod after ADD, and not after DEL."""
    (address,) = (ip["address"].partition("/")[0] for ip in config["prevResult"]["ips"])
    bridge = config["prevResult"]["interfaces"][0]["name"]
    host_address = links(_HOST)[bridge]["addresses"][0]["local"]
    ports = [mapping["hostPort"] for mapping in config["runtimeConfig"]["portMappings"]]
    with serving(pod, address):
        for command, reachable in (("ADD", True), ("DEL", False)):
            subject.run("portmap", command, config, pod)
            for port in (ports[0], ports[-1]):
                description = f"{subject.label}: {config['name']}, port {port} after {command}"
                assert bool(source_address(_HOST, host_address, port)) == reachable, description
    wait_all()


def _detach(subject: Subject, config: Config, pod: Namespace) -> None:
    subject.run("bridge", "DEL", config, pod)
    wait_all()
