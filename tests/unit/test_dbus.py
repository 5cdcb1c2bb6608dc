"""D-Bus (kernel.dbus) with peers that are not a bus, or close the connection; tests/netns has a real bus."""

import socket
import threading

import pytest

from cni.errors import CniError
from kernel import dbus
from kernel.dbus import NO_REPLY, Bus, BusError, MethodCall
from tests.support.errors import error_of

CALL = MethodCall("org.example", "/org/example", "org.example.Zone", "addSource", ("trusted", "10.0.0.1/32"))
OK = b"OK 1234\r\n"
# The reply to Hello, which is the first call: little-endian, a method return to serial 1, body ":1.7".
HELLO = (
    b"l\2\1\1" + (9).to_bytes(4, "little") + (1).to_bytes(4, "little") + (15).to_bytes(4, "little")
    + b"\5\1u\0\1\0\0\0" + b"\x08\1g\0\1s\0" + b"\0" + (4).to_bytes(4, "little") + b":1.7\0"
)  # fmt: skip


@pytest.fixture
def bus(tmp_path, monkeypatch):
    """A function that starts a peer, which answers received data with these bytes, and then hangs or closes."""
    address = str(tmp_path / "bus")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"tcp:host=x;unix:path={address}2;unix:guid=1,path={address}")
    monkeypatch.setattr(dbus, "CONVERSATION_S", 60)
    received = []
    finished = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        threads = []

        def serve(answers, hangs):
            connection, _ = listening.accept()
            with connection:
                for answer in answers:
                    received.append(connection.recv(4096))
                    connection.sendall(answer)
                if hangs:
                    finished.wait(60)

        def start(*answers, hangs=False):
            threads.append(threading.Thread(target=serve, args=(answers, hangs)))
            threads[-1].start()
            return received

        yield start
        finished.set()
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ((b"REJECTED EXTERNAL\r\n",), "it refuses the connection"),
        ((b"x" * 9000,), "it refuses the connection"),
        ((b"",), "it closed the connection"),
        ((OK, b"\0" * 64), "it does not speak D-Bus"),
    ],
)
def test_peers_that_are_not_a_bus(bus, answers, reason):
    """A peer that refuses, closes the connection or speaks another protocol is not a bus; the error has the reason."""
    bus(*answers)
    assert reason in error_of(Bus, BusError).msg


def test_a_bus_that_hangs(bus, monkeypatch):
    """A bus that does not answer in time is an error with code 11."""
    monkeypatch.setattr(dbus, "CONVERSATION_S", 0.2)
    bus(hangs=True)
    assert error_of(Bus, CniError).code == 11


def test_an_unanswered_call(bus):
    """A call without an answer before the bus closes the connection gives a reply with the error NO_REPLY."""
    received = bus(OK, HELLO, b"")
    with Bus() as bus:
        (reply,) = bus.call(CALL)
    assert reply.error == NO_REPLY
    assert b"addSource" in received[-1]


def test_addresses(monkeypatch):
    """A bus address is a list, of which only unix sockets are used; escaped characters are decoded."""
    text = "tcp:host=a;unix:path=/a%20b%C3%a4%zz,guid=1;unix:abstract=c;unix:tmpdir=/x;"
    assert list(dbus._unix_sockets(text)) == ["/a bä%zz", "\0c"]
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "tcp:host=a")
    with pytest.raises(BusError, match="it names no unix socket"):
        Bus()
