"""The plot of a run, docs/bench.svg: two bars for each of the main cases.

One rule: pure; what is not in the run is not drawn, so that no figure is older than the rest.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from bench.page import Case, Report, cases, shown

# The cases that are plotted, and what they are called there; the table has all of them.
PLOTTED = {
    "VERSION": "start-up (VERSION)",
    "loopback ADD": "loopback: ADD",
    "bridge ADD": "bridge + host-local: ADD",
    "bridge DEL": "bridge + host-local: DEL",
    "masquerade, iptables ADD": "the same masqueraded, iptables: ADD",
    "masquerade, iptables DEL": "the same masqueraded, iptables: DEL",
    "masquerade, nftables ADD": "the same masqueraded, nftables: ADD",
    "masquerade, nftables DEL": "the same masqueraded, nftables: DEL",
    "masquerading ptp, iptables: ADD": "ptp masqueraded: ADD",
    "masquerading ptp, iptables: DEL": "ptp masqueraded: DEL",
    "1 host port, iptables: ADD": "portmap, 1 port: ADD",
    "1 host port, iptables: DEL": "portmap, 1 port: DEL",
    "100 host ports, iptables: ADD": "portmap, 100 ports: ADD",
    "100 host ports, iptables: DEL": "portmap, 100 ports: DEL",
    "2 limits: ADD": "bandwidth: ADD",
    "2 limits: DEL": "bandwidth: DEL",
    "masquerading bridge, 1 host port, 2 limits, iptables: ADD": "bridge, portmap, bandwidth: ADD",
    "masquerading bridge, 1 host port, 2 limits, iptables: DEL": "bridge, portmap, bandwidth: DEL",
    "full chain, iptables, 50 at a time: ADD": "the same, 50 pods at once: ADD each",
    "full chain, iptables, 50 at a time: DEL": "the same, 50 pods at once: DEL each",
    "masquerading bridge, 1 host port, firewall, tuning, iptables: ADD": "podman's default list: ADD",
    "masquerading bridge, 1 host port, firewall, tuning, iptables: DEL": "podman's default list: DEL",
    "host-local ADD, 10,000 taken": "host-local, 10,000 addresses in use: ADD",
}

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
.page { fill: #ffffff } .line { stroke: #d1d9e0 } .ours { fill: #0969da } .reference { fill: #afb8c1 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 }
  .page { fill: #0d1117 } .line { stroke: #3d444d } .ours { fill: #4493f8 } .reference { fill: #656c76 }
}"""
_LEFT, _WIDTH, _RIGHT = 270, 470, 70  # of the names, of the bars, of the figures behind them
_TOP, _ROW, _BAR = 56, 34, 12


def svg(report: Report) -> str:
    """Returns the plot: two bars for each case, lengths by the logarithm of milliseconds."""
    found = {case.name: case for group in ("ms", "parallel_ms") for case in cases(report, group)}
    chosen = [found[name]._replace(name=title) for name, title in PLOTTED.items() if name in found]
    if not chosen:
        raise ValueError("nothing that is plotted was measured")
    values = [value for case in chosen for value in (case.ours, case.reference) if value]
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    scale = _Scale(first, max(last, first + 1))
    height = _TOP + _ROW * len(chosen) + 12
    width = _LEFT + _WIDTH + _RIGHT
    parts = [*_legend(), *scale.grid(height)]
    for row, case in enumerate(chosen):
        parts += _bars(case, _TOP + _ROW * row, scale)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    page = f'<rect class="page" width="{width}" height="{height}" rx="6"/>'
    title = "<title>Milliseconds of podwire and of the reference plugins, logarithmic</title>"
    return "\n".join([head, title, f"<style>{_STYLE}\n</style>", page, *parts, "</svg>\n"])


class _Scale(NamedTuple):
    """From milliseconds to a place: `first` and `last` are the decimal exponents at both ends."""

    first: int
    last: int

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return _LEFT + _WIDTH * min(max(share, 0.0), 1.0)

    def grid(self, height: int) -> list[str]:
        parts = []
        for exponent in range(self.first, self.last + 1):
            x, text = self.place(10.0**exponent), f"{shown(10.0**exponent)} ms"
            parts.append(f'<line class="line" x1="{x:.1f}" y1="{_TOP - 10}" x2="{x:.1f}" y2="{height - 8}"/>')
            parts.append(f'<text class="small" x="{x:.1f}" y="{_TOP - 16}" text-anchor="middle">{text}</text>')
        return parts


def _legend() -> list[str]:
    x = _LEFT
    parts = []
    for kind, text in (("ours", "podwire"), ("reference", "reference plugins (Go)")):
        parts.append(f'<rect class="{kind}" x="{x}" y="10" width="12" height="12"/>')
        parts.append(f'<text x="{x + 18}" y="20">{text}</text>')
        x += 100
    return parts


def _bars(case: Case, y: int, scale: _Scale) -> list[str]:
    parts = [f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(case.name)}</text>']
    for place, (kind, value) in enumerate((("ours", case.ours), ("reference", case.reference))):
        if value is None:
            continue
        top, end = y + place * (_BAR + 1), scale.place(value)
        parts.append(
            f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{end - _LEFT:.1f}" height="{_BAR}"/>'
            f'<text class="small" x="{end + 5:.1f}" y="{top + 10}">{shown(value)}</text>'
        )
    return parts
