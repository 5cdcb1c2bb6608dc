"""Stations that send and receive Ethernet frames with their VLAN tags, with scapy.

A station is a process in the pod (tests/support/wire.py), which reads from stdin the frames to send.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.binaries import ROOT
from tests.support.namespaces import Namespace


class Frame(NamedTuple):
    """One broadcast frame: its VLAN tag, 0 without one, and its text."""

    tag: int
    text: str


class Station:
    """A pod that receives frames."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, *frames: Frame) -> None:
        """Broadcasts frames."""
        self._ask(frames)

    def receive(self) -> set[Frame]:
        """Returns the frames received since the last call, after a moment without one."""
        return {Frame(*item) for item in self._ask(None)}

    def _ask(self, frames: object) -> list[tuple[int, str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(frames), file=self._process.stdin, flush=True)
        received = json.loads(self._process.stdout.readline())
        assert isinstance(received, list)
        return received


@contextlib.contextmanager
def station(namespace: Namespace, interface: str = "eth0") -> Iterator[Station]:
    """Yields a station in a namespace, ready to receive."""
    line = ["nsenter", f"--net={namespace.path}", "--", sys.executable, "-B", "-m", "tests.support.wire", interface]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield Station(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
