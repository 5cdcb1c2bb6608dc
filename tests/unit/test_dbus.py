"""The D-Bus conversation (kernel.dbus) with a bus that is none, or breaks off; a real one is in tests/netns."""

import socket
import subprocess
import sys
import threading

import pytest

from cni.errors import CniError
from kernel import dbus
from kernel.dbus import NO_REPLY, Bus, BusError, Call
from tests.support.binaries import ROOT

CALL = Call("org.example", "/org/example", "org.example.Zone", "addSource", ("trusted", "10.0.0.1/32"))
OK = b"OK 1234\r\n"
# The reply to Hello, which is the first call: little-endian, a method return to serial 1, body ":1.7".
HELLO = (
    b"l\2\1\1" + (9).to_bytes(4, "little") + (1).to_bytes(4, "little") + (15).to_bytes(4, "little")
    + b"\5\1u\0\1\0\0\0" + b"\x08\1g\0\1s\0" + b"\0" + (4).to_bytes(4, "little") + b":1.7\0"
)  # fmt: skip


@pytest.fixture
def bus(tmp_path, monkeypatch):
    """A function that starts a bus which says these bytes, each after something came, and then hangs or hangs up."""
    address = str(tmp_path / "bus")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"tcp:host=x;unix:path={address}2;unix:guid=1,path={address}")
    monkeypatch.setattr(dbus, "CONVERSATION_S", 0.2)
    heard = []
    ends = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        threads = []

        def serve(answers, hangs):
            connection, _ = listening.accept()
            with connection:
                for answer in answers:
                    heard.append(connection.recv(4096))
                    connection.sendall(answer)
                if hangs:
                    ends.wait(10)

        def start(*answers, hangs=False):
            threads.append(threading.Thread(target=serve, args=(answers, hangs)))
            threads[-1].start()
            return heard

        yield start
        ends.set()
        for thread in threads:
            thread.join(10)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ((b"REJECTED EXTERNAL\r\n",), "it refuses the connection"),
        ((b"x" * 9000,), "it refuses the connection"),
        ((b"",), "it closed the connection"),
        ((OK, b"\0" * 64), "it does not speak D-Bus"),
    ],
)
def test_what_is_no_bus(bus, answers, why):
    """A peer that refuses, closes the connection or speaks another protocol is not a bus; the error has the reason."""
    bus(*answers)
    with pytest.raises(BusError) as caught:
        Bus()
    assert why in caught.value.msg


def test_a_bus_that_hangs(bus):
    """A bus that says nothing is waited for a limited time: code 11."""
    bus(hangs=True)
    with pytest.raises(CniError) as caught:
        Bus()
    assert caught.value.code == 11


def test_an_unanswered_call(bus):
    """A call that the bus does not answer before it hangs up is a reply that says so."""
    heard = bus(OK, HELLO, b"")
    with Bus() as bus:
        (reply,) = bus.call(CALL)
    assert reply.error == NO_REPLY
    assert b"addSource" in heard[-1]


def test_addresses(monkeypatch):
    """A bus address is a list; what is no unix socket is passed over, and escaped characters are read."""
    assert list(dbus._unix_sockets("tcp:host=a;unix:path=/a%20b%C3%a4%zz,guid=1;unix:abstract=c;unix:tmpdir=/x;")) == [
        "/a bä%zz",
        "\0c",
    ]
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "tcp:host=a")
    with pytest.raises(BusError, match="it names no unix socket"):
        Bus()


def test_only_the_messages_of_jeepney_are_loaded():
    """Of jeepney nothing is loaded that waits, has threads or logs: each start of a plugin would pay for that."""
    unwanted = {"asyncio", "logging", "threading", "jeepney.io"}
    imports = "import jeepney.auth, jeepney.low_level, jeepney.wrappers"
    code = f"import sys; before = set(sys.modules); {imports}; print({unwanted} & (set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
