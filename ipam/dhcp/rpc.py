"""The protocol between the plugin and the daemon, in the reference plugin's form: Go's net/rpc on a unix socket.

The client sends an HTTP request CONNECT. After the answer both sides send gob: a Request with the argument of the call,
and a Response with the result. So each of the reference's two programs works with ours.
"""

from __future__ import annotations

import errno
import select
import socket
import struct

from cni.gojson import without_surrogates
from cni.result import Result
from ipam.dhcp import gob, rpc_result
from ipam.dhcp.gob import BYTES, STRING, UINT, MalformedGob, Struct, StructType
from kernel import system
from kernel.rtnl import Deadline
from process.signals import unblocked
from process.values import dataclass, field

ALLOCATE, RELEASE, CHECK = "DHCP.Allocate", "DHCP.Release", "DHCP.Check"  # the reference has no CHECK

_RPC_PATH = "/_goRPC_"
_CONNECT = f"CONNECT {_RPC_PATH} HTTP/1.0\n\n".encode()
_CONNECTED = "HTTP/1.0 200 Connected to Go RPC\n\n"
_HEAD_BYTES = 8192  # of the HTTP request or answer
_HEAD_ENDS = (b"\n\n", b"\n\r\n")
_CHUNK_BYTES = 1 << 16
_METHOD_MAX_CHARACTERS, _ERROR_MAX_CHARACTERS = 256, 1 << 16  # an answer contains both, and must fit in a message
_TIMEVAL = struct.Struct("@ll")
_POLL_MS = 100  # a signal just before the system call does not interrupt it (skel.py)

# The names of types and fields are Go's; a receiver ignores fields that it does not know.
_REQUEST = StructType("Request", (("ServiceMethod", STRING), ("Seq", UINT)))
_RESPONSE = StructType("Response", (("ServiceMethod", STRING), ("Seq", UINT), ("Error", STRING)))
_EMPTY = StructType("", ())
_CMD_ARGS = StructType(
    "CmdArgs",
    (
        ("ContainerID", STRING),
        ("Netns", STRING),
        ("IfName", STRING),
        ("Args", STRING),
        ("Path", STRING),
        ("NetnsOverride", STRING),
        ("StdinData", BYTES),
    ),
)


class RpcError(Exception):
    """The daemon refused the call; the message is its text."""


@dataclass(frozen=True)
class CallArgs:
    """The argument of every method: the plugin's parameters (Go: skel.CmdArgs)."""

    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: str = ""
    path: str = ""
    netns_override: str = ""
    stdin: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class RpcCall:
    """A call that the daemon received; `seq` identifies it on its connection."""

    seq: int
    method: str
    args: CallArgs


class Connection:
    """The daemon's side of a connection, without I/O.

    `http_request` is the path of an HTTP request GET, such as that of a program that collects metrics; the caller
    answers it by HTTP, and nothing else comes on that connection.
    """

    def __init__(self) -> None:
        self.http_request: str | None = None
        self._head: bytearray | None = bytearray()
        self._to_send = ""
        self._request: Struct | None = None
        self._decoder = gob.Decoder()
        self._encoder = gob.Encoder()

    def receive(self, data: bytes) -> list[RpcCall]:
        """Returns the calls that `data` completes; raises Malformed, after which the caller closes the connection.

        The caller then sends `data_to_send()`.
        """
        if self.http_request is not None:
            return []
        if self._head is not None:
            self._head += data
            end = _head_end(self._head)
            if not end:
                return []
            self._open(bytes(self._head[:end]))
            data, self._head = bytes(self._head[end:]), None
        self._decoder.feed(data)
        return self._calls() if self.http_request is None else []

    def data_to_send(self) -> bytes:
        """Returns the answer to CONNECT, once; the caller sends it before any reply."""
        data, self._to_send = self._to_send.encode(), ""
        return data

    def reply(self, call: RpcCall, result: Result | None) -> bytes:
        """Returns the bytes of a successful answer, to be sent in the order of creation; None is Go's empty struct."""
        response = self._encoder.encode(_RESPONSE, Struct({"ServiceMethod": call.method, "Seq": call.seq}))
        if result is None:
            return response + self._encoder.encode(_EMPTY, Struct({}))
        return response + self._encoder.encode(rpc_result.RESULT, rpc_result.to_struct(result))

    def refuse(self, call: RpcCall, text: str) -> bytes:
        """Returns the bytes of an answer with an error, to be sent in the order of creation."""
        # An empty text would be success. Lone surrogates, which JSON can contain, cannot be encoded.
        error = without_surrogates((text or "unknown error")[:_ERROR_MAX_CHARACTERS])
        response = Struct({"ServiceMethod": call.method, "Seq": call.seq, "Error": error})
        return self._encoder.encode(_RESPONSE, response) + self._encoder.encode(_EMPTY, Struct({}))

    def _open(self, head: bytes) -> None:
        line = head.partition(b"\n")[0].decode("latin-1").split()
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            raise MalformedGob("the client does not speak HTTP")
        method, path, _ = line
        if method == "GET":
            self.http_request = path.partition("?")[0]
        elif (method, path) == ("CONNECT", _RPC_PATH):
            self._to_send = _CONNECTED
        else:
            raise MalformedGob(f"HTTP request {method} {path} instead of CONNECT {_RPC_PATH}")

    def _calls(self) -> list[RpcCall]:
        calls: list[RpcCall] = []
        while (value := self._decoder.decode()) is not None:
            if self._request is None:
                self._request = value
            else:
                request, self._request = self._request, None
                calls.append(_to_call(request, value))
        return calls


def call(socket_path: str, method: str, call_args: CallArgs, *, limit_s: float) -> Result:
    """Calls a method of the daemon and returns its result, an empty one if the method has none.

    Raises RpcError with the daemon's error, TimeoutError after `limit_s` seconds, ConnectionAbortedError when the
    daemon closes the connection before its answer, Malformed for an answer of another protocol, and another OSError
    when there is no daemon. Signals interrupt it only while it waits.
    """
    deadline = Deadline(limit_s)
    with _connect(socket_path, deadline) as connection:
        stream = _Stream(connection, deadline)
        stream.send(_CONNECT)
        head = bytearray()
        while not (end := _head_end(head)):
            head += stream.receive()
        status = head.partition(b"\n")[0].decode("latin-1").strip()
        if status.partition(" ")[2] != "200 Connected to Go RPC":
            raise MalformedGob(f"the daemon answers {status!r} to CONNECT")
        encoder, decoder = gob.Encoder(), gob.Decoder()
        decoder.feed(bytes(head[end:]))
        request = encoder.encode(_REQUEST, Struct({"ServiceMethod": method}))
        stream.send(request + encoder.encode(_CMD_ARGS, _args_struct(call_args)))
        response = stream.decode(decoder)
        if text := response.text("Error"):
            raise RpcError(text)
        if response.integer("Seq"):
            raise MalformedGob("the daemon answers another call")
        return rpc_result.from_struct(stream.decode(decoder))


class _Stream:
    """A connected socket with a deadline; signals are delivered while it waits."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._deadline = deadline

    def send(self, data: bytes) -> None:
        """Sends all of the data."""
        rest = memoryview(bytearray(data))  # a copy, as a constant is in the image (pack/README.md)
        while rest:
            self._wait(select.POLLOUT)
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise _aborted(error.strerror or str(error)) from error

    def receive(self) -> bytes:
        """Returns received bytes, at least one."""
        while True:
            self._wait(select.POLLIN)
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise _aborted(error.strerror or str(error)) from error
            if not data:
                raise _aborted("unexpected EOF")
            return data

    def decode(self, decoder: gob.Decoder) -> Struct:
        """Returns the next value, and receives what it lacks."""
        while (value := decoder.decode()) is None:
            decoder.feed(self.receive())
        return value

    def _wait(self, event: int) -> None:
        ready = select.poll()
        ready.register(self._socket, event)
        with unblocked():
            while not ready.poll(min(_POLL_MS, self._deadline.remaining_s() * 1000)):
                _check(self._deadline)


def _connect(path: str, deadline: Deadline) -> socket.socket:
    """Returns a connected socket; waits while the daemon's queue of connections is full."""
    connection = system.current.open_socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # connect(2) on a unix socket waits for the queue, for this time; poll(2) cannot.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, _POLL_MS * 1000))
        while True:
            try:
                with unblocked():
                    connection.connect(path)
                return connection
            except BlockingIOError:
                _check(deadline)
    except BaseException:
        connection.close()
        raise


def _check(deadline: Deadline) -> None:
    if not deadline.remaining_s():
        raise TimeoutError(errno.ETIMEDOUT, "the DHCP daemon does not answer")


def _aborted(why: str) -> ConnectionAbortedError:
    return ConnectionAbortedError(errno.ECONNABORTED, why)


def _head_end(data: bytearray) -> int:
    """Returns the length of an HTTP head with its empty line, 0 if it is not complete; raises Malformed."""
    ends = [data.find(end, 0, _HEAD_BYTES) + len(end) for end in _HEAD_ENDS if end in data[:_HEAD_BYTES]]
    if not ends and len(data) >= _HEAD_BYTES:
        raise MalformedGob(f"an HTTP head of more than {_HEAD_BYTES} bytes")
    return min(ends, default=0)


def _args_struct(call_args: CallArgs) -> Struct:
    return Struct(
        {
            "ContainerID": call_args.container_id,
            "Netns": call_args.netns,
            "IfName": call_args.ifname,
            "Args": call_args.args,
            "Path": call_args.path,
            "NetnsOverride": call_args.netns_override,
            "StdinData": call_args.stdin,
        }
    )


def _to_call(request: Struct, value: Struct) -> RpcCall:
    call = RpcCall(request.integer("Seq"), request.text("ServiceMethod"), _call_args(value))
    if call.seq < 0 or len(call.method) > _METHOD_MAX_CHARACTERS:
        raise MalformedGob("a call has a negative number, or the name of its method is too long")
    return call


def _call_args(value: Struct) -> CallArgs:
    return CallArgs(
        container_id=value.text("ContainerID"),
        netns=value.text("Netns"),
        ifname=value.text("IfName"),
        args=value.text("Args"),
        path=value.text("Path"),
        netns_override=value.text("NetnsOverride"),
        stdin=value.data("StdinData"),
    )
