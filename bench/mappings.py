"""The cost of many host ports for packets: connecting through 1,000 mappings, and through a single one.

One rule: only the first packet of a connection passes the rules, so connect() of an existing socket is timed, until the
connection is established; and the plugins themselves create the rules.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.cases import Subjects
from bench.figures import Figures, Row, figures
from bench.process import wait_all
from bench.subject import PORTS, Config, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace
from tests.support.tcp import PORT

CALLS = 5  # connections per round

_CONTAINERS, _PORTS_EACH = 100, 10
_HOST, _CLIENT = "192.0.2.1", "192.0.2.2"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: no TIME_WAIT, which would use up the ports
_TIMEOUT_S = 5
_TIMEOUT = struct.pack("ll", _TIMEOUT_S, 0)  # struct timeval


class _Series(NamedTuple):
    """The measurements of one implementation and backend, in microseconds by case."""

    subject: Subject
    backend: str
    set_up_s: float
    figures: dict[str, Figures]


def connections(subjects: Subjects, calls: int) -> tuple[list[Row], list[str]]:
    """Measures `calls` connections to the first host port, to the last, and to the first as the only one.

    Returns the rows, and a line for each series about the creation of its rules.
    """
    ours, reference = subjects
    baseline = _measure(reference, "iptables", calls)
    rows, notes = [], [_note(baseline)]
    for backend in ("iptables", "nftables"):
        series = _measure(ours, backend, calls)
        notes.append(_note(series))
        rows += [Row(f"{case}, {backend}", series.figures[case], baseline.figures[case]) for case in series.figures]
    return rows, notes


def _measure(subject: Subject, backend: str, calls: int) -> _Series:
    """Creates a host with a pod and a client, has `subject` publish the host ports, and connects to them."""
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(namespaces.temporary_host())
        pod, client = (stack.enter_context(namespaces.temporary()) for _ in range(2))
        result = stack.enter_context(_connected(subject, host, pod, client))
        server = stack.enter_context(_listening(pod, result["ips"][0]["address"].partition("/")[0]))
        first, last = subject.host_port, subject.host_port + _CONTAINERS * _PORTS_EACH - 1
        connector = _Connector(client, server)
        _publish(subject, backend, host, pod, result, range(1))
        by_case = {"the only container": connector.figures([first], calls)[0]}
        started = time.monotonic()
        _publish(subject, backend, host, pod, result, range(1, _CONTAINERS))
        set_up_s = time.monotonic() - started
        count = f"{_CONTAINERS * _PORTS_EACH:,}"
        titles = [f"first of {count} ports", f"last of {count} ports"]
        by_case |= zip(titles, connector.figures([first, last], calls), strict=True)
    return _Series(subject, backend, set_up_s, by_case)


def _note(series: _Series) -> str:
    ms_per_add = series.set_up_s / (_CONTAINERS - 1) * 1000
    return (
        f"{series.subject.label}, {series.backend}: {_CONTAINERS} containers with {_PORTS_EACH} host ports each "
        f"took {series.set_up_s:.1f} s, {ms_per_add:.0f} ms per ADD"
    )


@contextlib.contextmanager
def _connected(subject: Subject, host: Namespace, pod: Namespace, client: Namespace) -> Iterator[Config]:
    """Connects the pod to the host's bridge and the client to the host; yields the result of the pod's ADD."""
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", client.name)
    for namespace, address in ((host, _HOST), (client, _CLIENT)):
        namespace.ip("address", "add", f"{address}/24", "dev", "up0")
        namespace.ip("link", "set", "up0", "up")
    network = subject.network(PORTS)
    with host.entered():
        result = subject.run("bridge", "ADD", network, pod).outcome.result()
    yield result
    with host.entered():
        subject.run("bridge", "DEL", {**network, "prevResult": result}, pod)
    wait_all()


def _publish(
    subject: Subject, backend: str, host: Namespace, pod: Namespace, result: Config, numbers: Sequence[int]
) -> None:
    """Publishes the host ports of containers `numbers`, all of which forward to the one pod."""
    with host.entered():
        for number in numbers:
            config = subject.portmap(backend, _PORTS_EACH, result, skip=number * _PORTS_EACH)
            subject.run("portmap", "ADD", config, pod, f"{number:064x}")
    wait_all()


@contextlib.contextmanager
def _listening(pod: Namespace, address: str) -> Iterator[socket.socket]:
    """Yields a socket that listens in the pod; the kernel completes connections before they are accepted."""
    with pod.entered():
        server = socket.create_server((address, PORT))
    with server:
        server.settimeout(_TIMEOUT_S)
        yield server


class _Connector:
    """Connects from the client's namespace, which stands for another machine, to host ports."""

    def __init__(self, client: Namespace, server: socket.socket) -> None:
        self._client = client
        self._server = server

    def figures(self, ports: Sequence[int], calls: int) -> list[Figures]:
        """Connects to the ports in alternation, `calls` times each; returns the figures of each, in microseconds."""
        samples: dict[int, list[float]] = {port: [] for port in ports}
        for port in ports:
            self._connect(port)  # resolves neighbours and fills the processor's caches
        for _ in range(calls):
            for port in ports:
                samples[port].append(self._connect(port))
        return [figures(values) for values in samples.values()]

    def _connect(self, port: int) -> float:
        with self._client.entered():
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)  # a timeout of Python's would poll
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            started = time.perf_counter_ns()
            connection.connect((_HOST, port))
            ended = time.perf_counter_ns()
            accepted, (address, _) = self._server.accept()
            accepted.close()
        if address != _CLIENT:
            raise RuntimeError(f"the pod sees {address} instead of {_CLIENT} at port {port}")
        return (ended - started) / 1000
