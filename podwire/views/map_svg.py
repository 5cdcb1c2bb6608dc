"""The map of a node as an SVG picture: host, bridges, pods in columns, leaked objects in red, a legend.

The picture has the shape of a page in landscape format. A few pods have boxes with all properties; many have small
ones with name and address, and the rest in a tooltip. Pure functions: every text is escaped, and characters that XML
does not allow are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from podwire.node.model import (
    AttachmentState,
    HostInterface,
    Leak,
    NodeInventory,
    Pod,
    fold_ports,
    short_id,
)
from podwire.views.selection import FINE, lacks_rules
from podwire.views.shot import Shot

_WIDTH, _LINE, _PAD, _GAP = 250, 15, 8, 14  # of a box, a text line, inside boxes, between boxes; pixels
_MARGIN = 20
_CHARACTERS, _TITLE_CHARACTERS = 36, 26  # that fit into a box
_SMALL_WIDTH, _SMALL_CHARACTERS = 164, 20
_LEFT = 250  # of the column with host and bridges
_LONG = 180  # of a line below the map
_SHAPE = 1.414  # width by height of a page
_FEW = 24  # pods that have boxes with all properties
_MOST_LINES = 14  # of the host's box
_LEGEND = (
    ("pod", "in order"),
    ("wrong", "has a fault, or could not be inspected"),
    ("leaked", "no longer running: its objects are leaked"),
    ("bridge", "bridge or network"),
    ("host", "the node with its addresses"),
)


@dataclass(frozen=True)
class _Grid:
    """The pods' boxes: their width, number in a row, characters in a line and a title; `is_small`: with two lines."""

    width: int
    columns: int
    characters: int
    title_characters: int
    is_small: bool = False


_STYLE = """\
text { font: 12px sans-serif; fill: #1a1a1a } .title { font-weight: bold } .small { font-size: 11px; fill: #444 }
rect, .swatch { fill: #f7f9fc; stroke: #7a8aa0; rx: 4 } .host { fill: #eef3ea; stroke: #6f8f5f }
.bridge { fill: #dfeafb; stroke: #3b6fb6 } .wrong { fill: #ffe3b3; stroke: #b06000 }
.leaked { fill: #fde8e8; stroke: #c62828 } text.leaked { fill: #b71c1c; stroke: none }
path { fill: none; stroke: #9aa8ba } path.leaked { fill: none; stroke: #c62828; stroke-dasharray: 4 3 }
path.swatch.leaked { fill: #fde8e8; stroke-dasharray: none }"""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


@dataclass(frozen=True)
class _Box:
    """A box with lines of text, the first its title; `kind` is its class."""

    kind: str
    lines: Sequence[str]
    tooltip: str = ""
    width: int = _WIDTH
    characters: int = _CHARACTERS

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
        self.parts.append(f'<g class="box"><title>{escape(box.tooltip or box.lines[0])}</title>')
        self.parts.append(f'<rect class="{box.kind}" x="{x}" y="{y}" width="{box.width}" height="{box.height}"/>')
        for number, line in enumerate(box.lines):
            kind = "small" if number else "title" if box.width == _WIDTH else "small title"
            self.parts.append(_line(x + _PAD, y + _PAD + _LINE * (number + 1) - 4, _cut(line, box.characters), kind))
        self.parts.append("</g>")
        self.width, self.height = max(self.width, x + box.width), max(self.height, y + box.height)

    def wire(self, way: str, kind: str) -> None:
        self.wires.append(f'<path class="{kind}" d="{way}"/>')

    def text(self, x: int, y: int, text: str, kind: str) -> None:
        self.parts.append(_line(x, y, text, kind))
        self.width, self.height = max(self.width, x + 7 * len(text)), max(self.height, y + 4)


def render(node: NodeInventory, shot: Shot) -> str:
    """Returns the map as one SVG document."""
    if len(node.pods) <= _FEW:
        return _document(_draw(node, shot, _Grid(_WIDTH, 4, _CHARACTERS, _TITLE_CHARACTERS)))
    columns = 4
    while True:
        picture = _draw(node, shot, _Grid(_SMALL_WIDTH, columns, _SMALL_CHARACTERS, _SMALL_CHARACTERS, is_small=True))
        if picture.width >= picture.height * _SHAPE or columns >= len(node.pods):
            return _document(picture)
        columns += 1


def _draw(node: NodeInventory, shot: Shot, grid: _Grid) -> _Picture:
    picture = _Picture()
    y = _MARGIN + _LINE
    picture.text(_MARGIN, y, f"podwire show: node {shot.node}", "title")
    y += _LINE
    pods = f"{len(node.pods)} attachment{'s' * (len(node.pods) != 1)}"
    picture.text(_MARGIN, y, f"{shot.time}, podwire {shot.version}, {pods}", "small")
    y = _legend(picture, y + _GAP)
    host = _host(shot.node, node.host_interfaces)
    picture.box(_MARGIN, y, host)
    stem = y + host.height // 2
    for number, line in enumerate(_networks(node)):
        picture.text(_MARGIN + _LEFT + 3 * _GAP, y + _LINE * (number + 1), line, "small")
    y = picture.height + _GAP
    drawn: set[int] = set()
    for bridge in node.bridges:
        on_bridge = [pod for pod in node.pods if pod.bridge == bridge.name or _belongs(node, pod, bridge)]
        drawn.update(id(pod) for pod in on_bridge)
        picture.wire(f"M{_MARGIN} {stem} H{_MARGIN // 2} V{y + _LINE} H{_MARGIN}", "wire")
        y = _group(picture, y, _bridge(node, bridge), on_bridge, grid)
    rest = [pod for pod in node.pods if id(pod) not in drawn]
    for network in dict.fromkeys(pod.network for pod in rest):
        of_network = [pod for pod in rest if pod.network == network]
        y = _group(picture, y, _Box("bridge", [f"network {network}", "not on a bridge"]), of_network, grid)
    if node.leaks:
        _leaks(picture, y, node.leaks)
    return picture


def _legend(picture: _Picture, y: int) -> int:
    """Draws what the colours mean, and returns the y position below."""
    x = _MARGIN
    for kind, meaning in _LEGEND:
        picture.parts.append(f'<path class="swatch {kind}" d="M{x} {y}h{_LINE}v{_LINE - 3}h-{_LINE}z"/>')
        picture.text(x + _LINE + 6, y + _LINE - 4, meaning, "small")
        x += 2 * _LINE + 7 * len(meaning)
    return y + _LINE + _GAP


def _networks(node: NodeInventory) -> Iterator[str]:
    """Yields a line for each network and its ranges."""
    for item in node.networks:
        ranges = ", ".join(map(str, item.ranges))
        plugins = f" ({' '.join(item.plugins)})" if item.plugins else ""
        text = (
            f"network {item.name or item.file}{plugins}: {item.attachments} attached{f'; {ranges}' if ranges else ''}"
        )
        yield _cut(f"{text}; {item.problem}" if item.problem else text, _LONG)


def _group(picture: _Picture, y: int, left: _Box, pods: Sequence[Pod], grid: _Grid) -> int:
    """Draws a bridge and its pods, and returns the y position of the next bridge.

    A trunk line goes down from the bridge, a branch runs above each row of pods, and from it a line into each pod.
    """
    picture.box(_MARGIN, y, left)
    trunk = _MARGIN + _LEFT + 2 * _GAP
    top, rows = y + _GAP, []
    for row in range(0, len(pods), grid.columns):
        boxes = [(pod, _pod(pod, grid)) for pod in pods[row : row + grid.columns]]
        for column, (pod, box) in enumerate(boxes):
            x = trunk + _GAP + column * (grid.width + _GAP)
            picture.box(x, top, box)
            if pod.host_interface:
                middle = x + grid.width // 2
                picture.wire(f"M{trunk} {top - _GAP // 2} H{middle} V{top}", "leaked" if pod.leaked else "wire")
                rows.append(top - _GAP // 2)
        top += max(box.height for _, box in boxes) + (_GAP if grid.is_small else 2 * _GAP)
    if rows:
        start = y + left.height // 2
        picture.wire(f"M{_MARGIN + _WIDTH} {start} H{trunk} M{trunk} {min(start, *rows)} V{max(start, *rows)}", "wire")
    return max(y + left.height + 2 * _GAP, top + (_GAP if grid.is_small else 0))


def _belongs(node: NodeInventory, pod: Pod, bridge: HostInterface) -> bool:
    """Returns whether a pod without a port belongs to a bridge: the first bridge of its network."""
    return not pod.bridge and any(
        item.name == pod.network and item.bridges[:1] == (bridge.name,) for item in node.networks
    )


def _host(node_name: str, interfaces: Iterable[HostInterface]) -> _Box:
    lines = [f"{item.name}  {address}" for item in interfaces for address in item.addresses]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]
    return _Box("host", [f"node {node_name}", *lines])


def _bridge(node: NodeInventory, bridge: HostInterface) -> _Box:
    """Returns the box of a bridge: its name, the networks that use it, its addresses, the number of its ports."""
    networks = [f"network {item.name}" for item in node.networks if bridge.name in item.bridges]
    ports = f"{len(bridge.ports)} port{'s' * (len(bridge.ports) != 1)}"
    return _Box("bridge", [f"bridge {bridge.name}", *networks, *bridge.addresses, ports])


def _pod(pod: Pod, grid: _Grid) -> _Box:
    """Returns the box of a pod: name, network, interfaces, addresses, host ports, limits, state."""
    kind = "leaked" if pod.leaked else "pod" if pod.state in FINE and not lacks_rules(pod) else "wrong"
    container = short_id(pod.attachment.container_id) or "?"
    lines = [pod.pod, container] if pod.pod else [container]
    lines.append(f"network {pod.network}")
    lines.append(f"{pod.attachment.ifname or '?'} - {pod.host_side or 'no host interface'}")
    lines += pod.addresses
    ports = fold_ports(pod.host_ports)
    lines += [f"host port {text}{' (no rule)' if confirmed is False else ''}" for text, confirmed in ports]
    lines += pod.limits
    if pod.state is not AttachmentState.OK or pod.leaked:
        lines.append(f"{pod.state}{', leaked' if pod.leaked else ''}")
    namespace, _, name = lines[0].rpartition("/")
    title = _without_middle(name, grid.title_characters)
    if grid.is_small:
        second = pod.addresses[0].partition("/")[0] if pod.addresses else "no address"
        return _Box(kind, [title, second], " | ".join(lines), grid.width, grid.characters)
    names = pod.network, pod.attachment.container_id, pod.attachment.ifname, pod.pod, pod.netns
    lines[:1] = [title, f"namespace {namespace or '-'}"] if pod.pod else [title]
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
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _cut(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _without_middle(text: str, most: int) -> str:
    """Returns a text whose middle is left out if it is too long: generated names differ at their end."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - (most - most // 2 - 1) :]}"


def escape(text: str) -> str:
    """Returns a text for HTML and XML 1.0, which exclude control characters, surrogates and noncharacters."""
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return printable.translate(_ENTITIES)
