"""The warm-up: every verb runs at build time, several times, against a pretend kernel.

One rule: only a temporary directory is touched, and no state stays in the image but specialised bytecode.

CPython specialises bytecode after a few calls and caches attribute look-ups. A process that starts from a warm image
spends no time on that and copies no memory pages for it. Namespace, netlink and sysctl calls are answered here.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import kernel.address
import kernel.link
import kernel.link_deletion
import kernel.netfilter.iptables
import kernel.netfilter.iptables_direct
import kernel.netfilter.nft
import kernel.netns
import kernel.route
import kernel.rtnl
import kernel.sysctl
import kernel.traffic
import process.child
from cni import gojson, skel
from cni.address import Interface, parse_cidr
from kernel.codec import AddressMessage, LinkMessage, NamespaceMessage, RouteMessage
from kernel.codec_netfilter import GenerationMessage
from kernel.wire import Attributes, encode
from process.child import Command, Outcome

_TIMES = 20
_NLM_F_MULTI, _NLMSG_ERROR, _NLMSG_DONE = 2, 2, 3  # linux/netlink.h
# linux/netfilter/nf_tables.h
_NEWCHAIN, _GETCHAIN, _DELCHAIN, _NEWRULE, _GETRULE, _DELRULE = 0xA03, 0xA04, 0xA05, 0xA06, 0xA07, 0xA08
_NEWSET, _GETSET, _NEWSETELEM, _GETSETELEM, _DELSETELEM = 0xA09, 0xA0A, 0xA0C, 0xA0D, 0xA0E
_NEWGEN, _GETGEN = 0xA0F, 0xA10
_TRAFFIC = {
    kind: kinds
    for kinds in (
        (kernel.traffic.RTM_NEWQDISC, kernel.traffic.RTM_DELQDISC, kernel.traffic.RTM_GETQDISC),
        (kernel.traffic.RTM_NEWTFILTER, kernel.traffic.RTM_DELTFILTER, kernel.traffic.RTM_GETTFILTER),
    )
    for kind in kinds
}
_HANDLE = struct.Struct(">4sQ")  # NFTA_RULE_HANDLE, which the kernel gives
_HANDLE_START = b"\x0c\0\x03\0"
_NAME_START = struct.Struct("=HH")  # of a chain's name in its rules, and in those that jump to it: both of type 2
_ELEMENTS_START = b"\x03\x80"  # NFTA_SET_ELEM_LIST_ELEMENTS, nested, behind its length
_USE = struct.Struct("=HH4s")  # NFTA_CHAIN_USE, of type 6
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
    "name": "warm-up",
    "type": "bridge",
    "bridge": "cni0",
    "isDefaultGateway": True,
}
_BACKENDS = ("nftables", "iptables")
_PORTS = [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
]
_LIMITS = {
    "runtimeConfig": {
        "bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}
    }
}
_IFB, _IFB_INDEX, _MAC = b"bwp", 1_000_000_003, b"\x02\0\0\0\0\x01"
_IPAM = {
    "type": "host-local",
    "ranges": [
        [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.2"}],
        [{"subnet": "fd00:1:2::/64", "rangeStart": "fd00:1:2::2", "rangeEnd": "fd00:1:2::2"}],
    ],
}


def warm_up(plugins: Mapping[str, Any]) -> None:
    """Runs all scenarios several times; raises RuntimeError when a verb fails."""
    for _ in range(_TIMES):
        list(scenarios(plugins))


def scenarios(plugins: Mapping[str, Any]) -> Iterator[str]:
    """Runs the verbs of a pod's life once and yields the name of each scenario before it; raises RuntimeError."""
    with _pretend_kernel() as leases:
        network = {**_NETWORK, "ipam": {**_IPAM, "dataDir": leases}}
        for name in ("loopback", "bridge"):
            yield f"{name} ADD"
            result = _run_verb(plugins, name, "ADD", network, leases)
            for verb in ("CHECK", "DEL"):
                yield f"{name} {verb}"
                _run_verb(plugins, name, verb, {**network, "prevResult": result}, leases)
        for backend in _BACKENDS:
            yield f"masquerade, {backend}"
            network |= {"ipMasq": True, "ipMasqBackend": backend}
            result = _run_verb(plugins, "bridge", "ADD", network, leases)
            for verb in ("CHECK", "DEL"):
                _run_verb(plugins, "bridge", verb, {**network, "prevResult": result}, leases)
            yield f"portmap, {backend}"
            ports = {"backend": backend, "runtimeConfig": {"portMappings": _PORTS}, "prevResult": result}
            # Twice: the second container finds the shared chains, as most containers do.
            for verb in ("ADD", "CHECK", "DEL") * 2:
                _run_verb(plugins, "portmap", verb, {**_NETWORK, "type": "portmap", **ports}, leases)
            yield f"firewall, {backend}"
            open_host = {**_NETWORK, "type": "firewall", "backend": backend, "prevResult": result}
            for verb in ("ADD", "CHECK", "DEL") * 2:
                _run_verb(plugins, "firewall", verb, open_host, leases)
            yield f"ptp, {backend}"
            routed = {**network, "type": "ptp"}
            result = _run_verb(plugins, "ptp", "ADD", routed, leases)
            _run_verb(plugins, "ptp", "DEL", {**routed, "prevResult": result}, leases)
        tuned = {"mtu": 1500, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "dataDir": f"{leases}/tuning"}
        for name, keys in (("bandwidth", _LIMITS), ("tuning", {}), ("tuning", tuned)):
            yield name
            for verb in ("ADD", "CHECK", "DEL"):
                _run_verb(plugins, name, verb, {**_NETWORK, "type": name, **keys, "prevResult": result}, leases)
        _created.clear()  # a child has deleted the ifb


def _run_verb(plugins: Mapping[str, Any], name: str, command: str, network: Mapping[str, Any], path: str) -> Any:
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "warm-up",
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": "/proc/self/ns/net",
        "CNI_NETNS_OVERRIDE": "1",
        "CNI_PATH": path,
    }
    stdout = io.BytesIO()
    stdin = io.BytesIO(gojson.dumps(network).encode())
    failed = skel.run(plugins[name], env, stdin, stdout, about="", delegates=plugins)
    with suppress(ChildProcessError):  # a verb's background process ends before the next verb begins
        while os.waitpid(-1, 0):
            pass
    if failed:
        raise RuntimeError(f"warm-up: {command} of {name}: {stdout.getvalue().decode()}")
    return gojson.loads(stdout.getvalue()) if stdout.getvalue() else None


# The chains and rules made in a scenario, by handle: type and content of their messages.
_netfilter: dict[int, tuple[int, bytes]] = {}
_handles = itertools.count(1)
# What traffic control has, and the ifb, by its kind and place: the content of the message.
_created: dict[tuple[int, bytes], bytes] = {}


class _Socket(socket.socket):
    """Answers netlink requests as a kernel with one bridge, one port and the addresses of `_NETWORK` would."""

    def __init__(self, *unused: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._answers = b""

    def setsockopt(self, *unused: int) -> None:  # type: ignore[override]
        """Takes any option."""

    def bind(self, address: object) -> None:
        """Takes any address, and has news for subscribers: that all is gone which may have been deleted."""
        super().bind(b"")
        self.sendto(b"news", self.getsockname())
        header = kernel.link.RTM_DELLINK, 0, 0
        self._answers = b"".join(encode(LinkMessage, header, {"index": index}, []) for index in (_VETH, _IFB_INDEX))

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
        yield _ifb(request, sequence) or _link(request, (kernel.link.RTM_NEWLINK, multi, sequence))
    elif kind == kernel.link.RTM_NEWLINK and b"ifb\0" in request:
        _created[kind, _IFB] = request[_HEADER.size :]
    elif kind in _TRAFFIC:
        yield from _traffic(kind, (multi, sequence, 0), request[_HEADER.size :])
    elif kind == kernel.address.RTM_GETADDR:
        (index,) = struct.unpack_from("=I", request, 20)
        for text in _ADDRESSES.get(index, ()):
            cidr = parse_cidr(text)
            values = {"family": _family(cidr), "prefixlen": cidr.network.prefixlen, "index": index}
            attributes: Attributes = [("IFA_LOCAL", cidr.ip.packed), ("IFA_ADDRESS", cidr.ip.packed)]
            yield encode(AddressMessage, (kernel.address.RTM_NEWADDR, multi, sequence), values, attributes)
    elif kind == kernel.route.RTM_GETROUTE:
        values = {"family": request[16], "table": 254, "type": 1}
        yield encode(RouteMessage, (kernel.route.RTM_NEWROUTE, multi, sequence), values, [("RTA_OIF", _VETH)])
    elif kind >> 8 == _NEWCHAIN >> 8:
        yield from _nftables(kind, (multi, sequence, 0), request[_HEADER.size :])
    elif kind == kernel.link.RTM_GETNSID:
        yield encode(NamespaceMessage, (kernel.link.RTM_NEWNSID, 0, sequence), {}, [("NETNSA_NSID", 0)])
    if dump or flags & kernel.rtnl.NLM_F_ACK:
        yield _HEADER.pack(20, _NLMSG_DONE if dump else _NLMSG_ERROR, multi, sequence, 0) + bytes(4)


def _traffic(kind: int, header: tuple[int, int, int], content: bytes) -> Iterator[bytes]:
    """Keeps what is made and shows it again; a place is an interface and a parent, or an ifb."""
    making, deleting, _ = _TRAFFIC[kind]
    place = making, content[4:8] + content[12:16]
    if kind == making:
        _created[place] = content
    elif kind == deleting:
        _created.pop(place, None)
    elif place in _created:
        yield _HEADER.pack(_HEADER.size + len(_created[place]), making, *header) + _created[place]
    elif not header[0]:
        yield _HEADER.pack(_HEADER.size + 4, _NLMSG_ERROR, *header) + struct.pack("=i", -errno.ENOENT)


def _nftables(kind: int, header: tuple[int, int, int], content: bytes) -> Iterator[bytes]:
    if kind in (_NEWCHAIN, _NEWRULE, _NEWSET, _NEWSETELEM):
        _make(kind, content)
    elif kind == _GETGEN:
        yield encode(GenerationMessage, (_NEWGEN, 0, header[1]), {}, [("NFTA_GEN_ID", 1)])
    elif kind == _DELSETELEM:  # there is one pod: all of the set
        named = content[: content.rindex(_ELEMENTS_START)]
        for number in [number for number, message in _netfilter.items() if message[1].startswith(named)]:
            _netfilter.pop(number)
    elif kind == _GETSETELEM:
        for stored_kind, stored in _netfilter.values():
            if stored_kind == _NEWSETELEM and stored.startswith(content):
                yield _HEADER.pack(_HEADER.size + len(stored), stored_kind, *header) + stored
    elif kind == _GETSET:
        existing = _first_stored(_NEWSET, content)
        answer = existing or struct.pack("=i", -errno.ENOENT)
        yield _HEADER.pack(_HEADER.size + len(answer), _NEWSET if existing else _NLMSG_ERROR, *header) + answer
    elif kind in (_DELCHAIN, _DELRULE):
        start, handle = _HANDLE.unpack(content[-_HANDLE.size :]) if len(content) > _HANDLE.size else (b"", 0)
        one = [handle] if start == _HANDLE_START else None
        for number in one or [number for number, message in _netfilter.items() if message[1].startswith(content)]:
            _netfilter.pop(number, None)
    elif kind == _GETRULE:
        for number, (stored_kind, stored) in _netfilter.items():
            if stored_kind == _NEWRULE and stored.startswith(content):
                answer = stored + _HANDLE.pack(_HANDLE_START, number)
                yield _HEADER.pack(_HEADER.size + len(answer), stored_kind, *header) + answer
    elif kind == _GETCHAIN:
        existing = _first_stored(_NEWCHAIN, content)
        answer = existing + _uses(content) if existing else struct.pack("=i", -errno.ENOENT)
        yield _HEADER.pack(_HEADER.size + len(answer), _NEWCHAIN if existing else _NLMSG_ERROR, *header) + answer


def _first_stored(kind: int, start: bytes) -> bytes:
    """Returns the first stored message of a kind that begins so, b"" for none."""
    return next(
        (stored for stored_kind, stored in _netfilter.values() if stored_kind == kind and stored.startswith(start)), b""
    )


def _make(kind: int, content: bytes) -> None:
    if kind == _NEWRULE or not any(stored.startswith(content) for _, stored in _netfilter.values()):
        _netfilter[next(_handles)] = kind, content


def _uses(chain: bytes) -> bytes:
    """Returns how many rules a chain has and rules that lead to it, as the kernel says it."""
    name = chain.rstrip(b"\0").rpartition(b"\0")[2] + b"\0"
    mark = _NAME_START.pack(_NAME_START.size + len(name), 2) + name
    rules = [rule for kind, rule in _netfilter.values() if kind == _NEWRULE and rule[0] == chain[0]]
    return _USE.pack(_USE.size, 6, sum(mark in rule for rule in rules).to_bytes(4, "big"))


def _restore(*commands: Command, **unused: object) -> list[Outcome]:
    """Stands for iptables' programs, which are run where netlink is not understood: never here."""
    raise RuntimeError(f"the warm-up ran {' '.join(commands[0].argv)}: {commands[0].stdin.decode()}")


def _build() -> None:
    """Creates the chains of iptables-nft that the host's first pod finds."""
    for family in kernel.netfilter.nft.NFPROTO.values():
        for (table, name), hook in kernel.netfilter.iptables_direct._BUILT_IN.items():
            chain = kernel.netfilter.nft.Chain(kernel.netfilter.nft.Table(family, table), name, hook)
            _make(_NEWCHAIN, kernel.netfilter.nft.chain_request(chain).encode(0)[_HEADER.size :])


def _link(request: bytes, header: tuple[int, int, int]) -> bytes:
    (index,) = struct.unpack_from("=i", request, 20)
    if not index:
        index = next((number for number, name in _NAMES.items() if name.encode() in request), _VETH)
    kind = {_LO: "", _BRIDGE: "bridge", _VETH: "veth"}[index]
    attributes: Attributes = [
        ("IFLA_ADDRESS", bytes(6) if index == _LO else _MAC),
        ("IFLA_IFNAME", _NAMES[index]),
        ("IFLA_MTU", 1500),
        ("IFLA_LINK", _VETH),
        ("IFLA_MASTER", _BRIDGE),
        ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind)]}),
        ("IFLA_LINK_NETNSID", 0),
    ]
    return encode(LinkMessage, header, {"index": index, "flags": kernel.link.IFF_UP}, attributes)


def _ifb(request: bytes, sequence: int) -> bytes:
    """Returns the ifb, or that there is none; nothing for a request that asks for another interface."""
    (index,) = struct.unpack_from("=i", request, 20)
    if index <= _VETH and _IFB not in request:
        return b""
    existing = _created.get((kernel.link.RTM_NEWLINK, _IFB))
    answer, kind = (existing, kernel.link.RTM_NEWLINK) if existing else (struct.pack("=i", -errno.ENODEV), _NLMSG_ERROR)
    return _HEADER.pack(_HEADER.size + len(answer), kind, 0, sequence, 0) + answer


class _Parameter(str):
    """A directory in which every name is the same file: one stands for all kernel parameters."""

    __slots__ = ()

    def __add__(self, name: str) -> str:
        return str(self)


def _family(cidr: Interface) -> int:
    return socket.AF_INET if cidr.version == 4 else socket.AF_INET6


@contextmanager
def _pretend_kernel() -> Iterator[str]:
    """Replaces the kernel with the pretend one, and takes it away again; yields a directory for leases."""
    # Known by a number: its own name differs in every build, and Python keeps names, sorted by their hash.
    stage = f"/tmp/podwire-{os.urandom(8).hex()}"
    os.mkdir(stage, 0o700)
    descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    directory = f"/proc/self/fd/{descriptor}/leases"
    props: list[tuple[Any, str, Any]] = [
        (socket, "socket", _Socket),
        (
            kernel.netfilter.iptables,
            "_LEGACY_TABLES",
            dict.fromkeys(kernel.netfilter.iptables.FAMILIES, f"{directory}/parameter"),
        ),
        (
            kernel.netfilter.iptables,
            "_installed",
            {name: f"/sbin/{name}" for name in ("iptables-restore", "ip6tables-restore")}.__getitem__,
        ),
        (kernel.netfilter.iptables_direct, "is_nft", bool),
        (process.child, "run", _restore),
        (kernel.link, "random_mac", lambda: _MAC),
        (kernel.netns, "setns", lambda descriptor, kind: None),
        (kernel.link_deletion, "send_in_background", lambda socket, request, report: 0),
        (kernel.netfilter.nft, "close_in_background", lambda socket, ended, microseconds: 0),
        (kernel.sysctl, "_ROOT", _Parameter(f"{directory}/parameter")),
    ]
    real = [(place, name, getattr(place, name)) for place, name, _ in props]
    os.mkdir(directory, 0o700)
    with open(f"{directory}/parameter", "w") as parameter:
        parameter.write("1")
    os.symlink("/proc/self/exe", f"{directory}/host-local")
    for place, name, prop in props:
        setattr(place, name, prop)
    _build()
    try:
        yield directory
    finally:
        for place, name, thing in real:
            setattr(place, name, thing)
        _netfilter.clear()
        os.close(descriptor)
        shutil.rmtree(stage)
