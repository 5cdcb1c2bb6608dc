"""The plot of a run, docs/bench.svg: two dots for each of the main cases, on a logarithmic axis.

One rule: pure; only cases of this run are drawn, so that all figures have the same age.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from bench.page import TIMES, Case, Report, shown

# The plotted cases and their titles in the plot; the table on the page has all cases.
PLOTTED = {
    "VERSION": "start-up (VERSION)",
    "loopback ADD": "loopback: ADD",
    "bridge ADD": "bridge + host-local: ADD",
    "bridge DEL": "bridge + host-local: DEL",
    "masquerade, iptables ADD": "the same masqueraded, iptables: ADD",
    "masquerade, iptables DEL": "the same masqueraded, iptables: DEL",
    "masquerade, nftables ADD": "the same masqueraded, nftables: ADD",
    "masquerade, nftables DEL": "the same masqueraded, nftables: DEL",
    "masquerading ptp, iptables ADD": "ptp masqueraded: ADD",
    "masquerading ptp, iptables DEL": "ptp masqueraded: DEL",
    "1 host port, iptables ADD": "portmap, 1 port: ADD",
    "1 host port, iptables DEL": "portmap, 1 port: DEL",
    "100 host ports, iptables ADD": "portmap, 100 ports: ADD",
    "100 host ports, iptables DEL": "portmap, 100 ports: DEL",
    "2 limits ADD": "bandwidth: ADD",
    "2 limits DEL": "bandwidth: DEL",
    "masquerading bridge, 1 host port, 2 limits, iptables ADD": "bridge, portmap, bandwidth: ADD",
    "masquerading bridge, 1 host port, 2 limits, iptables DEL": "bridge, portmap, bandwidth: DEL",
    "full chain, iptables, 50 in parallel ADD": "the same, 50 pods in parallel: ADD each",
    "full chain, iptables, 50 in parallel DEL": "the same, 50 pods in parallel: DEL each",
    "masquerading bridge, 1 host port, firewall, tuning, iptables ADD": "podman's default list: ADD",
    "masquerading bridge, 1 host port, firewall, tuning, iptables DEL": "podman's default list: DEL",
    "host-local, 10,000 in use ADD": "host-local, 10,000 addresses in use: ADD",
}

_TITLE = "Time per call: podwire and the reference plugins 1.1.1"
_SUBTITLE = "milliseconds on a logarithmic scale; lower is better"
# Debian 12's version: a run with other plugins (REFERENCE=DIRECTORY) does not write the plot.
_LEGEND = (("podwire", "podwire"), ("reference", "reference plugins 1.1.1 (Go)"))

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
.title { font-size: 15px; font-weight: 600 }
.page { fill: #ffffff } .line { stroke: #d1d9e0 } .link { stroke: #afb8c1; stroke-width: 2 }
.podwire { fill: #0969da } .reference { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 }
  .page { fill: #0d1117 } .line { stroke: #3d444d } .link { stroke: #656c76 }
  .podwire { fill: #4493f8 } .reference { fill: #db6d28 }
}"""
# Pixels: width of the case names, a gap for figures, width of the axis, a gap for figures.
_NAMES, _GAP, _WIDTH, _RIGHT = 285, 40, 470, 60
_LEFT = _NAMES + _GAP
_TOP, _ROW, _RADIUS = 112, 25, 5


def svg(report: Report) -> str:
    """Returns the plot as SVG: two dots for each case, placed by the logarithm of milliseconds.

    Raises ValueError if the run has none of the plotted cases.
    """
    measured = {case["case"]: case for group in TIMES for case in report.get(group, [])}
    chosen = [(title, measured[name]) for name, title in PLOTTED.items() if name in measured]
    if not chosen:
        raise ValueError("the run has none of the plotted cases")
    values = [case[side]["median"] for _, case in chosen for side, _ in _LEGEND]
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    scale = _Scale(first, max(last, first + 1))
    height = _TOP + _ROW * len(chosen) + 8
    width = _LEFT + _WIDTH + _RIGHT
    parts = [*_head(), *scale.grid(height)]
    for row, (title, case) in enumerate(chosen):
        parts += _dots(title, case, _TOP + _ROW * row + _ROW // 2, scale)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    page = f'<rect class="page" width="{width}" height="{height}" rx="6"/>'
    about = f"<title>{_TITLE}; {_SUBTITLE}</title>"
    return "\n".join([head, about, f"<style>{_STYLE}\n</style>", page, *parts, "</svg>\n"])


class _Scale(NamedTuple):
    """Converts milliseconds to pixels: `first` and `last` are the decimal exponents at both ends of the axis."""

    first: int
    last: int

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return _LEFT + _WIDTH * min(max(share, 0.0), 1.0)

    def grid(self, height: int) -> list[str]:
        parts = []
        for exponent in range(self.first, self.last + 1):
            x, text = self.x(10.0**exponent), f"{shown(10.0**exponent)} ms"
            parts.append(f'<line class="line" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 8}"/>')
            parts.append(f'<text class="small" x="{x:.1f}" y="{_TOP - 12}" text-anchor="middle">{text}</text>')
        return parts


def _head() -> list[str]:
    """Returns title, subtitle and legend."""
    parts = [
        f'<text class="title" x="16" y="28">{_TITLE}</text>',
        f'<text x="16" y="48">{_SUBTITLE}</text>',
    ]
    for (kind, text), x in zip(_LEGEND, (22, 122), strict=True):
        parts.append(f'<circle class="{kind}" cx="{x}" cy="68" r="{_RADIUS}"/>')
        parts.append(f'<text x="{x + 10}" y="72">{text}</text>')
    return parts


def _dots(title: str, case: Case, y: int, scale: _Scale) -> list[str]:
    """Returns the row of a case: its title, a dot and a figure for each implementation, and a line between the dots."""
    parts = [f'<text x="{_NAMES}" y="{y + 4}" text-anchor="end">{escape(title)}</text>']
    sides = [(kind, case[kind]["median"]) for kind, _ in _LEGEND]
    ends = [scale.x(value) for _, value in sides]
    parts.append(f'<line class="link" x1="{min(ends):.1f}" y1="{y}" x2="{max(ends):.1f}" y2="{y}"/>')
    left_kind = min(sides, key=lambda side: side[1])[0]
    for (kind, value), x in zip(sides, ends, strict=True):
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="{_RADIUS}"/>')
        offset, anchor = (-9, "end") if kind == left_kind else (9, "start")
        place = f'x="{x + offset:.1f}" y="{y + 4}" text-anchor="{anchor}"'
        parts.append(f'<text class="small" {place}>{shown(value)}</text>')
    return parts
