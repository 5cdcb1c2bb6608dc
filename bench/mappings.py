"""What many host ports cost the packets: connections through 1,000 mappings, and with no other mapping there.

One rule: only the first packet of a connection passes the rules, so what is timed is connect(), by a socket that is
there already, until the connection stands; and the rules are those that the plugins themselves make.
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
from bench.process import settle
from bench.subject import PORTS, Config, Subject
from tests.support import namespaces
from tests.support.namespaces import Namespace
from tests.support.tcp import PORT

CALLS = 5  # connections for each round that is asked for

_CONTAINERS, _PORTS_EACH = 100, 10
_HOST, _CLIENT = "192.0.2.1", "192.0.2.2"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: no TIME_WAIT, which would run out of ports
_TIMEOUT_S = 5
_TIMEOUT = struct.pack("ll", _TIMEOUT_S, 0)  # struct timeval


class _Way(NamedTuple):
    """One way to make the rules, and what was found with it, in microseconds."""

    subject: Subject
    backend: str
    set_up_s: float
    found: dict[str, Figures]


def connections(subjects: Subjects, calls: int) -> tuple[list[Row], list[str]]:
    """Measures `calls` connections to the first host port, to the last, and to the first when it was the only one.

    Returns the rows, and a line for each way on how its rules were made.
    """
    ours, reference = subjects
    go = _way(reference, "iptables", calls)
    rows, notes = [], [_note(go)]
    for backend in ("iptables", "nftables"):
        own = _way(ours, backend, calls)
        notes.append(_note(own))
        rows += [Row(f"{case}, {backend}", own.found[case], go.found[case]) for case in own.found]
    return rows, notes


def _way(subject: Subject, backend: str, calls: int) -> _Way:
    """Makes a host with a pod and a client of its own, and has one implementation make the rules."""
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(namespaces.temporary_host())
        pod, client = (stack.enter_context(namespaces.temporary()) for _ in range(2))
        result = stack.enter_context(_wired(subject, host, pod, client))
        server = stack.enter_context(_listening(pod, result["ips"][0]["address"].partition("/")[0]))
        first, last = subject.host_port, subject.host_port + _CONTAINERS * _PORTS_EACH - 1
        call = _Caller(client, server)
        _publish(subject, backend, host, pod, result, range(1))
        found = {"the only container": call.figures([first], calls)[0]}
        started = time.monotonic()
        _publish(subject, backend, host, pod, result, range(1, _CONTAINERS))
        set_up_s = time.monotonic() - started
        count = f"{_CONTAINERS * _PORTS_EACH:,}"
        titles = [f"first of {count} ports", f"last of {count} ports"]
        found |= zip(titles, call.figures([first, last], calls), strict=True)
    return _Way(subject, backend, set_up_s, found)


def _note(way: _Way) -> str:
    each = way.set_up_s / (_CONTAINERS - 1) * 1000
    return (
        f"{way.subject.label}, {way.backend}: {_CONTAINERS} containers of {_PORTS_EACH} host ports each "
        f"took {way.set_up_s:.1f} s, {each:.0f} ms an ADD"
    )


@contextlib.contextmanager
def _wired(subject: Subject, host: Namespace, pod: Namespace, client: Namespace) -> Iterator[Config]:
    """Attaches the pod to the host's bridge and the client to the host, and yields the result of the pod's ADD."""
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
    settle()


def _publish(
    subject: Subject, backend: str, host: Namespace, pod: Namespace, result: Config, numbers: Sequence[int]
) -> None:
    """Makes the host ports of some containers, all of which lead to the one pod."""
    with host.entered():
        for number in numbers:
            config = subject.host_ports(backend, _PORTS_EACH, result, skip=number * _PORTS_EACH)
            subject.run("portmap", "ADD", config, pod, f"{number:064x}")
    settle()


@contextlib.contextmanager
def _listening(pod: Namespace, address: str) -> Iterator[socket.socket]:
    """Yields a socket that listens in the pod; the kernel completes connections before they are accepted."""
    with pod.entered():
        server = socket.create_server((address, PORT))
    with server:
        server.settimeout(_TIMEOUT_S)
        yield server


class _Caller:
    """A client on another machine, as it were, that calls the host's ports."""

    def __init__(self, client: Namespace, server: socket.socket) -> None:
        self._client = client
        self._server = server

    def figures(self, ports: Sequence[int], calls: int) -> list[Figures]:
        """Calls the ports in turn, `calls` times each, and returns the figures of each, in microseconds."""
        taken: dict[int, list[float]] = {port: [] for port in ports}
        for port in ports:
            self._call(port)  # neighbours are resolved, code paths of the kernel are hot
        for _ in range(calls):
            for port in ports:
                taken[port].append(self._call(port))
        return [figures(values) for values in taken.values()]

    def _call(self, port: int) -> float:
        with self._client.entered():
            caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)  # Python's own would poll
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            started = time.perf_counter_ns()
            caller.connect((_HOST, port))
            ended = time.perf_counter_ns()
            accepted, (address, _) = self._server.accept()
            accepted.close()
        if address != _CLIENT:
            raise RuntimeError(f"the pod sees {address} instead of {_CLIENT} at port {port}")
        return (ended - started) / 1000
