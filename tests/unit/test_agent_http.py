"""The agent's HTTP server: pages over TCP and on the Unix socket, and there also POST with a limited body."""

import contextlib
import http.client
import os
import socket
from collections.abc import Iterator

import pytest

from agent import http_server
from agent.http_server import Answer, text_answer
from cni.errors import CniError
from tests.support.machine import eventually

PAGES = {"/ok": lambda: text_answer("fine\n", ok=True), "/bad": lambda: text_answer("broken\n", ok=False)}
ACTIONS = {"/act": lambda body: Answer(409, b"seen: " + body)}


@contextlib.contextmanager
def running(address) -> Iterator[None]:
    """Runs a server; its threads would take signals that later tests send."""
    server = http_server.start(address, PAGES, ACTIONS)
    try:
        yield
    finally:
        server.shutdown()
        server.socket.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Iterator[str]:
    """The path of a server's Unix socket."""
    path = str(tmp_path_factory.mktemp("agent") / "agent.sock")
    with running(path):
        yield path


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(path)
    return client


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


def answer_of(connection, method, target, body=b"", headers=None) -> tuple[int, bytes]:
    """Returns status and text of an answer."""
    connection.request(method, target, body, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def ask(path, method, target, body=b"", headers=None) -> tuple[int, bytes]:
    """Returns status and text of the answer on a Unix socket."""
    connection = http.client.HTTPConnection("agent")
    connection.sock = connect(path)
    return answer_of(connection, method, target, body, headers)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_pages_over_tcp(host):
    """Pages are served over TCP, 200 or 503; others are 404, and a POST is 405, also of an action."""
    port = free_port(host)
    with running(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"):
        targets = ("/ok?x=1", "/bad", "/none")
        answers = [answer_of(http.client.HTTPConnection(host, port), "GET", target) for target in targets]
        for target in ("/act", "/ok"):
            connection = http.client.HTTPConnection(host, port)
            connection.request("POST", target, b"{}")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Allow"]) == (405, "GET")
            connection.close()
    assert answers[:2] == [(200, b"fine\n"), (503, b"broken\n")]
    assert answers[2][0] == 404


def test_pages_over_a_unix_socket(tmp_path):
    """A Unix socket is only root's, and replaces that of an agent that was killed."""
    path = str(tmp_path / "agent.sock")
    for _ in range(2):
        with running(path):
            assert ask(path, "GET", "/ok") == (200, b"fine\n")
            assert os.stat(path).st_mode & 0o777 == 0o600


def test_more_clients_than_the_limit_are_refused(path):
    """While 32 clients are connected others are closed at once; afterwards the pages are served again."""

    def is_served():
        with contextlib.suppress(OSError):  # refused, or the queue is full
            return ask(path, "GET", "/ok") == (200, b"fine\n")
        return False

    clients = [connect(path) for _ in range(32)]
    with connect(path) as refused:
        assert refused.recv(1) == b""
    for client in clients:
        client.close()
    assert eventually(is_served)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "/nonexistent/agent.sock", "192.0.2.1:80"])
def test_wrong_address_is_an_error(address):
    """An address on which nothing can listen is an error with a fix."""
    with pytest.raises(CniError) as failed:
        http_server.start(address, PAGES)
    assert "--listen" in failed.value.details


def test_action_gets_the_body(path):
    """An action gets the body, and its answer has the status of the action; a page is no action."""
    assert ask(path, "POST", "/act", b'{"a": 1}') == (409, b'seen: {"a": 1}')
    assert ask(path, "POST", "/act") == (409, b"seen: ")
    assert [ask(path, "POST", target)[0] for target in ("/ok", "/act?x=1")] == [404, 404]


@pytest.mark.parametrize(
    ("length", "status"), [(str(1 << 21), 413), ("9" * 5000, 411), ("-1", 411), ("x", 411), ("\u0663", 411)]
)
def test_body_is_limited(path, length, status):
    """A body with a length that is wrong or too large is refused without reading it."""
    assert ask(path, "POST", "/act", b"", {"Content-Length": length.encode()})[0] == status


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [(b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [b"411"]), (b'Content-Length: 100\r\n\r\n{"a"', [])],
    ids=["no length", "a part of the body"],
)
def test_action_needs_the_whole_body(path, request_bytes, answer):
    """A body without a length is refused; a client that ends in the middle of its body gets no answer."""
    with connect(path) as client:
        client.sendall(b"POST /act HTTP/1.0\r\n" + request_bytes)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1000).split()[1:2] == answer
