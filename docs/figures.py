"""Draws the figures of how-it-works.md: `python docs/figures.py` writes docs/add.svg and docs/image.svg.

One rule: what is drawn stands in a table here; the style follows the reader's, light or dark.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.head { font-weight: 600 } .small { font-size: 11px; fill: #59636e }
.page { fill: #ffffff } .box { fill: #f6f8fa; stroke: #d1d9e0 } .own { fill: #ddf4ff; stroke: #54aeff }
.line { stroke: #d1d9e0 } .arrow { stroke: #0969da; fill: none; stroke-width: 1.5 } .tip { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 }
  .page { fill: #0d1117 } .box { fill: #151b23; stroke: #3d444d } .own { fill: #12243d; stroke: #1f6feb }
  .line { stroke: #3d444d } .arrow { stroke: #4493f8 } .tip { fill: #4493f8 }
}"""

# One ADD as `strace` shows it: bridge, host-local, ipMasq by nftables, the second pod of a network.
_LANES = ("runtime", "bridge", "files", "kernel: host", "kernel: pod", "nf_tables")
_STEPS = (
    (0, 1, "exec; CNI_* and the configuration on stdin"),
    (1, 3, "is cni0 there? (RTM_GETLINK; else RTM_NEWLINK makes it)"),
    (1, 4, "one send: a veth pair, both ends in place, one a port of cni0; as they are now (RTM_NEWLINK, GETLINK)"),
    (1, 2, "host-local, the same process: lock, index, 10.22.0.3 appears (linkat)"),
    (1, 4, "in the pod (setns, socket), one send: address, up, default route (RTM_NEWADDR, NEWLINK, NEWROUTE)"),
    (1, 3, "does the port forward? (RTM_GETLINK)"),
    (1, 5, "chain and rules; one transaction adds the pod's rule"),
    (1, 3, "gateway address and forwarding: made once, looked at now (RTM_GETADDR)"),
    (1, 4, "announce the MAC, a gratuitous ARP (RTM_NEWLINK)"),
    (1, 0, "the result on stdout; exit 0"),
)

_BUILD = (
    ("sources, libpython, libc", "compiled and linked: the seed"),
    ("the seed runs once", "Python starts, imports everything, plays each verb"),
    ("it notes which memory that wrote to", "what is used is laid side by side"),
    ("the seed runs again", "with that layout, and dumps its memory"),
    ("the dump goes into the file", "as its writable segment: the start-up image"),
)
_START = (
    ("execve", "the kernel maps the file; no page is read yet"),
    ("libc starts afresh", "stack, TLS, CPU features, canary: this process's"),
    ("descriptors, signals, thread, environment", "what differs between processes is set"),
    ("entry(): argv[0] is the plugin's name", "no import, no initialisation, no search"),
    ("a page is copied when it is written to", "Python counts references: what is used lies together"),
)


def sequence() -> str:
    """Returns the figure of one ADD: lanes, and an arrow for each step."""
    gap, first, top, step = 150, 80, 74, 40
    height = top + step * len(_STEPS) + 16
    at = [first + gap * number for number in range(len(_LANES))]
    parts = []
    for x, lane in zip(at, _LANES, strict=True):
        kind = "own" if x == at[1] else "box"
        parts.append(f'<rect class="{kind}" x="{x - 68}" y="14" width="136" height="30" rx="5"/>')
        parts.append(f'<text class="head" x="{x}" y="34" text-anchor="middle">{escape(lane)}</text>')
        parts.append(f'<line class="line" x1="{x}" y1="44" x2="{x}" y2="{height - 10}"/>')
    for number, (source, target, text) in enumerate(_STEPS):
        y = top + step * number + 12
        start, end = at[source], at[target]
        tip = end - 7 if end > start else end + 7
        parts.append(f'<path class="arrow" d="M{start} {y}H{tip}"/>')
        parts.append(f'<path class="tip" d="M{end} {y}L{tip} {y - 4}V{y + 4}Z"/>')
        x, room = min(start, end) + 8, len(text) * 6.6 + 8
        parts.append(f'<rect class="page" x="{x - 3}" y="{y - 20}" width="{room:.0f}" height="16"/>')
        parts.append(f'<text x="{x}" y="{y - 7}">{number + 1}. {escape(text)}</text>')
    return _svg(at[-1] + 90, height, "One ADD of bridge with host-local and masquerading", parts)


def image() -> str:
    """Returns the figure of the start-up image: what the build does, and what a start does."""
    width, left, top, step = 400, 24, 70, 62
    parts = []
    for column, (head, boxes) in enumerate((("at build time, once", _BUILD), ("at each start", _START))):
        x = left + column * (width + 48)
        parts.append(f'<text class="head" x="{x}" y="40">{head}</text>')
        for row, (title, text) in enumerate(boxes):
            y = top + row * step
            kind = "own" if (column, row) in ((0, 4), (1, 0)) else "box"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y - 18}" width="{width}" height="46" rx="5"/>')
            parts.append(f'<text x="{x + 12}" y="{y}">{escape(title)}</text>')
            parts.append(f'<text class="small" x="{x + 12}" y="{y + 18}">{escape(text)}</text>')
            if row < len(boxes) - 1:
                parts.append(f'<path class="arrow" d="M{x + 30} {y + 28}v9"/>')
                parts.append(f'<path class="tip" d="M{x + 30} {y + 44}l-4 -7h8Z"/>')
    last, right = top + (len(_BUILD) - 1) * step + 5, left + width
    parts.append(f'<path class="arrow" d="M{right} {last}h24V{top + 5}h17"/>')
    parts.append(f'<path class="tip" d="M{right + 48} {top + 5}l-7 -4v8Z"/>')
    return _svg(2 * width + 48 + 2 * left, top + len(_BUILD) * step - 10, "The start-up image", parts)


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    page = f'<rect class="page" width="{width}" height="{height}" rx="6"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}\n</style>", page, *parts, "</svg>\n"])


if __name__ == "__main__":
    for name, text in (("add", sequence()), ("image", image())):
        (Path(__file__).parent / f"{name}.svg").write_text(text)
