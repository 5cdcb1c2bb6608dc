"""`podwire top`: rates, drops at limits and connections of real packets; the live table and its keys."""

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool

LIMITS = '{"bandwidth": {"egressRate": 800000, "egressBurst": 80000}}'
DATAGRAM = 1000


@pytest.fixture
def pods(tool: Tool, new_sandbox: Callable[[], Namespace]) -> list[Namespace]:
    """Two pods; the first may send 800 kbit/s."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "bandwidth", "capabilities": {"bandwidth": True}})
    sandboxes = [new_sandbox(), new_sandbox()]
    for number, pod in enumerate(sandboxes):
        limits = ("--capability-args", LIMITS) if number == 0 else ()
        tool.succeed("add", "net", pod.name, "--container-id", f"pod{number}", *limits)
    return sandboxes


@contextmanager
def sending(pod: Namespace, per_second: int) -> Iterator[None]:
    """Sends datagrams from a pod to the gateway inside the block."""
    with pod.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("10.22.0.1", 9))
    end = threading.Event()

    def send() -> None:
        while not end.wait(1 / 50):
            for _ in range(per_second // 50):
                with suppress(OSError):  # the gateway's answer: no process has this port
                    sender.send(bytes(DATAGRAM))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        sender.close()


def test_rates_and_drops_are_those_of_the_packets(tool: Tool, pods: list[Namespace]):
    """The document has the traffic that a pod sends, what its limit drops, and the connections of its address."""
    with sending(pods[0], 2000), sending(pods[1], 200):
        time.sleep(0.5)
        document = tool.json("top", "--once", "--interval", "2")
    limited, free = (
        next(one for one in document["attachments"] if one["containerID"] == name) for name in ("pod0", "pod1")
    )
    frame_bits = 8 * (DATAGRAM + 28 + 14)
    assert 20 * frame_bits < free["sendsBits"] < 250 * frame_bits
    assert free["sendsBits"] / free["sendsPackets"] == pytest.approx(frame_bits, rel=0.1)
    assert limited["sendsDrops"] > 0
    assert (free["sendsDrops"], free["receivesDrops"], limited["receivesDrops"]) == (None, None, None)
    if document["conntrack"]:
        assert free["connections"] >= 1
        assert document["conntrack"]["count"] <= document["conntrack"]["limit"]


def test_one_table_without_a_terminal(tool: Tool, pods: list[Namespace]):
    """Without a terminal one table is printed, sorted as requested, and a selection has only its pods."""
    with sending(pods[1], 100):
        printed = tool.succeed("top", "--interval", "0.5")
    rows = [line.split() for line in printed.splitlines() if line.startswith("pod")]
    assert [row[0] for row in rows] == ["pod1", "pod0"]
    assert rows[1][-4:-2] == ["-", "800kbit/s"]  # before drops and connections
    assert "pod1" not in tool.succeed("top", "--once", "--interval", "0.2", "--pod", "pod0")
    assert "--interval must be at least" in tool.fail(2, "top", "--interval", "0")


class Terminal:
    """A terminal on which a command runs."""

    def __init__(self, tool: Tool, *words: str, columns: int = 60, env: dict[str, str] | None = None) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 8, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.process: subprocess.Popen[bytes] = tool.start(*words, env=env, stdin=slave, stdout=slave, stderr=slave)
        self.slave = slave

    def read_all(self) -> str:
        """Returns the output of a command that ends by itself."""
        os.close(self.slave)
        data = b""
        with suppress(OSError):  # the last process has closed the terminal
            while chunk := os.read(self.master, 4096):
                data += chunk
        os.close(self.master)
        self.process.wait(60)
        return data.decode()

    def read_until(self, text: str) -> str:
        """Returns the output up to `text`, within 30 seconds."""
        data = b""
        end = time.monotonic() + 30
        while text.encode() not in data:
            assert time.monotonic() < end, data.decode()
            data += os.read(self.master, 4096)
        return data.decode()

    def close(self) -> int:
        """Returns the exit status."""
        status = self.process.wait(30)
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.master)
        os.close(self.slave)
        return status


def test_live_table_ends_with_q(tool: Tool, pods: list[Namespace]):
    """The live table is drawn again and fits the terminal; s sorts by the next column, q restores the terminal."""
    terminal = Terminal(tool, "top", "--interval", "0.3")
    printed = terminal.read_until("sorted by traffic")
    assert "\033[?1049h" in printed
    os.write(terminal.master, b"s")
    printed = terminal.read_until("sorted by drops")
    screen = printed.rpartition("\033[H")[2].replace("\033[K", "").replace("\r\n", "\n")
    assert len(screen.splitlines()) <= 8
    os.write(terminal.master, b"q")
    terminal.read_until("\033[?25h\033[?1049l")
    assert terminal.close() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_restore_the_terminal(tool: Tool, pods: list[Namespace], number: signal.Signals):
    """A signal ends the live table and restores the terminal."""
    terminal = Terminal(tool, "top", "--interval", "5")
    terminal.read_until("sorted by")
    terminal.process.send_signal(number)
    terminal.read_until("\033[?1049l")
    assert terminal.close() == 0
