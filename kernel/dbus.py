"""D-Bus: method calls on the system bus, several in one send, over a plain blocking socket.

One rule: a conversation ends within CONVERSATION_S, whoever hangs. jeepney writes and reads the messages; its own
connections are not used, since they wait without letting a signal in, and call by call.

What it costs: where nobody listens, one system call; a connection wakes the bus up twice (who we are, Hello), and each
send wakes up the bus and who is called.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.low_level import HeaderFields, Message, MessageFlag, MessageType, Parser
from jeepney.wrappers import DBusAddress, new_method_call

from cni.errors import CniError, Code
from kernel.rtnl import Deadline
from process import record
from process.signals import unblocked
from process.values import dataclass

SYSTEM_BUS = "unix:path=/var/run/dbus/system_bus_socket"
CONVERSATION_S = 10.0  # a reload of firewalld takes a quarter of a second, with thousands of rules some seconds
NO_REPLY = "org.freedesktop.DBus.Error.NoReply"
NO_OWNER_ERRORS = ("org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.ServiceUnknown")
ROLLBACK_S = 1.0
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 1 << 20  # of one conversation: what is asked for here are names
_LATEST_S = 0.001  # for what is sent after the conversation's end, to take back what may have been done
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"

Done = TypeVar("Done")


@dataclass(frozen=True)
class Call:
    """One method call, whose arguments are strings; `doing` says what it changes, "" for one that only asks."""

    destination: str
    path: str
    interface: str
    method: str
    arguments: tuple[str, ...] = ()
    description: str = ""

    def encode(self, serial: int) -> bytes:
        """Returns the message's bytes. It starts nobody: who is not there has nothing to be asked for."""
        address = DBusAddress(self.path, bus_name=self.destination, interface=self.interface)
        signature = "s" * len(self.arguments) or None
        message = new_method_call(address, self.method, signature, self.arguments)
        message.header.flags = MessageFlag.no_auto_start
        encoded: bytes = message.serialise(serial=serial)
        return encoded


@dataclass(frozen=True)
class Reply:
    """What became of a call: the values that came back, or the name of an `error` and its text."""

    values: tuple[Any, ...] = ()
    error: str = ""

    @property
    def value(self) -> Any:
        """The first value or the error's text, None when there is none."""
        return self.values[0] if self.values else None


class BusError(CniError):
    """There is no bus that listens to us: no socket, no access, or something that is none; code 999."""


class Bus:
    """A connection to the system bus (DBUS_SYSTEM_BUS_ADDRESS, or SYSTEM_BUS). A context manager.

    Raises BusError, and CniError(11) when the bus does not answer in time.
    """

    def __init__(self) -> None:
        self.address = os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or SYSTEM_BUS
        self._deadline = Deadline(CONVERSATION_S)
        self._parser = Parser()
        self._received = self._serial = 0
        self._socket = self._connected()
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def shorten_deadline(self) -> None:
        """Ends the conversation within HURRY_S: who is called takes back what is asked to, in its own time."""
        self._deadline = Deadline(min(ROLLBACK_S, self._deadline.remaining_s()))

    def get_owner(self, name: str) -> str:
        """Returns the connection that has a well-known name, "" when nobody has; raises CniError."""
        reply = self._demand(Call(_BUS, _BUS_PATH, _BUS, "GetNameOwner", (name,)), NO_OWNER_ERRORS)
        return "" if reply.error else str(reply.value)

    def call(self, *calls: Call) -> list[Reply]:
        """Sends calls in one send and returns their replies in order.

        What is not answered in time, or before the bus hangs up, is so with the error NO_REPLY, as libdbus has it;
        who was called may still do it, and before what is sent to it later. Raises CniError only when nothing was sent.
        """
        if record.is_dry_run() and any(call.description for call in calls):
            record.change(*(call.description for call in calls))
            return [Reply()] * len(calls)
        with record.timed_step("ask on the system bus"):
            replies, failure = self._exchange(calls)
        if record.is_recording():
            done = [call.description for call, reply in zip(calls, replies, strict=True) if reply and not reply.error]
            record.change(*filter(None, done))
        return [reply or Reply((failure and failure.msg,), NO_REPLY) for reply in replies]

    def _exchange(self, calls: Sequence[Call], before: bytes = b"") -> tuple[list[Reply | None], CniError | None]:
        """Sends `before` and calls; returns the replies in order, and what ended the waiting for the missing ones."""
        first = self._serial + 1
        self._serial += len(calls)
        self._send(before + b"".join(call.encode(serial) for serial, call in enumerate(calls, first)))
        replies: dict[int, Reply | None] = dict.fromkeys(range(first, first + len(calls)))
        try:
            while None in replies.values():
                replies.update((serial, reply) for serial, reply in self._replies() if serial in replies)
        except CniError as error:
            return list(replies.values()), error
        return list(replies.values()), None

    def _connected(self) -> socket.socket:
        """Returns a socket connected to the first address that takes it."""
        problem = "it names no unix socket"
        for name in _unix_sockets(self.address):
            candidate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                self._wait(candidate, partial(candidate.connect, name))
                return candidate
            except BaseException as error:
                candidate.close()
                if not isinstance(error, OSError):
                    raise
                problem = (error.strerror or str(error)).lower()
        raise self._unusable(problem)

    def _greet(self) -> None:
        """Says who we are, by the socket's credentials, and gets a name: a bus answers nobody without one."""
        authenticator = Authenticator()
        try:
            for line in authenticator:
                self._send(line)
                authenticator.feed(self._receive())
        except AuthenticationError as error:
            raise self._unusable(f"it refuses us: {error}") from error
        self._demand(Call(_BUS, _BUS_PATH, _BUS, "Hello"), before=BEGIN)

    def _demand(self, call: Call, accepted: tuple[str, ...] = (), before: bytes = b"") -> Reply:
        """Returns the reply of the bus itself to one call; raises CniError for an error that is not `accepted`."""
        (reply,), failure = self._exchange([call], before)
        if failure or not reply:
            raise failure or self._late()
        if reply.error and reply.error not in accepted:
            raise self._unusable(f"{reply.error}: {reply.value}")
        return reply

    def _send(self, data: bytes) -> None:
        try:
            self._wait(self._socket, partial(self._socket.sendall, data))
        except OSError as error:
            raise self._unusable((error.strerror or str(error)).lower()) from error

    def _receive(self) -> bytes:
        """Returns what has come, something; raises CniError."""
        try:
            data = self._wait(self._socket, partial(self._socket.recv, _CHUNK_BYTES))
        except OSError as error:
            raise self._unusable((error.strerror or str(error)).lower()) from error
        self._received += len(data)
        if not data or self._received > _MOST_BYTES:
            raise self._unusable("it says too much" if data else "it has hung up")
        return data

    def _wait(self, connection: socket.socket, action: Callable[[], Done]) -> Done:
        """Returns what `action` on a socket returns; raises OSError, and CniError(11) when the time is over."""
        connection.settimeout(self._deadline.remaining_s() or _LATEST_S)
        try:
            with unblocked():
                return action()
        except TimeoutError as error:
            raise self._late() from error

    def _replies(self) -> list[tuple[int, Reply]]:
        """Returns the replies among the messages that come next, with what they answer; raises CniError."""
        data = self._receive()
        try:
            return [
                (message.header.fields[HeaderFields.reply_serial], _reply(message))
                for message in self._parser.feed(data)
                if HeaderFields.reply_serial in message.header.fields
            ]
        except (ValueError, KeyError, IndexError, struct.error) as error:
            raise self._unusable(f"what it says is no D-Bus: {error}") from error

    def _late(self) -> CniError:
        details = f"the system bus ({self.address}) or who is asked by it hangs, or is starting"
        return CniError(Code.TRY_AGAIN_LATER, f"D-Bus: no answer within {CONVERSATION_S:.0f} s", details)

    def _unusable(self, why: str) -> BusError:
        return BusError(Code.INTERNAL, f"D-Bus: no system bus at {self.address}: {why}")


def _reply(message: Message) -> Reply:
    error = ""
    if message.header.message_type is MessageType.error:
        error = str(message.header.fields[HeaderFields.error_name])
    return Reply(tuple(message.body), error)


def _unix_sockets(address: str) -> Iterator[str]:
    """Yields the sockets of a bus address ("unix:path=/run/x,guid=5;unix:abstract=y"), as connect takes them."""
    for one in address.split(";"):
        transport, _, keys = one.partition(":")
        for key in keys.split(",") if transport == "unix" else ():
            name, _, value = key.partition("=")
            if name in ("path", "abstract") and value:
                yield ("\0" if name == "abstract" else "") + _unescaped(value)


def _unescaped(value: str) -> str:
    """Returns a value of an address as it is meant: "%20" is a space."""
    return os.fsdecode(_ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), os.fsencode(value)))
