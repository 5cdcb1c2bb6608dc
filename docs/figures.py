"""Draws the figures of the pages: `python docs/figures.py` writes docs/{add,image,routes,pools}.svg.

One rule: the tables below have all texts; the style follows the reader's color scheme, light or dark.
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

_Columns = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

_LEFT, _TOP, _STEP, _GAP = 24, 70, 62, 48
_CHARACTER_PX = 7.0  # the average of a wide font at 13 px, such as DejaVu Sans

# One ADD as `strace` shows it: bridge, host-local, ipMasq with nftables, the second pod of a network.
_LANES = ("runtime", "bridge", "files", "kernel: host", "kernel: pod", "nf_tables")
_STEPS = (
    (0, 1, "exec: CNI_* variables, configuration on stdin"),
    (1, 3, "does cni0 exist? (RTM_GETLINK; if not, RTM_NEWLINK creates it)"),
    (1, 4, "one send: create the veth pair, its host end a port of cni0 (RTM_NEWLINK, GETLINK)"),
    (1, 2, "host-local, in the same process: lock, index, reserve 10.22.0.3 (linkat)"),
    (1, 4, "in the pod (setns), one send: address, up, default route (RTM_NEWADDR, ...)"),
    (1, 3, "is the bridge port forwarding? (RTM_GETLINK)"),
    (1, 5, "list chain and rules; one transaction adds the pod's rule"),
    (1, 3, "check the gateway address and forwarding, set by the first pod (RTM_GETADDR)"),
    (1, 4, "announce the MAC address with a gratuitous ARP (RTM_NEWLINK)"),
    (1, 0, "result on stdout; exit 0"),
)

_BUILD = (
    ("sources, libpython, libc", "compiled and linked: the image builder"),
    ("first run of the image builder", "starts Python, imports everything, runs each verb"),
    ("which memory was written?", "what the verbs use is placed side by side"),
    ("second run of the image builder", "uses that layout, then dumps its memory"),
    ("the dump is added to the executable", "as its writable segment: the start-up image"),
)
_START = (
    ("execve", "the kernel maps the file; no page is read yet"),
    ("libc is initialized", "stack, TLS, CPU features, canary of this process"),
    ("descriptors, signals, thread, environment", "values that differ between processes are set"),
    ("entry(): argv[0] is the plugin's name", "no imports, no initialization, no search"),
    ("a page is copied when it is written", "Python counts references; used objects share pages"),
)

_DIRECT = (
    ("pod 10.244.1.5 on node-1", "sends a packet to 10.244.2.7"),
    ("masquerading on node-1: none", "10.244.2.0/24 is in the set podwire_cluster_4"),
    ("route on node-1", "10.244.2.0/24 via 192.0.2.12 dev eth0"),
    ("eth0 to eth0", "10.244.1.5 > 10.244.2.7: routers of the link see pods' addresses"),
    ("cni0 on node-2", "10.244.2.0/24 is connected"),
    ("pod 10.244.2.7 on node-2", "sees 10.244.1.5 as the source"),
)
_VXLAN = (
    ("pod 10.244.1.5 on node-1", "sends a packet to 10.244.2.7; its MTU is 50 bytes less"),
    ("masquerading on node-1: none", "10.244.2.0/24 is in the set podwire_cluster_4"),
    ("route on node-1", "10.244.2.0/24 via 10.244.2.0 dev podwire-vxlan onlink"),
    ("neighbour and FDB entry on node-1", "10.244.2.0 is at node-2's MAC address, and that is at 203.0.113.12"),
    ("eth0 to eth0", "192.0.2.11 > 203.0.113.12, UDP port 4789: the packet is inside"),
    ("podwire-vxlan and cni0 on node-2", "unpacked; 10.244.2.0/24 is connected"),
)

_CLAIMING = (
    ("free", "no object, or one without an owner"),
    ("intended: in node-1's file", "so a crash leaves no unknown block"),
    ("claimed by compare-and-swap", "owner node-1, generation 8, epoch k3v9"),
    ("in node-1's entry in the store", "the other agents make the route"),
    ("granted: in node-1's file", "host-local allocates: no request for a pod"),
)
_RETURNED = (
    ("granted, unused for ten minutes", "and the node has another unused block"),
    ("revoked, under host-local's lock", "no ADD can use it any more"),
    ("not in node-1's entry", "the other agents delete the route"),
    ("given back by compare-and-swap", "no owner; the generation stays 8"),
    ("free", "the next claim, by any node, has generation 9"),
)


def sequence() -> str:
    """Returns the figure of one ADD as SVG: lanes, and an arrow for each step."""
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
        x, room = min(start, end) + 8, (len(text) + 4) * _CHARACTER_PX
        parts.append(f'<rect class="page" x="{x - 3}" y="{y - 20}" width="{room:.0f}" height="16"/>')
        parts.append(f'<text x="{x}" y="{y - 7}">{number + 1}. {escape(text)}</text>')
    return _svg(at[-1] + 90, height, "One ADD of bridge with host-local and masquerading", parts)


def image() -> str:
    """Returns the figure of the start-up image as SVG: the steps of the build, and those of a start."""
    width, top = 400, _TOP
    parts = _columns((("at build time, once", _BUILD), ("at each start", _START)), ((0, 4), (1, 0)), width)
    last, right = _TOP + (len(_BUILD) - 1) * _STEP + 5, _LEFT + width
    parts.append(f'<path class="arrow" d="M{right} {last}h24V{top + 5}h17"/>')
    parts.append(f'<path class="tip" d="M{right + 48} {top + 5}l-7 -4v8Z"/>')
    return _svg(2 * width + _GAP + 2 * _LEFT, _TOP + len(_BUILD) * _STEP - 10, "The start-up image", parts)


def routes() -> str:
    """Returns the figure of a packet's way to a pod of another node as SVG: direct, and through VXLAN."""
    width = 460
    columns = (("direct: both nodes are on one link", _DIRECT), ("VXLAN: a router is between the nodes", _VXLAN))
    parts = _columns(columns, ((0, 2), (1, 2), (1, 3)), width)
    return _svg(2 * width + _GAP + 2 * _LEFT, _TOP + len(_DIRECT) * _STEP - 10, "The way to another node", parts)


def pools() -> str:
    """Returns the figure of a block's life as SVG: how a node takes it, and how it comes back."""
    width = 400
    parts = _columns((("a node takes a block", _CLAIMING), ("and gives it back", _RETURNED)), ((0, 4), (1, 0)), width)
    return _svg(2 * width + _GAP + 2 * _LEFT, _TOP + len(_CLAIMING) * _STEP - 10, "The life of a block", parts)


def _columns(columns: _Columns, marked: tuple[tuple[int, int], ...], width: int) -> list[str]:
    """Returns columns of boxes from top to bottom; the `marked` ones, by column and row, are highlighted."""
    parts = []
    for column, (head, boxes) in enumerate(columns):
        x = _LEFT + column * (width + _GAP)
        parts.append(f'<text class="head" x="{x}" y="40">{head}</text>')
        for row, (title, text) in enumerate(boxes):
            y = _TOP + row * _STEP
            kind = "own" if (column, row) in marked else "box"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y - 18}" width="{width}" height="46" rx="5"/>')
            parts.append(f'<text x="{x + 12}" y="{y}">{escape(title)}</text>')
            parts.append(f'<text class="small" x="{x + 12}" y="{y + 18}">{escape(text)}</text>')
            if row < len(boxes) - 1:
                parts.append(f'<path class="arrow" d="M{x + 30} {y + 28}v9"/>')
                parts.append(f'<path class="tip" d="M{x + 30} {y + 44}l-4 -7h8Z"/>')
    return parts


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    page = f'<rect class="page" width="{width}" height="{height}" rx="6"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}\n</style>", page, *parts, "</svg>\n"])


if __name__ == "__main__":
    for name, text in (("add", sequence()), ("image", image()), ("routes", routes()), ("pools", pools())):
        (Path(__file__).parent / f"{name}.svg").write_text(text)
