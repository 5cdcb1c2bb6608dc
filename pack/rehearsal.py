"""A pod's life on a stage: every verb run at build time against a kernel made of cardboard.

One rule: nothing outside a temporary directory is touched, and nothing of the play is remembered but practice.

CPython rewrites a function's bytecode after a few calls and caches attribute look-ups; a process that starts with that
done neither spends the time nor copies the pages of the start-up image on which it would be noted. So the image is
dumped after ADD, CHECK and DEL have run some times, with the namespace, netlink and sysctl calls answered from here.
"""

from __future__ import annotations

import errno
import io
import os
import select
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import cni.child
import kernel.address
import kernel.iptables
import kernel.link
import kernel.netns
import kernel.nft
import kernel.route
import kernel.rtnl
import kernel.sysctl
import kernel.teardown
from cni import gojson, skel
from cni.address import Interface, parse_cidr
from cni.child import Outcome
from kernel.codec import AddressMessage, Attributes, LinkMessage, NamespaceMessage, RouteMessage, encode

_TIMES = 20
_NLM_F_MULTI, _NLMSG_ERROR, _NLMSG_DONE = 2, 2, 3  # linux/netlink.h
_NEWCHAIN, _GETCHAIN, _NEWRULE, _GETRULE = 0xA03, 0xA04, 0xA06, 0xA07  # linux/netfilter/nf_tables.h
_HANDLE = b"\x0c\0\x03\0" + bytes(7) + b"\x01"  # NFTA_RULE_HANDLE, which the kernel gives
_HEADER = struct.Struct("=IHHII")
_LO, _BRIDGE, _VETH = 1, 2, 3  # the ifindexes on the stage; both ends of the pair are one
_NAMES = {_LO: "lo", _BRIDGE: "cni0", _VETH: "eth0"}
_ADDRESSES = {
    _LO: ("127.0.0.1/8", "::1/128"),
    _BRIDGE: ("10.1.2.1/24", "fd00:1:2::1/64"),
    _VETH: ("10.1.2.2/24", "fd00:1:2::2/64"),
}
_NETWORK = {
    "cniVersion": "1.1.0",
    "name": "rehearsal",
    "type": "bridge",
    "bridge": "cni0",
    "isDefaultGateway": True,
}
_BACKENDS = ("nftables", "iptables")
_IPAM = {
    "type": "host-local",
    "ranges": [
        [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.2"}],
        [{"subnet": "fd00:1:2::/64", "rangeStart": "fd00:1:2::2", "rangeEnd": "fd00:1:2::2"}],
    ],
}


def rehearse(plugins: Mapping[str, Any]) -> None:
    """Plays the life of a pod with `plugins`; raises RuntimeError when a verb fails that should not."""
    for _ in range(_TIMES):
        for _verb in scenes(plugins):
            pass


def scenes(plugins: Mapping[str, Any]) -> Iterator[str]:
    """Plays the life of a pod once and yields before each verb; raises RuntimeError when one fails."""
    with _stage() as leases:
        network = {**_NETWORK, "ipam": {**_IPAM, "dataDir": leases}}
        for name in ("loopback", "bridge"):
            yield f"{name} ADD"
            result = _play(plugins, name, "ADD", network, leases)
            for verb in ("CHECK", "DEL"):
                yield f"{name} {verb}"
                _play(plugins, name, verb, {**network, "prevResult": result}, leases)
        # One scene for all verbs, so that what only masquerading needs lies apart (layout.py).
        yield "masquerade"
        for backend in _BACKENDS:
            network |= {"ipMasq": True, "ipMasqBackend": backend}
            result = _play(plugins, "bridge", "ADD", network, leases)
            for verb in ("CHECK", "DEL") if backend == "nftables" else ("DEL",):
                _play(plugins, "bridge", verb, {**network, "prevResult": result}, leases)


def _play(plugins: Mapping[str, Any], name: str, command: str, network: Mapping[str, Any], path: str) -> Any:
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "rehearsal",
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": "/proc/self/ns/net",
        "CNI_NETNS_OVERRIDE": "1",
        "CNI_PATH": path,
    }
    stdout = io.BytesIO()
    stdin = io.BytesIO(gojson.dumps(network).encode())
    failed = skel.run(plugins[name], env, stdin, stdout, about="", delegates=plugins)
    with suppress(ChildProcessError):  # what a verb left behind must not practise when the next has begun
        while True:
            os.waitpid(-1, 0)
    if failed:
        raise RuntimeError(f"rehearsal of {command} of {name}: {stdout.getvalue().decode()}")
    return gojson.loads(stdout.getvalue()) if stdout.getvalue() else None


_netfilter: list[tuple[int, bytes]] = []  # the chains and rules made in a scene: type and content of their messages


class _Socket(socket.socket):
    """Answers netlink requests as a kernel with one bridge, one port and the addresses of `_NETWORK` would."""

    def __init__(self, *unused: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._answers = b""

    def setsockopt(self, *unused: int) -> None:  # type: ignore[override]
        """Takes any option."""

    def bind(self, address: object) -> None:
        """Takes any address."""

    def send(self, data: bytes) -> None:  # type: ignore[override]
        """Prepares the answers to a batch of requests."""
        offset = 0
        answers: list[bytes] = []
        while offset < len(data):
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
            answers += _answers(kind, flags, sequence, data[offset : offset + length])
            offset += (length + 3) & ~3
        self._answers = b"".join(answer + bytes(-len(answer) % 4) for answer in answers)

    def recv(self, size: int) -> bytes:  # type: ignore[override]
        """Returns all answers at once."""
        return self._answers


def _answers(kind: int, flags: int, sequence: int, request: bytes) -> Iterator[bytes]:
    dump = flags & kernel.rtnl.NLM_F_DUMP == kernel.rtnl.NLM_F_DUMP
    multi = _NLM_F_MULTI if dump else 0
    if kind == kernel.link.RTM_GETLINK:
        yield _link(request, (kernel.link.RTM_NEWLINK, multi, sequence))
    elif kind == kernel.address.RTM_GETADDR:
        (index,) = struct.unpack_from("=I", request, 20)
        for text in _ADDRESSES.get(index, ()):
            own = parse_cidr(text)
            values = {"family": _family(own), "prefixlen": own.network.prefixlen, "index": index}
            attributes: Attributes = [("IFA_LOCAL", own.ip.packed), ("IFA_ADDRESS", own.ip.packed)]
            yield encode(AddressMessage, (kernel.address.RTM_NEWADDR, multi, sequence), values, attributes)
    elif kind == kernel.route.RTM_GETROUTE:
        values = {"family": request[16], "table": 254, "type": 1}
        yield encode(RouteMessage, (kernel.route.RTM_NEWROUTE, multi, sequence), values, [("RTA_OIF", _VETH)])
    elif kind in (_NEWCHAIN, _NEWRULE):
        _netfilter.append((kind, request[_HEADER.size :]))
    elif kind == _GETRULE:
        for made, content in _netfilter:
            if made == _NEWRULE:
                yield _HEADER.pack(_HEADER.size + len(content) + 12, made, multi, sequence, 0) + content + _HANDLE
    elif kind == _GETCHAIN:
        wanted = request[_HEADER.size :]
        chains = (content for made, content in _netfilter if made == _NEWCHAIN)
        found = next((content for content in chains if content.startswith(wanted)), None)
        answer = struct.pack("=i", -errno.ENOENT) if found is None else found
        header = (_NLMSG_ERROR if found is None else _NEWCHAIN, 0, sequence, 0)
        yield _HEADER.pack(_HEADER.size + len(answer), *header) + answer
    elif kind == kernel.link.RTM_GETNSID:
        yield encode(NamespaceMessage, (kernel.link.RTM_NEWNSID, 0, sequence), {}, [("NETNSA_NSID", 0)])
    if dump or flags & kernel.rtnl.NLM_F_ACK:
        yield _HEADER.pack(20, _NLMSG_DONE if dump else _NLMSG_ERROR, multi, sequence, 0) + bytes(4)


def _link(request: bytes, header: tuple[int, int, int]) -> bytes:
    (index,) = struct.unpack_from("=i", request, 20)
    if not index:
        index = next((number for number, name in _NAMES.items() if name.encode() in request), _VETH)
    kind = {_LO: "", _BRIDGE: "bridge", _VETH: "veth"}[index]
    attributes: Attributes = [
        ("IFLA_ADDRESS", bytes(6) if index == _LO else b"\x02\0\0\0\0\x01"),
        ("IFLA_IFNAME", _NAMES[index]),
        ("IFLA_MTU", 1500),
        ("IFLA_LINK", _VETH),
        ("IFLA_MASTER", _BRIDGE),
        ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind)]}),
        ("IFLA_LINK_NETNSID", 0),
    ]
    return encode(LinkMessage, header, {"index": index, "flags": kernel.link.IFF_UP}, attributes)


def _wait_readable(descriptors: list[int], timeout_s: float) -> list[int]:
    """Comes when there is something to read: whether a child is quicker than our first look must not be practised."""
    select.select(descriptors, [], [])
    return kernel.rtnl.wait_readable(descriptors, timeout_s)


class _Parameter(str):
    """A directory in which every name is the same file: one stands for all kernel parameters."""

    __slots__ = ()

    def __add__(self, name: str) -> str:
        return str(self)


def _family(own: Interface) -> int:
    return socket.AF_INET if own.version == 4 else socket.AF_INET6


@contextmanager
def _stage() -> Iterator[str]:
    """Puts the cardboard in the place of the kernel, and takes it away again; yields a directory for leases."""
    directory = f"/tmp/podwire-{os.urandom(8).hex()}"  # of one length always, so that every build does the same
    props: list[tuple[Any, str, Any]] = [
        (socket, "socket", _Socket),
        (kernel.nft, "_FREED_AFTER_S", 0),
        (kernel.iptables, "_LEGACY_TABLES", dict.fromkeys(kernel.iptables.FAMILIES, f"{directory}/parameter")),
        (kernel.iptables, "_find", lambda family: "/usr/sbin/iptables-restore"),
        # How long a program takes would show in what is practised.
        (cni.child, "run", lambda *commands, **how: [Outcome(0, b"", b"") for _ in commands]),
        (kernel.netns, "setns", lambda descriptor, kind: None),
        (kernel.teardown, "wait_readable", _wait_readable),
        (kernel.sysctl, "_ROOT", _Parameter(f"{directory}/parameter")),
    ]
    real = [(place, name, getattr(place, name)) for place, name, _ in props]
    os.mkdir(directory, 0o700)
    with open(f"{directory}/parameter", "w") as parameter:
        parameter.write("1")
    os.symlink("/proc/self/exe", f"{directory}/host-local")
    for place, name, prop in props:
        setattr(place, name, prop)
    try:
        yield directory
    finally:
        for place, name, thing in real:
            setattr(place, name, thing)
        _netfilter.clear()
        shutil.rmtree(directory)
