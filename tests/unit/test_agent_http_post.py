"""POST to the agent's HTTP server: on the Unix socket only, with a JSON body of limited size."""

from __future__ import annotations

import http.client
import socket

import pytest

from agent import http_server
from agent.http_server import Answer, Page

PAGES = {"/ok": lambda: Page(True, b"fine\n")}
ACTIONS = {"/act": lambda body: Answer(409, b"seen: " + body)}


@pytest.fixture
def path(tmp_path):
    """The path of a server's Unix socket."""
    path = str(tmp_path / "agent.sock")
    server = http_server.start(path, PAGES, ACTIONS)
    yield path
    server.shutdown()
    server.socket.close()


def connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(5)
    client.connect(path)
    return client


def post(path, target, body=b"", headers=None):
    """Returns status and text of the answer to a POST."""
    connection = http.client.HTTPConnection("agent")
    connection.sock = connect(path)
    connection.request("POST", target, body, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def test_action_gets_the_body(path):
    """An action gets the body, and its answer has the status of the action."""
    assert post(path, "/act", b'{"a": 1}') == (409, b'seen: {"a": 1}')
    assert post(path, "/act") == (409, b"seen: ")


def test_other_paths_are_no_actions(path):
    """A page is no action, and an action is no page."""
    assert post(path, "/ok")[0] == 404
    assert post(path, "/act?x=1")[0] == 404


def test_body_is_limited(path):
    """A body without a length, or with a length that is wrong or too large, is refused without reading it."""
    assert post(path, "/act", b"", {"Content-Length": str(1 << 21)})[0] == 413
    assert post(path, "/act", b"", {"Content-Length": "9" * 5000})[0] == 411
    for length in ("-1", "x", "\u0663"):
        assert post(path, "/act", b"", {"Content-Length": length.encode()})[0] == 411
    with connect(path) as client:
        client.sendall(b"POST /act HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        assert client.recv(1000).split()[1] == b"411"


def test_action_needs_the_whole_body(path):
    """A client that ends in the middle of its body causes no action and gets no answer."""
    with connect(path) as client:
        client.sendall(b'POST /act HTTP/1.0\r\nContent-Length: 100\r\n\r\n{"a"')
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1000) == b""


def test_post_over_tcp_is_refused():
    """Over TCP a POST is refused with 405, also of an action."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = http_server.start(f"127.0.0.1:{port}", PAGES, ACTIONS)
    try:
        for target in ("/act", "/ok"):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("POST", target, b"{}")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Allow"]) == (405, "GET")
            connection.close()
    finally:
        server.shutdown()
        server.server_close()
