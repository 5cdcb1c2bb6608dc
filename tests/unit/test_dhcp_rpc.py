"""The protocol of the DHCP daemon (ipam.dhcp.rpc): recorded calls, any result, and peers that hang or are no daemon."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given

from cni.result import IPConfig, Result, Route
from ipam.dhcp import gob, rpc, rpc_result
from ipam.dhcp.gob import MalformedGob, Struct
from ipam.dhcp.rpc import CallArgs, Connection
from process.values import replace
from tests.support.binaries import ROOT
from tests.support.dhcp import answering_calls
from tests.unit.test_cni_result import RESULTS

LIMIT_S = 60  # of calls that are answered
CONNECT = b"CONNECT /_goRPC_ HTTP/1.0\n\n"
CONNECTED = b"HTTP/1.0 200 Connected to Go RPC\n\n"
# Bytes that the reference's plugin and daemon (1.1.1) sent to each other after CONNECT and its answer: ADD, and DEL.
ALLOCATE = bytes.fromhex(
    "2fff81030101075265717565737401ff82000102010d536572766963654d6574686f64010c000103536571010600000012ff82010d444843"
    "502e416c6c6f63617465005aff8303010107436d644172677301ff84000106010b436f6e7461696e65724944010c0001054e65746e73010c"
    "00010649664e616d65010c00010441726773010c00010450617468010c000109537464696e44617461010a000000ffaeff8401026331010e"
    "2f72756e2f6e65746e732f706f6401046574683001034b3d56010c2f6f70742f636e692f62696e017c7b22636e6956657273696f6e223a20"
    "22312e302e30222c20226e616d65223a20226e6574222c202274797065223a2022627269646765222c20226970616d223a207b2274797065"
    "223a202264686370222c20226461656d6f6e536f636b657450617468223a20222f72756e2f636e692f646863702e736f636b227d7d00"
)
RELEASE = ALLOCATE.replace(b"\x12\xff\x82\1\x0dDHCP.Allocate", b"\x11\xff\x82\1\x0cDHCP.Release")
# A lease with classless static routes (option 121), and its release.
REPLIES = bytes.fromhex(
    "3aff8103010108526573706f6e736501ff82000103010d536572766963654d6574686f64010c00010353657101060001054572726f72010c"
    "00000012ff82010d444843502e416c6c6f636174650051ff8303010106526573756c7401ff84000105010a434e4956657273696f6e010c00"
    "010a496e746572666163657301ff8800010349507301ff8e000106526f7574657301ff92000103444e5301ff9400000024ff87020101155b"
    "5d2a74797065733130302e496e7465726661636501ff880001ff86000029ff85030102ff8600010301044e616d65010c0001034d6163010c"
    "00010753616e64626f78010c00000023ff8d020101145b5d2a74797065733130302e4950436f6e66696701ff8e0001ff8a000033ff890301"
    "02ff8a0001030109496e7465726661636501040001074164647265737301ff8c00010747617465776179010a00000023ff8b030101054950"
    "4e657401ff8c00010201024950010a0001044d61736b010a0000001dff910201010e5b5d2a74797065732e526f75746501ff920001ff9000"
    "001cff8f030102ff90000102010344737401ff8c0001024757010a00000046ff9303010103444e5301ff94000104010b4e616d6573657276"
    "65727301ff96000106446f6d61696e010c00010653656172636801ff960001074f7074696f6e7301ff9600000016ff95020101085b5d7374"
    "72696e6701ff9600010c000048ff8403010201040a1900670104ffffff000001040a1900010001020101040a0900000104ffff0000000104"
    "0a19000700010104000000000104000000000001040a1900010001000013ff82010c444843502e52656c656173650101000aff97030102ff"
    "9800000003ff9800"
)
STDIN = (
    b'{"cniVersion": "1.0.0", "name": "net", "type": "bridge", '
    b'"ipam": {"type": "dhcp", "daemonSocketPath": "/run/cni/dhcp.sock"}}'
)
ARGS = CallArgs("c1", "/run/netns/pod", "eth0", "K=V", "/opt/cni/bin", stdin=STDIN)
LEASE = Result(
    ips=(IPConfig(ip_interface("10.25.0.103/24"), ip_address("10.25.0.1")),),
    routes=(
        Route(ip_interface("10.9.0.0/16"), ip_address("10.25.0.7")),
        Route(ip_interface("0.0.0.0/0"), ip_address("10.25.0.1")),
    ),
)


@pytest.mark.parametrize(("data", "method"), [(ALLOCATE, rpc.ALLOCATE), (RELEASE, rpc.RELEASE)], ids=["ADD", "DEL"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_connection_receives_recorded_calls(data, method, size):
    """The reference's plugin sends CONNECT and a call, in chunks of any size, and gets the answer to CONNECT once."""
    connection = Connection()
    data, sent, calls = CONNECT + data, b"", []
    for start in range(0, len(data), size):
        calls += connection.receive(data[start : start + size])
        sent += connection.data_to_send()
    assert sent == CONNECTED
    assert calls == [rpc.RpcCall(0, method, ARGS)]
    assert connection.http_request is None


@contextmanager
def serving(path, serve):
    """Runs a peer that accepts a connection and calls `serve` with it."""

    def run():
        connection, _ = listening.accept()
        with connection, suppress(BrokenPipeError):
            serve(connection)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            thread.join(30)


@contextmanager
def peer(path, *chunks, hangs=False):
    """Runs a peer that sends these chunks, one after each receipt, and closes the connection or keeps it open."""
    received: list[bytes] = []
    end = threading.Event()

    def serve(connection):
        for chunk in chunks:
            received.append(connection.recv(1 << 20))
            connection.sendall(chunk)
        if hangs:
            end.wait(30)

    with serving(path, serve):
        try:
            yield received
        finally:
            end.set()


@pytest.fixture
def path(tmp_path):
    """The path of a socket."""
    return str(tmp_path / "dhcp.sock")


def test_client_gets_an_answer_in_single_bytes(path):
    """The answer may arrive byte by byte, the first of them together with the greeting."""

    def trickle(connection):
        for byte in CONNECTED + REPLIES:  # the second answer in the recording is not awaited
            connection.sendall(bytes([byte]))

    with serving(path, trickle):
        assert rpc.call(path, rpc.ALLOCATE, ARGS, limit_s=LIMIT_S) == LEASE


def test_methods_of_a_connection_are_answered_in_turn():
    """Several calls of a connection have results, errors and empty results; types are defined once."""
    connection, encoder, decoder = Connection(), gob.Encoder(), gob.Decoder()
    request = gob.StructType("Request", (("ServiceMethod", gob.STRING), ("Seq", gob.UINT)))
    arguments = gob.StructType("CmdArgs", (("Netns", gob.STRING), ("NetnsOverride", gob.STRING)))
    data = CONNECT
    for seq, method in enumerate((rpc.ALLOCATE, rpc.CHECK, rpc.RELEASE, "DHCP.X", rpc.ALLOCATE)):
        data += encoder.encode(request, Struct({"ServiceMethod": method, "Seq": seq}))
        data += encoder.encode(arguments, Struct({"Netns": "/a", "NetnsOverride": "1"}))
    calls = connection.receive(data)
    assert [(call.seq, call.method) for call in calls][2:4] == [(2, "DHCP.Release"), (3, "DHCP.X")]
    assert {call.args for call in calls} == {CallArgs(netns="/a", netns_override="1")}
    answers = [connection.reply(calls[0], LEASE), connection.reply(calls[1], None), connection.reply(calls[2], None)]
    answers += [connection.refuse(calls[3], "rpc: can't find method DHCP.X"), connection.reply(calls[4], LEASE)]
    assert len(answers[4]) < len(answers[0]) / 2
    decoder.feed(b"".join(answers))
    values = list(iter(decoder.decode, None))
    assert len(values) == 10
    assert [values[n].integer("Seq") for n in (0, 2, 4, 6, 8)] == [0, 1, 2, 3, 4]
    assert values[2:6:2] == [
        Struct({"ServiceMethod": "DHCP.Check", "Seq": 1}),
        Struct({"ServiceMethod": "DHCP.Release", "Seq": 2}),
    ]
    assert values[3] == values[5] == values[7] == Struct({})
    assert values[6].text("Error") == "rpc: can't find method DHCP.X"
    assert values[1] == values[9]
    assert rpc_result.from_struct(values[9]) == LEASE


@pytest.mark.parametrize(("kind", "seq", "method"), [(gob.INT, -5, rpc.ALLOCATE), (gob.UINT, 0, "m" * 600_000)])
def test_call_that_cannot_be_answered_is_malformed(kind, seq, method):
    """A negative number, or a name that no answer can contain, ends the connection, not the daemon."""
    encoder, connection = gob.Encoder(), Connection()
    request = gob.StructType("Request", (("ServiceMethod", gob.STRING), ("Seq", kind)))
    call = encoder.encode(request, Struct({"ServiceMethod": method, "Seq": seq}))
    arguments = encoder.encode(rpc._CMD_ARGS, rpc._args_struct(CallArgs()))
    with pytest.raises(MalformedGob, match="negative"):
        connection.receive(CONNECT + call + arguments)


def test_error_is_never_empty():
    """An error without text, which a client would take for success, gets one; a megabyte of text is shortened."""
    assert len(Connection().refuse(rpc.RpcCall(1, rpc.ALLOCATE, ARGS), "x" * (2 << 20))) < 1 << 17
    for text, error in (("", "unknown error"), ("a\ud800", "a?"), ("\udc80", "?")):
        connection, decoder = Connection(), gob.Decoder()
        decoder.feed(connection.refuse(rpc.RpcCall(7, rpc.RELEASE, ARGS), text))
        assert decoder.decode() == Struct({"ServiceMethod": rpc.RELEASE, "Seq": 7, "Error": error})


@pytest.mark.parametrize(
    ("request_line", "where"),
    [("GET /metrics HTTP/1.1", "/metrics"), ("GET /metrics?x=1 HTTP/1.0", "/metrics"), ("GET / HTTP/1.1", "/")],
)
def test_plain_http_requests_are_recognised(request_line, where):
    """A GET request on the socket is reported with its path when its head is complete; nothing else is sent."""
    connection = Connection()
    head = f"{request_line}\r\nHost: x\r\n".encode()
    assert connection.receive(head) == []
    assert connection.http_request is None
    assert connection.receive(b"\r\n") == connection.receive(ALLOCATE) == []
    assert (connection.http_request, connection.data_to_send()) == (where, b"")


@pytest.mark.parametrize(
    "data",
    [
        *(b"POST /metrics HTTP/1.1\r\n\r\n", b"CONNECT / HTTP/1.0\n\n", b"GET /\n\n", b"\n\n", b"x" * 8192),
        *(b"GET / HTTP/1.0\r\n" + b"x: y\r\n" * 2000 + b"\r\n", CONNECT + b"\x80", CONNECT + REPLIES + REPLIES),
    ],
)
def test_connection_refuses_other_protocols(data):
    """Another HTTP request, a long one and bytes that are not gob are Malformed."""
    with pytest.raises(MalformedGob):
        Connection().receive(data)


def test_no_daemon_is_an_error_of_the_system(path):
    """A missing socket and one on which no process listens raise the system's error."""
    with pytest.raises(FileNotFoundError):
        rpc.call(path, rpc.RELEASE, ARGS, limit_s=LIMIT_S)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with pytest.raises(ConnectionRefusedError):
        rpc.call(path, rpc.RELEASE, ARGS, limit_s=LIMIT_S)


@pytest.mark.parametrize(("hangs", "error"), [(True, TimeoutError), (False, ConnectionAbortedError)])
@pytest.mark.parametrize("chunks", [(), (CONNECTED[:9],), (CONNECTED, b""), (CONNECTED, REPLIES[:99])])
def test_daemon_that_does_not_answer_is_left_in_time(path, chunks, hangs, error):
    """A daemon that hangs or ends before its answer is complete raises TimeoutError or ConnectionAbortedError."""
    with peer(path, *chunks, hangs=hangs), pytest.raises(error):
        rpc.call(path, rpc.RELEASE, ARGS, limit_s=0.3 if hangs else LIMIT_S)


def test_full_queue_of_the_daemon_is_left_in_time(path):
    """A daemon that accepts no connection and whose queue is full raises TimeoutError, and an accepting one answers."""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(path)
        listening.listen(0)
        first.connect(path)
        with pytest.raises(TimeoutError):
            rpc.call(path, rpc.RELEASE, ARGS, limit_s=0.3)

        def accept() -> None:
            for _ in range(2):
                listening.accept()[0].close()

        thread = threading.Timer(0.3, accept)
        thread.start()
        with pytest.raises(ConnectionAbortedError):
            rpc.call(path, rpc.RELEASE, ARGS, limit_s=LIMIT_S)
        thread.join(10)


@pytest.mark.parametrize(
    "chunks",
    [
        *((b"HTTP/1.1 404 Not Found\r\n\r\n",), (b"SSH-2.0-OpenSSH\n\n",), (b"x" * 8192,), (CONNECTED, b"\x80")),
        (CONNECTED, Connection().reply(rpc.RpcCall(1, rpc.ALLOCATE, ARGS), LEASE)),
    ],
)
def test_other_programs_on_the_socket_are_refused(path, chunks):
    """An answer of another protocol, or to another call, is Malformed."""
    with peer(path, *chunks), pytest.raises(MalformedGob):
        rpc.call(path, rpc.ALLOCATE, ARGS, limit_s=LIMIT_S)


def test_large_stdin_is_sent_whole(path):
    """An argument larger than the socket's buffer arrives whole."""
    args = CallArgs("c1", stdin=os.urandom(1_000_000))
    with answering_calls(path, lambda server, call: server.reply(call, None)) as calls:
        assert rpc.call(path, rpc.CHECK, args, limit_s=LIMIT_S) == Result()
    assert calls == [rpc.RpcCall(0, rpc.CHECK, args)]


def test_sigterm_ends_the_wait(path):
    """SIGTERM, blocked during a verb, ends the wait for the daemon at once."""
    code = f"""
from ipam.dhcp import rpc
from process import signals
signals.block()
try:
    rpc.call({path!r}, rpc.RELEASE, rpc.CallArgs(), limit_s=60)
except signals.Terminated:
    print("terminated")
"""
    with peer(path, CONNECTED, b"", hangs=True) as received:
        client = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        while len(received) < 2:
            time.sleep(0.01)
        client.send_signal(signal.SIGTERM)
        assert client.communicate(timeout=30)[0] == "terminated\n"


def for_go(result: Result) -> Result:
    """Returns a result without what Go's type has not: zeros of pointers, negative indexes."""
    ips = tuple(replace(ip, interface=max(ip.interface or 0, 0) or None) for ip in result.ips)
    routes = tuple(replace(route, table=route.table or None, scope=route.scope or None) for route in result.routes)
    return replace(result, ips=ips, routes=routes)


@given(RESULTS.map(for_go))
def test_any_result_survives_a_reply(result):
    """Every field of a result arrives as it was sent."""
    decoder = gob.Decoder()
    decoder.feed(Connection().reply(rpc.RpcCall(0, rpc.ALLOCATE, CallArgs()), result))
    assert decoder.decode() == Struct({"ServiceMethod": rpc.ALLOCATE})
    value = decoder.decode()
    assert value
    assert rpc_result.from_struct(value) == result


def net(address: bytes, mask: bytes) -> Struct:
    return Struct({"IPs": [Struct({"Address": Struct({"IP": address, "Mask": mask})})]})


MAPPED = bytes(10) + b"\xff\xff\x0a\x01\x02\x05"


@pytest.mark.parametrize("mask", [b"\xff\xff\xff\0", b"\xff" * 15 + b"\0"])
@pytest.mark.parametrize("address", [MAPPED[12:], MAPPED])
def test_ipv4_in_16_bytes_is_ipv4(address, mask):
    """Go stores an IPv4 address and its mask in 4 or in 16 bytes."""
    assert rpc_result.from_struct(net(address, mask)).ips == (IPConfig(ip_interface("10.1.2.5/24")),)


@pytest.mark.parametrize(
    "value",
    [
        *(net(b"\1\2\3\4", mask) for mask in (b"", b"\xff\0\xff\0", b"\0\0\0\1", b"\xff" * 5, b"\0" * 16)),
        net(b"\1\2\3\4", b"\0" + b"\xff" * 15),
        *(net(address, b"\xff" * 4) for address in (bytes(15) + b"\1", b"\1\2\3", b"")),
        *(Struct({"IPs": [Struct({})]}), Struct({"IPs": b"abc"})),
        Struct({"Routes": [Struct({**net(b"\1\2\3\4", b"\xff" * 4).structs("IPs")[0].fields})]}),
        Struct({"Interfaces": [Struct({"Mtu": -1})]}),
    ],
)
def test_malformed_results_are_refused(value):
    """A result with an address, mask or number that is none is Malformed."""
    with pytest.raises(MalformedGob):
        rpc_result.from_struct(value)
