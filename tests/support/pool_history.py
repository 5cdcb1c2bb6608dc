"""What pods had which address when: the history of a run with faults, and its check.

One rule: only what is certain counts. A pod has its address surely from the end of a successful ADD until DEL begins,
or until its machine is powered off.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass
class Holding:
    """An address that a pod of a node had, in seconds of this process's clock; `end_s` is None while it has it."""

    address: str
    node: str
    pod: str
    begin_s: float
    end_s: float | None = None


@dataclass
class History:
    """The holdings of all nodes; several threads may use it."""

    holdings: list[Holding] = field(default_factory=list)
    verbs: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    started_s: float = field(default_factory=time.monotonic)

    def begin(self, address: str, node: str, pod: str) -> Holding:
        """Notes that a pod has an address."""
        holding = Holding(address, node, pod, time.monotonic())
        with self.lock:
            self.holdings.append(holding)
        return holding

    def end(self, holding: Holding) -> None:
        """Notes that DEL begins."""
        with self.lock:
            holding.end_s = holding.end_s or time.monotonic()

    def power_off(self, node: str) -> list[Holding]:
        """Notes that a machine is off; returns what its pods had."""
        with self.lock:
            ended = [one for one in self.holdings if one.node == node and one.end_s is None]
            for one in ended:
                one.end_s = time.monotonic()
        return ended

    def fault(self, text: str) -> None:
        """Notes a fault that begins or ends."""
        with self.lock:
            self.faults.append(f"{time.monotonic() - self.started_s:6.1f} {text}")

    def duplicates(self) -> list[tuple[Holding, Holding]]:
        """Returns each two pods that surely had one address at the same time."""
        by_address: dict[str, list[Holding]] = {}
        pairs = []
        for one in sorted(self.holdings, key=lambda holding: holding.begin_s):
            for other in by_address.setdefault(one.address, []):
                if other.end_s is None or other.end_s > one.begin_s:
                    pairs.append((other, one))
            by_address[one.address].append(one)
        return pairs
