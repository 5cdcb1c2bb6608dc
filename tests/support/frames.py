"""Stations that send and hear Ethernet frames with their VLAN tags, as scapy sees them.

One rule: a station is a process inside the pod (tests/support/wire.py), told on stdin what to send; the test itself
stays where it is.
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
    """A listening pod."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, *frames: Frame) -> None:
        """Broadcasts frames."""
        self._ask(frames)

    def heard(self) -> set[Frame]:
        """Returns what was heard since the last call, once it has been quiet for a moment."""
        return {Frame(*item) for item in self._ask(None)}

    def _ask(self, question: object) -> list[list[object]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert isinstance(answer, list)
        return answer


@contextlib.contextmanager
def station(namespace: Namespace, interface: str = "eth0") -> Iterator[Station]:
    """Yields a station in a namespace, listening already."""
    line = ["nsenter", f"--net={namespace.path}", "--", sys.executable, "-B", "-m", "tests.support.wire", interface]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield Station(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
