"""The HTML page of `podwire show`: complete, self-contained, safe with hostile names, and working in Chromium."""

import html
import re
import shutil
import subprocess
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.conf import Attachment
from podwire.doctor.finding import Check, Fault, Severity
from podwire.node.model import AttachmentState, HostPort, Leak, NodeInventory, NodeNetwork, Pod
from podwire.views import page
from podwire.views.shot import Shot


def finding_of(severity, subject, text, fix):
    """Returns a finding of a check, as the page gets them."""
    fault = Fault("lost-rules", severity, "")
    return Check("firewall", "rules", "", lambda _: (), (fault,)), fault.finding(subject, text, fix)


SHOT = Shot("node-1", "2026-11-25 12:00:00Z", "1.2.3")
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
FINDING = finding_of(Severity.PROBLEM, "cni0", "a rule is missing <now>", "podwire repair")
NODE = NodeInventory(
    (NodeNetwork("net", "/etc/cni/net.d/10-net.conflist", ("bridge",), ("cni0",), (), 3),),
    (
        Pod(
            "net", Attachment("4f2c81a0b1c2", "eth0"), AttachmentState.OK, "default/web-0", addresses=("10.22.0.2/24",)
        ),
        Pod("net", Attachment("0123456789ab", "eth0"), AttachmentState.FAILED, HOSTILE, problems=("bridge: no route",)),
        Pod(
            "other",
            Attachment("aaaa", "eth0"),
            AttachmentState.OK,
            "default/api-1",
            addresses=("10.22.0.10/24",),
            host_ports=(HostPort(8080, 80, "tcp", confirmed=False),),
        ),
    ),
    leaks=(Leak("veth", "veth9 on cni0", "ip link delete veth9", "net"),),
    unseen=("the cache",),
)


class Elements(HTMLParser):
    """Collects the elements of a page, and all attributes with addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]


SHOWN = ("a rule is missing <now>", "podwire repair", "10-net.conflist", "ip link delete veth9", "the cache", "<svg")


def test_page_has_everything():
    """Findings, networks, leaked objects, what was not seen, the map, time and version; the page refers to no other."""
    text = page.render(NODE, SHOT, (FINDING,))
    for part in (*SHOWN, "2026-11-25 12:00:00Z, podwire 1.2.3"):
        assert part in html.unescape(text), part
    assert "no finding" in page.render(NODE, SHOT, ())
    assert all(address.startswith("#") for address in Elements(text).addresses)
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML", text)


@given(st.text(min_size=1))
def test_hostile_names_are_text(name: str):
    """Any name is data: the page has the same elements as with an ordinary name, and is valid UTF-8."""

    def rendered(text: str) -> str:
        pod = Pod(text, Attachment(text, text), AttachmentState.FAILED, text, problems=(text,))
        node = NodeInventory(
            (NodeNetwork(text, text, (text,)),), (pod,), leaks=(Leak(text, text, text, text),), unseen=(text,)
        )
        return page.render(node, SHOT, (finding_of(Severity.NOTE, text, text, text or "x"),))

    text = rendered(name)
    text.encode("utf-8")
    assert Elements(text).names == Elements(rendered("x")).names
    assert text.count("</script") == 2


def dump(tmp_path: Path, query: str) -> str:
    """Returns the page in Chromium, after its script has run, as HTML."""
    program = shutil.which("chromium")
    if program is None:
        warnings.warn("the page is not tested in a browser: there is no chromium", stacklevel=2)
        pytest.skip("needs chromium")
    path = tmp_path / "node.html"
    path.write_text(page.render(NODE, SHOT, (FINDING,)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile"]
    line = [program, *options, "--dump-dom", f"file://{path}#{query}"]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=True).stdout


def rows(text: str) -> list[list[str]]:
    (table,) = re.findall(r'<table id="table">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    return [
        [html.unescape(re.sub(r"<.*?>", "|", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("query", "pods"),
    [
        ("", ["default/web-0", HOSTILE, "default/api-1"]),
        ("search=default+10.22.0.1", ["default/api-1"]),
        ("search=NO+ROUTE", [HOSTILE]),
        ("network=net&state=ok", ["default/web-0"]),
        ("wrong", [HOSTILE, "default/api-1"]),
        ("search=nothing", []),
    ],
)
def test_browser_filters_the_attachments(tmp_path: Path, query: str, pods: list[str]):
    """In Chromium the table has the attachments that match search and filters, and hostile names run no script."""
    text = dump(tmp_path, query)
    assert [row[1] for row in rows(text)] == pods
    count = str(len(pods)) if len(pods) == 3 else f"{len(pods)} of 3"
    assert f'<span id="count">{count}</span>' in text
    assert "<title>node-1: pod networks</title>" in text
    assert ('<p id="none" hidden' in text) == bool(pods)
