"""dhcp's configuration, its ADD with a daemon that does not answer, and the timers of its daemon."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from cni import args as cni_args
from cni import conf as cni_conf
from cni.errors import CniError
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp import main
from ipam.dhcp.rpc import ALLOCATE, RELEASE, Connection
from process.loop import Loop, now

Daemon = Callable[[str], list[str]]


@pytest.fixture
def daemon(tmp_path) -> Iterator[Daemon]:
    """Starts a daemon that answers ALLOCATE with an error, or not at all if that is ""; returns the methods called."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "dhcp.sock"))
    methods: list[str] = []

    def serve(error: str) -> None:
        with suppress(OSError):
            while True:
                client, connection = listening.accept()[0], Connection()
                while call := _receive(client, connection):
                    methods.append(call.method)
                    if call.method == RELEASE:
                        client.sendall(connection.reply(call, None))
                    elif error:
                        client.sendall(connection.refuse(call, error))

    def start(error: str) -> list[str]:
        listening.listen()
        threading.Thread(target=serve, args=(error,), daemon=True).start()
        return methods

    yield start
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def _receive(client, connection):
    """Returns the next call of a client, None at its end."""
    while data := client.recv(1 << 16):
        calls = connection.receive(data)
        client.sendall(connection.data_to_send())
        if calls:
            return calls[0]
    return None


@pytest.mark.parametrize(
    ("error", "code", "methods"), [("", 11, [ALLOCATE, RELEASE]), ("no more tries", 999, [ALLOCATE])]
)
def test_add_without_an_answer_is_released(daemon, tmp_path, monkeypatch, error, code, methods):
    """An ADD that the daemon does not answer in time is followed by a release; one that it refuses is not."""
    monkeypatch.setattr(main, "_ALLOCATE_LIMIT_S", 60 if error else 0.3)
    called = daemon(error)
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/x", "CNI_PATH": "/"}
    ipam = {"type": "dhcp", "daemonSocketPath": str(tmp_path / "dhcp.sock"), "dataDir": str(tmp_path)}
    conf = cni_conf.parse(json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam}).encode())
    with pytest.raises(CniError) as failure:
        main.cmd_add(cni_args.from_env(env), conf)
    assert (failure.value.code, called) == (code, methods)


@pytest.mark.parametrize("number", ["50", "52", "53", "54"])
def test_provided_option_of_the_protocol(number):
    """Options that each message of the client depends on cannot be replaced."""
    stdin = {"name": "net", "ipam": {"type": "dhcp", "provide": [{"option": number, "value": "x"}]}}
    with pytest.raises(CniError, match="cannot be provided") as caught:
        dhcp_conf.parse(cni_conf.parse(json.dumps(stdin).encode()), "")
    assert caught.value.code == 7


def test_cancelled_timers_are_removed():
    """Timers of deleted pods, which would end in days, do not stay in memory; the others stay, in their order."""
    loop = Loop()
    ran: list[int] = []
    for number in reversed(range(300)):
        loop.call_at(float(number), partial(ran.append, number))
        for _ in range(30):
            loop.call_at(now() + 86400, lambda: None).cancel()
    assert len(loop._timers) < 1000
    loop._run_timers()
    assert ran == list(range(300))
