"""Host ports: what portmap takes alone.

One rule: before a case is timed its host ports are called, so that no rule is measured that leads nowhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.cases import Samples, Subjects, compare, named
from bench.figures import Row
from bench.floors import Floors
from bench.process import Run, settle
from bench.subject import PORTS, Config, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace
from tests.support.netstate import links
from tests.support.tcp import serving, source_address

# The reference before 1.2.0 looks for IPv6 rules of a pod that has no IPv6 address, when it is done with the others.
IPV4_ONLY = "could not check ipv6 dnat"
_HOST = Namespace("host")  # private.enter calls it so

Pods = dict[str, tuple[Namespace, Config]]  # by implementation: a pod and the result of its ADD


@contextlib.contextmanager
def attached(subjects: Subjects) -> Iterator[Pods]:
    """Yields for each implementation a pod on its bridge, IPv4 only, and the result of its ADD."""
    with contextlib.ExitStack() as stack:
        found: Pods = {}
        for subject in subjects:
            pod = stack.enter_context(namespaces.temporary())
            network = subject.network(PORTS)
            result = subject.run("bridge", "ADD", network, pod).outcome.result()
            stack.callback(_detach, subject, {**network, "prevResult": result}, pod)
            found[subject.label] = pod, result
        yield found


def alone(
    subjects: Subjects, rounds: int, name: str, backend: str, count: int, pods: Pods, floors: Floors | None
) -> list[Row]:
    """Measures ADD, CHECK and DEL of portmap with `count` host ports.

    The pods have no IPv6 address, for which the reference's CHECK fails: it is measured to its answer.
    """

    def act(subject: Subject) -> Samples:
        pod, result = pods[subject.label]
        return named(name, _cycle(subject, subject.host_ports(backend, count, result), pod))

    for subject in subjects:
        pod, result = pods[subject.label]
        _prove(subject, subject.host_ports(backend, count, result), pod)
    first = subjects[0]
    pod, result = pods[first.label]
    config = first.host_ports(backend, count, result)
    return compare(subjects, rounds, act, floors.replayed(name, first, config, pod) if floors else None)


def _cycle(subject: Subject, config: Config, pod: Namespace) -> dict[str, Run]:
    done = {"ADD": subject.run("portmap", "ADD", config, pod)}
    done["CHECK"] = subject.run("portmap", "CHECK", config, pod, may_say=IPV4_ONLY)
    done["DEL"] = subject.run("portmap", "DEL", config, pod)
    return done


def _prove(subject: Subject, config: Config, pod: Namespace) -> None:
    """Calls the first and the last host port from the host, which must reach the pod, until DEL."""
    (address,) = (ip["address"].partition("/")[0] for ip in config["prevResult"]["ips"])
    bridge = config["prevResult"]["interfaces"][0]["name"]
    own = links(_HOST)[bridge]["addresses"][0]["local"]
    ports = [mapping["hostPort"] for mapping in config["runtimeConfig"]["portMappings"]]
    with serving(pod, address):
        for command, answers in (("ADD", True), ("DEL", False)):
            subject.run("portmap", command, config, pod)
            for port in (ports[0], ports[-1]):
                said = f"{subject.label}: {config['name']}, port {port} after {command}"
                assert bool(source_address(_HOST, own, port)) == answers, said
    settle()


def _detach(subject: Subject, config: Config, pod: Namespace) -> None:
    subject.run("bridge", "DEL", config, pod)
    settle()
