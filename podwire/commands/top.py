"""`podwire top`: the traffic of the pods, what their limits drop, and their tracked connections, live.

The command only reads.
"""

from __future__ import annotations

import io
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace

from cni.errors import Code
from podwire.command import Command, Context, ExitStatus, UsageError, add_json, places
from podwire.commands.show import add_places
from podwire.node.inspection import read_snapshot
from podwire.node.model import Pod, format_rate, short_id
from podwire.node.snapshot import Snapshot
from podwire.output import Cell, Output, Text, plural
from podwire.views import selection, terminal
from podwire.views.rates import Counts, Rate, compute_rates, read_counts
from process import signals
from process.signals import Terminated

_LEAST_S = 0.2
_READ_AGAIN_S = 10.0  # the pods; counters are read each time
_HEADERS = ("POD", "NETWORK", "RECEIVES", "PKT/S", "SENDS", "PKT/S", "LIMITS", "DROPS/S", "CONNTRACK")
_SORT_KEYS: dict[str, Callable[[Rate], tuple[object, ...]]] = {
    "traffic": lambda rate: (-rate.bits, _name(rate.pod)),
    "drops": lambda rate: (-(rate.drops or 0), -rate.bits, _name(rate.pod)),
    "conntrack": lambda rate: (-(rate.connections or 0), _name(rate.pod)),
    "pod": lambda rate: (_name(rate.pod),),
}
_DESCRIPTION = """\
Shows the running pods with their traffic from the pod's point of view, the packets per second that their limits drop
(bandwidth plugin), and the connections that the node tracks for their addresses; above them the node's tracked
connections and their limit. A full table of connections drops packets of new connections.

Keys: q ends it, s sorts by the next column of traffic, drops, conntrack, pod.

Without a terminal, and with --once, it prints one table over one interval.

--json, with --once: {"seconds", "conntrack": {"count", "limit"}, "attachments": [{"network", "containerID", "ifname",
"pod", "receivesBits", "receivesPackets", "sendsBits", "sendsPackets", "receivesDrops", "sendsDrops",
"connections"}]}: numbers per second, null where they are unknown."""


class _Pods:
    """The running pods of the node, read again after some seconds, with their counters of the previous moment."""

    def __init__(self, context: Context, options: Namespace) -> None:
        self._directories, self._network, self._pattern = places(context, options), options.network, options.pod
        self._snapshot, self._pods = self._read()
        self._before = read_counts(self._snapshot, self._pods)
        self._end = time.monotonic() + _READ_AGAIN_S

    def measure(self) -> tuple[list[Rate], Counts]:
        """Returns the rates since the previous measurement."""
        now = read_counts(self._snapshot, self._pods)
        rates = compute_rates(self._pods, self._before, now)
        self._before = now
        if now.time_s > self._end:
            self._snapshot, self._pods = self._read()
            self._before = read_counts(self._snapshot, self._pods)
            self._end = now.time_s + _READ_AGAIN_S
        return rates, now

    def _read(self) -> tuple[Snapshot, tuple[Pod, ...]]:
        snapshot = read_snapshot(self._directories, self._network, rules=False)
        selected = (pod for pod in snapshot.running if self._network in ("", pod.network) and pod.addresses)
        pods = (
            pod for pod in selected if pod.kind != "" and (not self._pattern or selection.matches(pod, self._pattern))
        )
        return snapshot, tuple(pods)


def _run(context: Context, options: Namespace) -> ExitStatus:
    if options.interval < _LEAST_S:
        raise UsageError(Code.INVALID_ENVIRONMENT, f"--interval must be at least {_LEAST_S:g} s")
    out = context.out
    is_live = not options.once and not out.as_json and out.stream.isatty() and sys.stdin.isatty()
    pods = _Pods(context, options)
    if is_live:
        _watch(pods, out, options)
        return ExitStatus.FINE
    time.sleep(options.interval)  # the length of the measurement
    rates, now = pods.measure()
    rates.sort(key=_SORT_KEYS[options.sort])
    _print_json(rates, now, options.interval, out)
    _print(rates, now, out)
    return ExitStatus.FINE


def _watch(pods: _Pods, out: Output, options: Namespace) -> None:
    """Shows the table until a key or a signal ends it."""
    signals.block()
    keyboard, order = sys.stdin.fileno(), list(_SORT_KEYS)
    key = options.sort
    with terminal.full_screen(keyboard, out.stream):
        try:
            keys = terminal.wait_for_keys(keyboard, min(options.interval, 1.0))
            while "q" not in keys:
                if "s" in keys:
                    key = order[(order.index(key) + 1) % len(order)]
                rates, now = pods.measure()
                rates.sort(key=_SORT_KEYS[key])
                terminal.draw(_screen(rates, now, out, key), out.stream)
                keys = terminal.wait_for_keys(keyboard, options.interval)
        except Terminated:
            return


def _screen(rates: list[Rate], now: Counts, out: Output, key: str) -> list[str]:
    """Returns the lines that fit the terminal."""
    size = os.get_terminal_size(out.stream.fileno())
    text = io.StringIO()
    _print(rates, now, replace(out, stream=text, width=size.columns))
    lines = text.getvalue().splitlines()
    rows = max(size.lines - 1, 1)
    return [*lines[:rows], f"{time.strftime('%H:%M:%S')}  sorted by {key}  (q: end, s: sort)"[: size.columns]]


def _print(rates: list[Rate], now: Counts, out: Output) -> None:
    if now.conntrack:
        percent = 100 * now.conntrack.count // max(now.conntrack.limit, 1)
        style = "bad" if percent >= 90 else "warning" if percent >= 70 else ""
        summary = f"{now.conntrack.count} of {now.conntrack.limit} connections tracked ({percent} %)"
        out.print(f"{plural(len(rates), 'attachment')},", Cell(summary, style))
    if not rates:
        out.print("no running attachments")
        return
    out.print_table(_HEADERS, [_row(rate) for rate in rates], optional=("LIMITS", "NETWORK", "CONNTRACK"))


def _row(rate: Rate) -> list[Text]:
    pod = rate.pod
    limits = " ".join(format_rate(bits).replace(" ", "") if bits else "-" for bits in (pod.receives, pod.sends))
    drops = "-" if rate.drops is None else f"{rate.drops:.0f}"
    return [
        _name(pod),
        pod.network,
        _rate_text(rate.receives_bits),
        _number(rate.receives_packets),
        _rate_text(rate.sends_bits),
        _number(rate.sends_packets),
        limits if pod.receives or pod.sends else "-",
        Cell(drops, "bad" if rate.drops else ""),
        _number(rate.connections),
    ]


def _print_json(rates: list[Rate], now: Counts, seconds: float, out: Output) -> None:
    conntrack = {"count": now.conntrack.count, "limit": now.conntrack.limit} if now.conntrack else None
    documents = [
        {
            "network": rate.pod.network,
            "containerID": rate.pod.attachment.container_id,
            "ifname": rate.pod.attachment.ifname,
            "pod": rate.pod.pod,
            "receivesBits": rate.receives_bits,
            "receivesPackets": rate.receives_packets,
            "sendsBits": rate.sends_bits,
            "sendsPackets": rate.sends_packets,
            "receivesDrops": rate.receives_drops,
            "sendsDrops": rate.sends_drops,
            "connections": rate.connections,
        }
        for rate in rates
    ]
    out.print_json({"seconds": seconds, "conntrack": conntrack, "attachments": documents})


def _name(pod: Pod) -> str:
    return pod.pod or short_id(pod.attachment.container_id)


def _rate_text(bits: float | None) -> str:
    """Returns a rate of three digits: "1.25 Mbit/s"."""
    return "-" if bits is None else format_rate(_rounded(bits))


def _rounded(number: float) -> int:
    """Returns a number rounded to three digits."""
    whole = round(number)
    step = int("1" + "0" * (len(str(whole)) - 3))
    return round(whole / step) * step


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("network", nargs="?", default="", metavar="NETWORK", help="only the pods of this network")
    parser.add_argument("--pod", metavar="POD", default="", help="only this pod, as for `podwire show`; may contain *")
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--interval", metavar="SECONDS", type=float, default=2.0, help="time between measurements (2)")
    parser.add_argument(
        "--sort", metavar="KEY", choices=tuple(_SORT_KEYS), default="traffic", help=f"{', '.join(_SORT_KEYS)} (traffic)"
    )
    add_places(parser)
    add_json(parser)


COMMAND = Command(
    "top",
    "traffic, drops at limits and connections of the pods, live",
    _DESCRIPTION,
    _run,
    _arguments,
    (
        ("podwire top", "until q is pressed"),
        ("podwire top --once --sort drops", "whose limit drops packets now?"),
    ),
)
