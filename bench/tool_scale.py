"""The operator's tool on nodes with many pods, host ports and networks: wall time and processor time of a command.

`python -m bench.tool_scale`, as root after `make needs-test binaries`, prints a table; it takes some ten minutes.
One rule: a command counts only if it inspected everything; its processor time includes that of its children.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import binaries, namespaces
from tests.support.namespaces import Namespace
from tests.support.node import Node

_ROUNDS = 3
_FIRST_PORT = 20_000
_WITH_OPTIONS = 50  # pods of the smallest node that have a host port and a limit; five times as many of 1,000 pods
_UNINSPECTED = 4  # the exit status of a command that has not inspected everything


class Shape(NamedTuple):
    """A node: its pods, how many of them have a host port and limits, the first pod's ports, networks without pods."""

    title: str
    commands: tuple[str, ...]
    pods: int = 0
    published: int = 0
    ports: int = 0
    networks: int = 0


SHAPES = (
    Shape("200 pods, 50 with a host port and limits", ("doctor", "show", "metrics", "test"), 200, _WITH_OPTIONS),
    Shape("1,000 pods, 250 of them so", ("doctor", "show", "metrics", "test"), 1000, 5 * _WITH_OPTIONS),
    Shape("a pod of 5,000 host ports", ("doctor", "metrics"), pods=1, ports=5000),
    Shape("300 networks without pods", ("doctor", "metrics"), networks=300),
)


class Cost(NamedTuple):
    """What a command cost, in seconds, and whether it inspected everything."""

    wall_s: float
    processor_s: float
    is_complete: bool


class _LargeNode(Node):
    """A node whose network has a /16, with the plugins that `podwire install --conf` configures."""

    @property
    def config(self) -> dict[str, Any]:
        """The network's list."""
        return _network(self, self.name, "cni0", "10.213.0.0/16")


def _network(node: Node, name: str, bridge: str, subnet: str) -> dict[str, Any]:
    ipam = {"type": "host-local", "dataDir": str(node.store.parent), "ranges": [[{"subnet": subnet}]]}
    keys = {"isDefaultGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    plugins: list[dict[str, Any]] = [
        {"type": "bridge", "bridge": bridge, **keys},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ]
    return {"cniVersion": "1.0.0", "name": name, "plugins": plugins}


def measure(shape: Shape) -> Iterator[tuple[str, Cost]]:
    """Yields each command of a node with its cost, the median by processor time of some rounds."""
    with ExitStack() as stack:
        host = stack.enter_context(namespaces.temporary_host())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = _LargeNode(host, directory)
        for number in range(shape.networks):
            config = _network(node, f"net{number}", f"br{number}", f"10.{number // 250}.{number % 250}.0/24")
            (directory / "net.d" / f"20-{number}.conflist").write_text(json.dumps(config))
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(shape.pods)]
        for number, pod in enumerate(pods):
            pod.ip("link", "set", "lo", "up")
            node.attach(pod, *_published(shape, number), limits=number < shape.published)
        for command in shape.commands:
            costs = [_cost(node, _line(node, command, pods)) for _ in range(_ROUNDS)]
            yield command, sorted(costs, key=lambda one: one.processor_s)[_ROUNDS // 2]


def _published(shape: Shape, number: int) -> Sequence[str]:
    if number == 0 and shape.ports:
        return [f"{_FIRST_PORT + port}:{1000 + port}" for port in range(shape.ports)]
    return [f"{_FIRST_PORT + number}:80"] if number < shape.published else []


def _line(node: Node, command: str, pods: Sequence[Namespace]) -> list[str]:
    line = [str(binaries.directory() / "podwire"), command, *(["default/" + pods[1].name] if command == "test" else ())]
    line += ["--cache-dir", str(node.directory), "--conf-dir", str(node.directory / "net.d")]
    line += ["--data-dir", str(node.store.parent)] if command in ("show", "metrics") else []
    return line + (["--bin-dir", str(binaries.directory())] if command != "test" else [])


def _cost(node: Node, line: Sequence[str]) -> Cost:
    """Runs a command in the host's namespace."""
    with node.host.entered():
        start = time.monotonic()
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, _UNINSPECTED), line
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, process.returncode != _UNINSPECTED)


def main() -> int:
    """Prints the table."""
    namespaces.expose_init()
    print("| node | command | wall, s | processor, s |\n|---|---|---|---|")
    is_complete = True
    for shape in SHAPES:
        for command, cost in measure(shape):
            is_complete &= cost.is_complete
            rest = "" if cost.is_complete else ", incomplete"
            text = f"{cost.wall_s:.2f} | {cost.processor_s:.2f}{rest}"
            print(f"| {shape.title} | `podwire {command}` | {text} |", flush=True)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
