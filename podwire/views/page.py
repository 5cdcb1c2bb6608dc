"""The node as one HTML page: attachments with search and filters, the map, doctor's findings, leaked objects.

The page needs nothing else: no server, no other file, no network; its policy forbids them. It shows names of pods,
which their owners choose: the script only sets texts, never markup, and the data cannot end its element.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni import gojson
from podwire.doctor.finding import Check, Finding
from podwire.node.model import NodeInventory, Pod
from podwire.views import map_svg
from podwire.views.map_svg import escape
from podwire.views.page_script import SCRIPT
from podwire.views.page_style import STYLE
from podwire.views.selection import FINE, lacks_rules
from podwire.views.shot import Shot

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
# In JSON inside an element `script` only "<" could end that element or begin a comment.
_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def render(node: NodeInventory, shot: Shot, findings: Sequence[tuple[Check, Finding]]) -> str:
    """Returns the page."""
    title = escape(f"{shot.node}: pod networks")
    data = gojson.dumps({"pods": [_pod(pod) for pod in node.pods]}).translate(_IN_SCRIPT)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>node {escape(shot.node)}</h1><p>{escape(shot.time)}, podwire {escape(shot.version)}</p>
<nav><a href="#findings">findings</a> <a href="#pods">attachments</a> <a href="#networks">networks</a>
<a href="#leaks">leaked objects</a> <a href="#map">map</a></nav></header>
<main>
<section id="findings"><h2>Findings ({len(findings)})</h2>{_findings(findings)}</section>
<section id="pods"><h2>Attachments (<span id="count">{len(node.pods)}</span>)</h2>
<form id="filters" autocomplete="off">
<input id="search" type="search" placeholder="search: pod, address, container, port" aria-label="search">
<select id="network" aria-label="network"><option value="">every network</option></select>
<select id="state" aria-label="state"><option value="">every state</option></select>
<label><input id="wrong" type="checkbox"> only with a fault</label></form>
<table id="table"><thead></thead><tbody></tbody></table>
<p id="none" hidden>no attachment matches</p>
<noscript>This table needs JavaScript: `podwire show` prints it as text.</noscript></section>
<section id="networks"><h2>Networks ({len(node.networks)})</h2>{_networks(node)}</section>
<section id="leaks"><h2>Leaked objects ({len(node.leaks)})</h2>{_leaks(node)}{_unseen(node)}</section>
<section id="map"><h2>Map</h2>{map_svg.render(node, shot)}</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _pod(pod: Pod) -> dict[str, object]:
    """Returns the values of an attachment that the script shows and searches."""
    return {
        "network": pod.network,
        "pod": pod.pod,
        "container": pod.attachment.container_id,
        "interface": pod.attachment.ifname,
        "host": pod.host_side,
        "addresses": " ".join(pod.addresses),
        "ports": " ".join(f"{port}{' (no rule)' if port.confirmed is False else ''}" for port in pod.host_ports),
        "limits": ", ".join(pod.limits),
        "state": f"{pod.state}{', leaked' if pod.leaked else ''}",
        "problems": list(pod.problems),
        "wrong": pod.leaked or pod.state not in FINE or lacks_rules(pod),
    }


def _findings(findings: Sequence[tuple[Check, Finding]]) -> str:
    if not findings:
        return '<p class="good">podwire doctor reports no finding.</p>'
    items = []
    for check, finding in findings:
        subject = f"{finding.subject}: " if finding.subject else ""
        fix = f"<br>fix: <code>{escape(finding.fix)}</code>" if finding.fix else ""
        severity = f'<b class="{finding.severity.value}">{finding.severity.value}</b>'
        items.append(f"<li>{severity} {escape(f'{check.group}: {subject}{finding.text}')}{fix}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _networks(node: NodeInventory) -> str:
    rows = []
    for item in node.networks:
        ranges = ", ".join(map(str, item.ranges))
        cells = (item.name, item.file, " ".join(item.plugins), " ".join(item.bridges), str(item.attachments), ranges)
        rows.append(_row("td", (*cells, item.problem)))
    headers = _row("th", ("network", "file", "plugins", "bridge", "attached", "ranges", ""))
    return f"<table><thead>{headers}</thead><tbody>{''.join(rows)}</tbody></table>"


def _leaks(node: NodeInventory) -> str:
    items = (
        f'<li><b class="problem">{escape(leak.kind)}</b> {escape(leak.network)}: {escape(leak.description)}'
        f"<br>fix: <code>{escape(leak.fix)}</code></li>"
        for leak in node.leaks
    )
    return f"<ul>{''.join(items)}</ul>" if node.leaks else '<p class="good">nothing is leaked.</p>'


def _unseen(node: NodeInventory) -> str:
    items = "".join(f"<li>{escape(item)}</li>" for item in node.unseen)
    return f'<h3 class="warning">Not seen</h3><ul>{items}</ul>' if items else ""


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
