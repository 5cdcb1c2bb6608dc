"""The client's errors: each wrong answer has a class, and a text with request, cause and fix."""

import gzip
import json
import os
import socket
import threading
from functools import partialmethod

import pytest
import urllib3

from agent.api_answer import MAX_DOCUMENT_BYTES
from agent.api_errors import (
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    InvalidAnswer,
    NoCredentials,
    NotFound,
    OutcomeUnknown,
    Refused,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    Untrusted,
)
from agent.api_server import Server
from agent.kubernetes import PAGE_SIZE, ApiClient, object_path
from agent.node import parse_node
from tests.support import certificates
from tests.support.kubernetes_double import BLOCKS, NODES, Fault, KubernetesDouble

HTML = b"<!DOCTYPE html><html><body>Sign in</body></html>"
BLOCK = {"metadata": {"name": "b"}, "spec": {"owner": "node-1"}}


def add_nodes(double: KubernetesDouble, count: int) -> None:
    for number in range(count):
        double.store.put(f"{NODES}/node-{number:04}", {"spec": {"podCIDR": f"10.{number // 256}.{number % 256}.0/24"}})


def error_of(client: ApiClient, path: str = NODES) -> ApiError:
    with pytest.raises(ApiError) as caught:
        client.get(path)
    return caught.value


REFUSALS = {403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired, 422: Refused, 400: Refused, 418: Refused}
REASON = json.dumps({"message": "no: why", "reason": "Why"}).encode()
NO_OBJECTS = [b"", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a": ']
NO_PROXY = "fix: set the address of the server itself, not of a proxy or a web server"
ELSEWHERE = "https://192.0.2.1/login"


ANSWERS: dict[str, tuple[int, bytes, type[ApiError], list[str]]] = {
    **{f"{status}": (status, REASON, kind, [f"no: why (HTTP {status} Why)"]) for status, kind in REFUSALS.items()},
    **{f"200 {body[:9]!r}": (200, body, InvalidAnswer, []) for body in NO_OBJECTS},
    "200 HTML": (200, HTML, InvalidAnswer, ["<!DOCTYPE html>", NO_PROXY]),
    "403 HTML": (403, HTML, Forbidden, ["no message (HTTP 403)"]),
    "307": (307, b"", InvalidAnswer, [f"redirects to '{ELSEWHERE}' (HTTP 307)"]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_a_class_with_a_text(double, client, name):
    """A refusal has the class of its status and its message, another program's answer is shown in part, with a fix."""
    status, body, kind, texts = ANSWERS[name]
    double.faults.append(Fault(status=status, body=body, headers={"Location": ELSEWHERE}))
    error = error_of(client)
    assert isinstance(error, kind)
    assert isinstance(error, OutcomeUnknown) == (kind is InvalidAnswer)
    assert str(error).startswith(f"Kubernetes API: GET {NODES}: ")
    assert len(str(error)) < 500
    assert [text for text in texts if text not in str(error)] == []
    assert len(double.requests) == 1


def test_too_many_requests_say_when_to_come_back(double, client):
    """429 carries the seconds of Retry-After, at most two minutes; a date is ignored."""
    for text, seconds in {"7": 7, "86400": 120, "Mon, 23 Nov 2026 00:00:00 GMT": 0}.items():
        double.faults.append(Fault(status=429, headers={"Retry-After": text}))
        error = error_of(client)
        assert isinstance(error, TooManyRequests)
        assert error.retry_after_s == seconds


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(lost=True), Fault(cut=True), Fault(half=True), Fault(stalled=True)),
        *(Fault(status=status) for status in (500, 503, 504, 408)),
        Fault(status=200, body=HTML),
        Fault(status=302, headers={"Location": ELSEWHERE}),
    ],
    ids=lambda fault: next(f"{key}-{value}" for key, value in vars(fault).items() if value and key != "times"),
)
def test_unknown_outcomes_are_no_refusals(double, new_client, fault):
    """A cut connection, a time-out, a server error or another program's answer leaves the outcome unknown."""
    double.faults.append(fault)
    client = new_client(read_s=0.3)
    with pytest.raises(OutcomeUnknown) as caught:
        client.create(BLOCKS, BLOCK)
    assert not isinstance(caught.value, Refused)
    was_executed = fault.lost or fault.half
    assert (f"{BLOCKS}/b" in double.store.objects) == was_executed
    assert len(double.requests) == 1  # not repeated, not redirected


def test_a_list_is_read_in_pages(double, client):
    """A list of 250 nodes takes three pages; its resourceVersion is that of the first one."""
    add_nodes(double, 250)
    listing = client.list_objects(NODES, parse_node)
    assert [node.name for node in listing.items] == [f"node-{number:04}" for number in range(250)]
    assert listing.resource_version == str(double.store.revision)
    assert [f"limit={PAGE_SIZE}" in request for request in double.requests] == [True] * 3
    assert not any("resourceVersion" in request for request in double.requests)


def test_a_list_begins_again_when_its_pages_expire(double, client):
    """410 for the second page starts the list again, and nothing of the first try remains."""
    add_nodes(double, 150)
    double.faults.append(Fault("continue=", status=410, body=b"{}"))
    assert len(client.list_objects(NODES, parse_node).items) == 150
    double.requests.clear()
    double.faults.append(Fault("continue=", status=410, body=b"{}", times=100))
    with pytest.raises(Expired):
        client.list_objects(NODES, parse_node)
    assert len(double.requests) == 6


def test_a_page_of_20_mb_is_refused_and_read_in_smaller_ones(double, client):
    """A page above the limit is not read to its end; a list asks for smaller pages, down to one object."""
    page = json.dumps({"items": [], "x": "x" * (20 << 20)}).encode()
    double.faults.append(Fault(status=200, body=page, times=2))
    error = error_of(client)
    assert isinstance(error, TooLarge)
    assert str(error) == f"Kubernetes API: GET {NODES}: the answer is larger than 4 MiB"
    add_nodes(double, 30)
    assert len(client.list_objects(NODES, parse_node).items) == 30
    assert [request.partition("limit=")[2].partition("&")[0] for request in double.requests[1:]] == ["100", "25", "25"]
    double.faults.append(Fault(status=200, body=page, times=100))
    with pytest.raises(TooLarge):
        client.list_objects(NODES, parse_node)


def test_a_small_gzip_of_a_large_page_is_refused(double, client):
    """An answer that gzip packs into a few kilobytes counts with its real size; a damaged one is invalid."""
    gzipped = {"Content-Encoding": "gzip"}
    double.faults.append(Fault(status=200, body=gzip.compress(b" " * (MAX_DOCUMENT_BYTES + 1)), headers=gzipped))
    assert isinstance(error_of(client), TooLarge)
    data = gzip.compress(b'{"items": []}')
    for body in (data[:-9], b"x", data[:20] + b"x" + data[21:]):
        double.faults.append(Fault(status=200, body=body, headers=gzipped))
        assert isinstance(error_of(client), InvalidAnswer)
    double.faults.append(Fault(status=200, body=data, headers=gzipped))
    assert client.get(NODES) == {"items": []}


@pytest.mark.parametrize(
    "page", [{}, {"items": None}, {"items": {}}, {"kind": "Status"}, {"items": [{"metadata": {}}]}]
)
def test_a_list_of_other_objects_is_invalid(double, client, page):
    """An answer without `items`, or with objects that are no Nodes, is an invalid answer."""
    double.faults.append(Fault(status=200, body=json.dumps(page).encode()))
    with pytest.raises(InvalidAnswer):
        client.list_objects(NODES, parse_node)


def test_a_stopped_server_is_unreachable(double, new_client):
    """A port without a server is an error before sending, with the kernel's reason and a fix."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{sock.getsockname()[1]}"
        error = error_of(new_client(url=url))
    assert type(error) is Unreachable
    fix = "check that the server runs, and the address and port"
    assert str(error).endswith(f": no connection to {url}: [Errno 111] Connection refused; fix: {fix}")


def test_a_name_that_does_not_resolve_is_unreachable(new_client):
    """A host name without an address is an error before sending."""
    assert type(error_of(new_client(url="https://no-such-host.invalid"))) is Unreachable


@pytest.mark.parametrize("is_of_system", [False, True], ids=["unknown", "of the system"])
def test_another_certificate_authority_is_untrusted(double, new_client, tls, tmp_path, monkeypatch, is_of_system):
    """A certificate of another authority, also one of the system, is an error before the token is sent."""
    if is_of_system:
        pool = urllib3.HTTPSConnectionPool
        monkeypatch.setattr(pool, "__init__", partialmethod(pool.__init__, ca_certs=str(tls / "ca.crt")))
    other = certificates.create(tmp_path)
    error = error_of(new_client(ca=other / "ca.crt"))
    assert type(error) is Untrusted
    assert str(other / "ca.crt") in str(error)
    assert double.requests == []


def test_another_host_name_is_untrusted(double, new_client, monkeypatch):
    """A certificate for another address is an error before the token is sent."""
    real = socket.getaddrinfo

    def resolve(host, *args, **options):
        return real("127.0.0.1" if host == "other.example" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = double.url.replace("127.0.0.1", "other.example")
    error = error_of(new_client(url=url))
    assert type(error) is Untrusted
    assert "fix: use a name or an address that the server's certificate has" in str(error)
    assert "authority" not in str(error)
    assert double.requests == []


@pytest.mark.parametrize(
    ("year", "texts"),
    [(2020, ("expired", "fix: renew the server's certificate")), (2099, ("not yet valid", "fix: check the clocks"))],
)
def test_a_certificate_of_another_time_is_untrusted(new_client, tmp_path, year, texts):
    """A certificate that is expired or not yet valid is named as such, and its authority is not blamed."""
    certificates.create(tmp_path)
    certificates.reissue(tmp_path, f"{year}0101000000Z", f"{year}0201000000Z")
    with KubernetesDouble(tmp_path).running() as server:
        error = error_of(new_client(url=server.url, ca=tmp_path / "ca.crt"))
    assert type(error) is Untrusted
    assert [text in str(error) for text in texts] == [True, True]
    assert "use the certificate authority" not in str(error)


def test_a_new_certificate_authority_is_used(double, new_client, tls, tmp_path):
    """A certificate authority whose file is replaced counts from the next request."""
    (tmp_path / "other").mkdir()
    path = tmp_path / "ca.crt"
    path.write_text((certificates.create(tmp_path / "other") / "ca.crt").read_text())
    client = new_client(ca=path)
    assert isinstance(error_of(client), Untrusted)
    (tmp_path / "new").write_text((tls / "ca.crt").read_text())
    os.replace(tmp_path / "new", path)
    assert client.get(NODES)["items"] == []


def test_a_new_token_is_used(double, client, token_file):
    """401 names the token's state; a token that is replaced counts from the next request."""
    double.tokens = {"new": None}
    error = error_of(client)
    assert isinstance(error, Unauthorized)
    assert "Unauthorized (HTTP 401 Unauthorized); fix: check that the token file is the current one" in str(error)
    token_file.with_suffix(".new").write_text("new")
    os.replace(token_file.with_suffix(".new"), token_file)
    assert client.get(NODES)["items"] == []


def test_a_token_is_read_again_after_a_refusal(double, client, token_file):
    """After 401 the token is read again, also if the file's times and size have not changed."""
    double.tokens = {"Admin": None}
    assert isinstance(error_of(client), Unauthorized)
    status = token_file.stat()
    token_file.write_text("Admin\n")
    os.utime(token_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert client.get(NODES)["items"] == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("token", content) for content in (None, "", "\n", "é", "a\nb")),
        *(("ca.crt", content) for content in (None, "", "no certificate")),
    ],
)
def test_a_file_that_cannot_be_used(double, new_client, token_file, tls, name, content):
    """A missing, empty or damaged token or certificate authority is an error that names it; no request is sent."""
    ca = token_file.with_name("ca.crt")
    ca.write_text((tls / "ca.crt").read_text())
    path = token_file.with_name(name)
    path.unlink() if content is None else path.write_text(content)
    error = error_of(new_client(ca=ca))
    assert isinstance(error, NoCredentials)
    assert f"the file {path} cannot be used" in str(error)
    assert double.requests == []


def test_missing_rights_are_forbidden(double, client):
    """403 names verb and resource, and the fix."""
    double.tokens = {"admin": frozenset({"list nodes"})}
    assert client.get(NODES)["items"] == []
    with pytest.raises(Forbidden) as caught:
        client.watch(NODES, "100", None, timeout_s=1)
    assert 'cannot watch resource "nodes" (HTTP 403 Forbidden); fix: grant the right' in str(caught.value)


def test_ipv6_addresses(tls, token_file):
    """An IPv6 address of the server works, its certificate included."""
    with KubernetesDouble(tls, "::1").running() as double:
        assert double.url.startswith("https://[::1]:")
        assert ApiClient(Server(double.url, tls / "ca.crt"), token_file).get(NODES)["items"] == []


def test_names_are_quoted(double, client):
    """A name with odd letters is one part of the path."""
    double.store.put(f"{BLOCKS}/a b?", BLOCK)
    assert object_path(BLOCKS, "a b?/../c") == f"{BLOCKS}/a%20b%3F%2F..%2Fc"
    assert client.get(object_path(BLOCKS, "a b?"))["spec"] == BLOCK["spec"]


def test_proxies_of_the_environment_are_not_used(double, client, monkeypatch):
    """The token never goes through a proxy that the environment names."""
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    monkeypatch.setenv("https_proxy", "http://192.0.2.1:3128")
    assert client.get(NODES)["items"] == []


def test_a_silent_watch_ends(double, new_client):
    """A watch without events and bookmarks ends after the time-out; the connection may be cut without a packet."""
    double.is_silent = True
    watch = new_client(watch_s=0.3).watch(NODES, "100", None, timeout_s=60)
    with pytest.raises(OutcomeUnknown):
        list(watch)


def test_a_watch_is_closed_by_another_thread(double, client):
    """Closing a watch ends the thread that reads it, at once."""
    double.bookmark_s = 60
    watch = client.watch(NODES, "100", None, timeout_s=60)
    ended: list[ApiError] = []

    def read() -> None:
        try:
            list(watch)
        except OutcomeUnknown as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    for _ in range(2):
        watch.close()
        thread.join(60)
    assert (thread.is_alive(), len(ended)) == (False, 1)


def error_event(code: object) -> bytes:
    event = {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "too old"}}
    return json.dumps(event).encode() + b"\n"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        *[(line, InvalidAnswer) for line in (b"1\n", b"{}\n", b'{"type": "ADDED"}\n', b'{"type": 1, "object": {}}\n')],
        (b'{"type": "ADDED", "x": "' + b"x" * (20 << 20), TooLarge),
        (error_event(410), Expired),
        (error_event(500), OutcomeUnknown),
        (error_event("x"), OutcomeUnknown),
    ],
    ids=["number", "no type", "no object", "no text", "no end", "410", "500", "no code"],
)
def test_a_watch_of_wrong_lines(double, client, lines, kind):
    """A line that is no event is invalid, one of 20 MB is not read, an ERROR event has the class of its code."""
    double.faults.append(Fault(status=200, body=lines))
    with pytest.raises(kind):
        list(client.watch(NODES, "100", None, timeout_s=1))


def test_a_part_of_a_line_of_a_watch_is_dropped(double, client):
    """The last line of a watch that is cut has no end, and is no event."""
    double.faults.append(Fault(status=200, body=HTML))
    assert list(client.watch(NODES, "100", None, timeout_s=1)) == []
