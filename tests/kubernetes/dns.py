"""A stand-in for the DNS server of a cluster: it answers by UDP and TCP.

One rule: nothing is cached. A query has one question, whose name is not compressed.

    python -m tests.kubernetes.dns URL CA TOKEN_FILE ADDRESS...
"""

import socket
import struct
import sys
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from socketserver import BaseRequestHandler, StreamRequestHandler, ThreadingTCPServer, ThreadingUDPServer

from agent.api_server import Server
from agent.kubernetes import ApiClient
from tests.kubernetes.dns_records import AAAA, CNAME, SRV, A, Names, Record

_NXDOMAIN, _TTL_S = 3, 5
_FLAGS = 0x8180  # response, recursion desired and available


def _encoded(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def _data(record: Record) -> bytes:
    if record.kind in (A, AAAA):
        return ip_address(record.value).packed
    if record.kind == SRV:
        port, target = record.value
        return struct.pack("!HHH", 0, 100, port) + _encoded(target)
    return _encoded(record.value)


def answer(names: Names, query: bytes) -> bytes:
    """Returns the reply to a query of one question."""
    end, labels = 12, []
    while length := query[end]:
        labels.append(query[end + 1 : end + 1 + length].decode(errors="replace").lower())
        end += 1 + length
    (kind,) = struct.unpack_from("!H", query, end + 1)
    records = names.records(".".join(labels))
    chosen = [record for record in records or () if record.kind in (kind, CNAME) and not record.name]
    extra = [record for record in records or () if record.name and kind == SRV]
    header = struct.pack("!HHHHH", _FLAGS | (_NXDOMAIN if records is None else 0), 1, len(chosen), 0, len(extra))
    body = b""
    for record in (*chosen, *extra):
        data = _data(record)
        owner = _encoded(record.name) if record.name else b"\xc0\x0c"
        body += owner + struct.pack("!HHIH", record.kind, 1, _TTL_S, len(data)) + data
    return query[:2] + header + query[12 : end + 5] + body


def serve(names: Names, addresses: Sequence[str]) -> None:
    """Answers questions at port 53 of addresses, until the process is killed."""

    class Udp(BaseRequestHandler):
        def handle(self) -> None:
            query, sock = self.request
            sock.sendto(answer(names, query), self.client_address)

    class Tcp(StreamRequestHandler):
        def handle(self) -> None:
            while len(size := self.rfile.read(2)) == 2:
                reply = answer(names, self.rfile.read(int.from_bytes(size, "big")))
                self.wfile.write(len(reply).to_bytes(2, "big") + reply)

    for server, handler in ((ThreadingUDPServer, Udp), (ThreadingTCPServer, Tcp)):
        for address in addresses:
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            settings = {"address_family": kind, "request_queue_size": 128}
            listening = type("Listening", (server,), settings)((address, 53), handler)
            threading.Thread(target=listening.serve_forever).start()


def main(url: str, ca: str, token_file: str, *addresses: str) -> None:
    """Serves the names of the cluster of an API server."""
    serve(Names(ApiClient(Server(url, Path(ca)), Path(token_file)), addresses), addresses)


if __name__ == "__main__":
    main(*sys.argv[1:])
