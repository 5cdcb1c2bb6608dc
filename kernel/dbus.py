"""D-Bus: method calls on the system bus, several in one send, over a plain blocking socket.

A conversation ends within CONVERSATION_S, even when the bus or the service hangs. jeepney encodes and decodes the
messages; its connections are not used, since they block signals while waiting, and wait after each call.

Cost: one system call without a bus; a connection wakes up the bus twice (authentication, Hello), and each send wakes up
the bus and the service.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.low_level import HeaderFields, Message, MessageFlag, MessageType, Parser
from jeepney.wrappers import DBusAddress, new_method_call

from cni.errors import CniError, Code
from kernel import system
from kernel.owned_socket import OwnedSocket
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
_MOST_BYTES = 1 << 20  # received in one conversation: the replies are short names
_MIN_TIMEOUT_S = 0.001  # for calls after the conversation's end, which roll back
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"

Done = TypeVar("Done")


@dataclass(frozen=True)
class MethodCall:
    """A method call with string arguments; `description` names the change, "" for a read-only call."""

    destination: str
    path: str
    interface: str
    method: str
    arguments: tuple[str, ...] = ()
    description: str = ""

    def encode(self, serial: int) -> bytes:
        """Returns the message's bytes. Sets NO_AUTO_START, so that the call fails when the service is not running."""
        address = DBusAddress(self.path, bus_name=self.destination, interface=self.interface)
        signature = "s" * len(self.arguments) or None
        message = new_method_call(address, self.method, signature, self.arguments)
        message.header.flags = MessageFlag.no_auto_start
        encoded: bytes = message.serialise(serial=serial)
        return encoded


@dataclass(frozen=True)
class Reply:
    """The reply to a call: its values, or the name of an `error` with its text as value."""

    values: tuple[Any, ...] = ()
    error: str = ""

    @property
    def value(self) -> Any:
        """The first value or the error's text, None without one."""
        return self.values[0] if self.values else None


class BusError(CniError):
    """The system bus cannot be used: no socket, no access, or the peer does not speak D-Bus; code 999."""


class Bus(OwnedSocket):
    """A connection to the system bus (DBUS_SYSTEM_BUS_ADDRESS, or SYSTEM_BUS). A context manager.

    Raises BusError, and CniError(11) when the bus does not answer in time.
    """

    def __init__(self) -> None:
        self.address = os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or SYSTEM_BUS
        self._deadline = Deadline(CONVERSATION_S)
        self._parser = Parser()
        self._received = self._serial = 0
        self._socket = self._connect()
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def shorten_deadline(self) -> None:
        """Limits the rest of the conversation to ROLLBACK_S: the service executes later calls without a caller, too."""
        self._deadline = Deadline(min(ROLLBACK_S, self._deadline.remaining_s()))

    def get_owner(self, name: str) -> str:
        """Returns the connection that owns a well-known name, "" when none does; raises CniError."""
        reply = self._call_bus(MethodCall(_BUS, _BUS_PATH, _BUS, "GetNameOwner", (name,)), NO_OWNER_ERRORS)
        return "" if reply.error else str(reply.value)

    def call(self, *calls: MethodCall) -> list[Reply]:
        """Sends calls in one send and returns their replies in order.

        A call without a reply in time, or before the bus closes the connection, gets the error NO_REPLY, as in
        libdbus; the service may still execute it, before any later call. Raises CniError only when nothing was sent.
        """
        if record.is_dry_run() and any(call.description for call in calls):
            record.note_change(*(call.description for call in calls))
            return [Reply()] * len(calls)
        with record.timed_step("call a service on the system bus"):
            replies, failure = self._exchange(calls)
        if record.is_recording():
            done = [call.description for call, reply in zip(calls, replies, strict=True) if reply and not reply.error]
            record.note_change(*filter(None, done))
        return [reply or Reply((failure and failure.msg,), NO_REPLY) for reply in replies]

    def _exchange(self, calls: Sequence[MethodCall], before: bytes = b"") -> tuple[list[Reply | None], CniError | None]:
        """Sends `before` and the calls; returns the replies in order, and the error that ended the wait, if any."""
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

    def _connect(self) -> socket.socket:
        """Returns a socket connected to the first address that accepts it."""
        problem = "it names no unix socket"
        for name in _unix_sockets(self.address):
            candidate = system.current.open_socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
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
        """Authenticates by the socket's credentials and says Hello, without which a bus answers no call."""
        authenticator = Authenticator()
        try:
            for line in authenticator:
                self._send(line)
                authenticator.feed(self._receive())
        except AuthenticationError as error:
            raise self._unusable(f"it refuses the connection: {error}") from error
        self._call_bus(MethodCall(_BUS, _BUS_PATH, _BUS, "Hello"), before=BEGIN)

    def _call_bus(self, call: MethodCall, accepted: tuple[str, ...] = (), before: bytes = b"") -> Reply:
        """Calls the bus itself and returns its reply; raises CniError for an error that is not `accepted`."""
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
        """Receives at least one byte; raises CniError."""
        try:
            data = self._wait(self._socket, partial(self._socket.recv, _CHUNK_BYTES))
        except OSError as error:
            raise self._unusable((error.strerror or str(error)).lower()) from error
        self._received += len(data)
        if not data or self._received > _MOST_BYTES:
            raise self._unusable("it sends too much" if data else "it closed the connection")
        return data

    def _wait(self, connection: socket.socket, action: Callable[[], Done]) -> Done:
        """Runs `action` on a socket and returns its result; raises OSError, and CniError(11) after the deadline."""
        connection.settimeout(self._deadline.remaining_s() or _MIN_TIMEOUT_S)
        try:
            with unblocked():
                return action()
        except TimeoutError as error:
            raise self._late() from error

    def _replies(self) -> list[tuple[int, Reply]]:
        """Receives messages; returns (serial of the call, reply) pairs. Raises CniError."""
        data = self._receive()
        try:
            return [
                (message.header.fields[HeaderFields.reply_serial], _reply(message))
                for message in self._parser.feed(data)
                if HeaderFields.reply_serial in message.header.fields
            ]
        except (ValueError, KeyError, IndexError, struct.error) as error:
            raise self._unusable(f"it does not speak D-Bus: {error}") from error

    def _late(self) -> CniError:
        details = f"the system bus ({self.address}) or the service hangs or is starting; try again"
        return CniError(Code.TRY_AGAIN_LATER, f"D-Bus: no answer within {CONVERSATION_S:.0f} s", details)

    def _unusable(self, why: str) -> BusError:
        return BusError(Code.INTERNAL, f"D-Bus: no system bus at {self.address}: {why}")


def _reply(message: Message) -> Reply:
    error = ""
    if message.header.message_type is MessageType.error:
        error = str(message.header.fields[HeaderFields.error_name])
    return Reply(tuple(message.body), error)


def _unix_sockets(address: str) -> Iterator[str]:
    """Yields the sockets of a bus address ("unix:path=/run/x,guid=5;unix:abstract=y")."""
    for one in address.split(";"):
        transport, _, keys = one.partition(":")
        for key in keys.split(",") if transport == "unix" else ():
            name, _, value = key.partition("=")
            if name in ("path", "abstract") and value:
                yield ("\0" if name == "abstract" else "") + _unescape(value)


def _unescape(value: str) -> str:
    """Returns an unescaped value of an address: "%20" is a space."""
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), os.fsencode(value)))
