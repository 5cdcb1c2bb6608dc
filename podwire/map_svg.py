"""The map of a node as an SVG picture: host, bridges, pods in columns, leaked objects in red.

Pure functions: every text is escaped, and characters that XML does not allow are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from podwire.node.model import HostInterface, Leak, Node, Pod, State, format_rate

_WIDTH, _LINE, _PAD, _GAP = 250, 15, 8, 14  # of a box, a text line, inside boxes, between boxes; pixels
_COLUMNS = 4
_MARGIN = 20
_CHARACTERS = 36  # that fit into a box
_LONG = 180  # of a line below the map
_LEFT = 250  # of the column with host and bridges

_STYLE = """\
text { font: 12px sans-serif; fill: #1a1a1a } .title { font-weight: bold } .small { font-size: 11px; fill: #444 }
rect { fill: #f7f9fc; stroke: #7a8aa0; rx: 4 } .host { fill: #eef3ea; stroke: #6f8f5f }
.bridge { fill: #fff6e0; stroke: #b08a2e } .wrong { fill: #fff3d6; stroke: #b06000 }
.leaked { fill: #fde8e8; stroke: #c62828 } text.leaked { fill: #b71c1c; stroke: none }
path { fill: none; stroke: #9aa8ba } path.leaked { fill: none; stroke: #c62828; stroke-dasharray: 4 3 }"""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})  # for text; no attribute contains input


@dataclass(frozen=True)
class _Box:
    """A box with lines of text, the first its title; `kind` is its class."""

    kind: str
    lines: Sequence[str]
    tooltip: str = ""

    @property
    def height(self) -> int:
        return 2 * _PAD + _LINE * len(self.lines)


@dataclass
class _Picture:
    """The SVG lines drawn so far, and the picture's size."""

    parts: list[str] = field(default_factory=list)
    wires: list[str] = field(default_factory=list)
    width: int = 0
    height: int = 0

    def box(self, x: int, y: int, box: _Box) -> None:
        self.parts.append(f'<g class="box"><title>{_text(box.tooltip or box.lines[0])}</title>')
        self.parts.append(f'<rect class="{box.kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{box.height}"/>')
        for number, line in enumerate(box.lines):
            kind = "title" if number == 0 else "small"
            self.parts.append(_line(x + _PAD, y + _PAD + _LINE * (number + 1) - 4, _cut(line), kind))
        self.parts.append("</g>")
        self.width, self.height = max(self.width, x + _WIDTH), max(self.height, y + box.height)

    def wire(self, way: str, kind: str) -> None:
        self.wires.append(f'<path class="{kind}" d="{way}"/>')

    def text(self, x: int, y: int, text: str, kind: str) -> None:
        self.parts.append(_line(x, y, text, kind))
        self.width, self.height = max(self.width, x + 7 * len(text)), max(self.height, y + 4)


def render(node: Node, node_name: str) -> str:
    """Returns the map as one SVG document; `node_name` is the host's name."""
    picture = _Picture()
    y = _MARGIN + _LINE
    picture.text(_MARGIN, y, f"podwire show: node {node_name}", "title")
    y += _GAP
    picture.box(_MARGIN, y, _host(node_name, node.host_interfaces))
    y = picture.height + _GAP
    drawn: set[int] = set()
    for bridge in node.bridges:
        pods = [pod for pod in node.pods if pod.bridge == bridge.name or _belongs(node, pod, bridge)]
        drawn.update(id(pod) for pod in pods)
        y = _group(picture, y, _bridge(node, bridge), pods)
    rest = [pod for pod in node.pods if id(pod) not in drawn]
    for network in dict.fromkeys(pod.network for pod in rest):
        pods = [pod for pod in rest if pod.network == network]
        y = _group(picture, y, _Box("bridge", [f"network {network}", "not on a bridge"]), pods)
    if node.leaks:
        _leaks(picture, y, node.leaks)
    return _document(picture)


def _group(picture: _Picture, y: int, left: _Box, pods: Sequence[Pod]) -> int:
    """Draws a bridge and its pods, and returns the y position of the next bridge.

    A trunk line goes down from the bridge, a branch runs above each row of pods, and from it a line into each pod.
    """
    picture.box(_MARGIN, y, left)
    trunk = _MARGIN + _LEFT + 2 * _GAP
    top, rows = y + _GAP, []
    for row in range(0, len(pods), _COLUMNS):
        boxes = [(pod, _pod(pod)) for pod in pods[row : row + _COLUMNS]]
        for column, (pod, box) in enumerate(boxes):
            x = trunk + _GAP + column * (_WIDTH + _GAP)
            picture.box(x, top, box)
            if pod.host_interface:
                middle = x + _WIDTH // 2
                picture.wire(f"M{trunk} {top - _GAP} H{middle} V{top}", "leaked" if pod.leaked else "wire")
                rows.append(top - _GAP)
        top += max(box.height for _, box in boxes) + 2 * _GAP
    if rows:
        start = y + left.height // 2
        picture.wire(f"M{_MARGIN + _WIDTH} {start} H{trunk} M{trunk} {min(start, *rows)} V{max(start, *rows)}", "wire")
    return max(y + left.height + 2 * _GAP, top)


def _belongs(node: Node, pod: Pod, bridge: HostInterface) -> bool:
    """Returns whether a pod without a port belongs to a bridge: the first bridge of its network."""
    return not pod.bridge and any(
        item.name == pod.network and item.bridges[:1] == (bridge.name,) for item in node.networks
    )


def _host(node_name: str, interfaces: Iterable[HostInterface]) -> _Box:
    lines = [f"{item.name}  {address}" for item in interfaces for address in item.addresses]
    return _Box("host", [f"node {node_name}", *lines])


def _bridge(node: Node, bridge: HostInterface) -> _Box:
    """Returns the box of a bridge: its name, the networks that use it, its addresses, the number of its ports."""
    networks = [f"network {item.name}" for item in node.networks if bridge.name in item.bridges]
    ports = f"{len(bridge.ports)} port{'s' * (len(bridge.ports) != 1)}"
    return _Box("bridge", [f"bridge {bridge.name}", *networks, *bridge.addresses, ports])


def _pod(pod: Pod) -> _Box:
    """Returns the box of a pod: name, network, interfaces, addresses, host ports, limits, state."""
    kind = "leaked" if pod.leaked else "pod" if pod.state in (State.OK, State.NOT_CHECKED) else "wrong"
    lines = [pod.pod or pod.attachment.container_id or "?"]
    if pod.pod:
        lines.append(pod.attachment.container_id[:12])
    lines.append(f"network {pod.network}")
    lines.append(f"{pod.attachment.ifname or '?'} - {pod.host_side or 'no host interface'}")
    lines += pod.addresses
    lines += [f"host port {port}{' (no rule)' if port.confirmed is False else ''}" for port in pod.host_ports]
    lines += [
        f"{word} {format_rate(bits)}" for word, bits in (("receives", pod.receives), ("sends", pod.sends)) if bits
    ]
    if pod.state is not State.OK or pod.leaked:
        lines.append(f"{pod.state}{', leaked' if pod.leaked else ''}")
    names = pod.network, pod.attachment.container_id, pod.attachment.ifname, pod.pod, pod.netns
    return _Box(kind, lines, " ".join(filter(None, names)))


def _leaks(picture: _Picture, y: int, leaks: Sequence[Leak]) -> None:
    y += _LINE
    picture.text(_MARGIN, y, f"leaked: {len(leaks)}", "leaked title")
    for leak in leaks:
        y += _LINE
        text = f"{leak.network or '-'}: {leak.description} ({leak.fix})"
        picture.text(_MARGIN, y, _cut(text, _LONG), "leaked")


def _document(picture: _Picture) -> str:
    width, height = picture.width + _MARGIN, picture.height + _MARGIN
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{_STYLE}</style>",
            f'<path style="fill:#ffffff;stroke:none" d="M0 0H{width}V{height}H0Z"/>',
            *picture.wires,
            *picture.parts,
            "</svg>\n",
        )
    )


def _line(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{_text(text)}</text>'


def _cut(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _text(text: str) -> str:
    """Returns a text for XML 1.0, which excludes control characters, surrogates and noncharacters."""
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return printable.translate(_ENTITIES)
