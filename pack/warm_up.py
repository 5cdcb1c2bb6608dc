"""The warm-up: every verb runs at build time, several times, against a fake kernel.

One rule: the warm-up writes only to a temporary directory, and leaves only specialised bytecode in the image.

CPython specialises bytecode after a few calls and caches attribute look-ups. A process that starts from a warm image
spends no time on that and copies no memory pages for it. This module replaces namespace, netlink and sysctl calls.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import ipam.dhcp.rpc
import kernel.address
import kernel.link
import kernel.link_deletion
import kernel.netfilter.iptables
import kernel.netfilter.iptables_program
import kernel.netfilter.nft
import kernel.netns
import kernel.rtnl
import kernel.sysctl
import kernel.tap
import kernel.traffic
import process.child
from cni import gojson, skel
from cni.address import Cidr, parse_cidr
from kernel.codec import AddressMessage, LinkMessage, NamespaceMessage
from kernel.wire import Attributes, encode
from pack import fake_child, fake_device, fake_dhcp, fake_grants, fake_nftables, fake_routing, fake_vrf
from process.child import Command, Outcome

_TIMES = 20
_NLM_F_MULTI, _NLMSG_ERROR, _NLMSG_DONE = 2, 2, 3  # linux/netlink.h
_TRAFFIC = {
    kind: kinds
    for kinds in (
        (kernel.traffic.RTM_NEWQDISC, kernel.traffic.RTM_DELQDISC, kernel.traffic.RTM_GETQDISC),
        (kernel.traffic.RTM_NEWTFILTER, kernel.traffic.RTM_DELTFILTER, kernel.traffic.RTM_GETTFILTER),
    )
    for kind in kinds
}
_HEADER, _INT = struct.Struct("=IHHII"), struct.Struct("=i")
# A file of procfs, as old kernels have for namespaces, that only this process opens: sbr and vrf lock it, and a build
# that waited for a lock would have another layout.
_NETNS = "/proc/self/status"
_LO, _BRIDGE, _VETH = 1, 2, 3  # the fake kernel's ifindexes; both ends of the veth pair are one link
_NAMES = {_LO: "lo", _BRIDGE: "cni0", _VETH: "eth0"}
_ADDRESSES = {
    _LO: ("127.0.0.1/8", "::1/128"),
    _BRIDGE: ("10.1.2.1/24", "fd00:1:2::1/64"),
    _VETH: ("10.1.2.2/24", "fd00:1:2::2/64"),
    fake_child.INDEX: ("10.1.2.2/24", "fd00:1:2::2/64"),
    fake_device.INDEX: ("10.1.2.2/24", "fd00:1:2::2/64"),
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
_DELETED = (_VETH, fake_child.INDEX, _IFB_INDEX)  # links that a verb deletes in the background
_SINGLE_LINKS: dict[str, dict[str, Any]] = {  # plugins whose interface is a single link in the container
    "dummy": {},
    "host-device": {"device": fake_device.ON_HOST},
    "ipvlan": {"master": "cni0"},
    "macvlan": {"master": "cni0"},
    "tap": {"mtu": 1500, "bridge": ""},
    "vlan": {"master": "cni0", "vlanId": 5},
}
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
    """Runs the verbs of a pod once and yields the name of each scenario before it; raises RuntimeError."""
    with _fake_kernel() as leases:
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
            opened = {**_NETWORK, "type": "firewall", "backend": backend, "prevResult": result}
            for verb in ("ADD", "CHECK", "DEL") * 2:
                _run_verb(plugins, "firewall", verb, opened, leases)
            yield f"ptp, {backend}"
            result = _run_verb(plugins, "ptp", "ADD", {**network, "type": "ptp"}, leases)
            _run_verb(plugins, "ptp", "DEL", {**network, "type": "ptp", "prevResult": result}, leases)
        for name, keys in _SINGLE_LINKS.items():
            yield name
            _run_child_verbs(plugins, {**network, "type": name, "dataDir": f"{leases}/devices", **keys}, leases)
        tuned = {"mtu": 1500, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "dataDir": f"{leases}/tuning"}
        chained: Any = ("bandwidth", _LIMITS), ("sbr", {}), ("tuning", {}), ("tuning", tuned), ("vrf", fake_vrf.CONF)
        for name, keys in chained:
            yield name
            for verb in ("ADD", "CHECK", "DEL"):
                _run_verb(plugins, name, verb, {**_NETWORK, "type": name, **keys, "prevResult": result}, leases)
        _created.clear()  # a background process deletes the ifb
        for name, run in (("dhcp", _run_dhcp), ("pool", _run_pool)):
            yield name
            run(plugins, leases)


def _run_dhcp(plugins: Mapping[str, Any], path: str) -> None:
    """Runs the verbs of dhcp with a daemon in this process."""
    network = {**_NETWORK, "type": "dhcp", "ipam": {"type": "dhcp", "dataDir": f"{path}/dhcp", **fake_dhcp.KEYS}}
    for verb in ("ADD", "CHECK", "DEL"):
        _run_verb(plugins, "dhcp", verb, network, path)


def _run_pool(plugins: Mapping[str, Any], path: str) -> None:
    """Runs the verbs of host-local with a pool, whose blocks are in a grants file as the agent writes it."""
    network = {**_NETWORK, "name": "pool", "ipam": {"type": "host-local", "pool": "default", "dataDir": path}}
    fake_grants.write(path, "pool")
    for verb in ("ADD", "CHECK", "DEL"):
        _run_verb(plugins, "host-local", verb, network, path)


def _run_child_verbs(plugins: Mapping[str, Any], network: Mapping[str, Any], path: str) -> None:
    """Runs the verbs of a plugin whose interface is on top of another link, or moved."""
    ifname = fake_device.IN_SANDBOX if network["type"] == "host-device" else fake_child.NAME
    result = _run_verb(plugins, network["type"], "ADD", network, path, ifname)
    for verb in ("CHECK", "DEL"):
        _run_verb(plugins, network["type"], verb, {**network, "prevResult": result}, path, ifname)
    fake_child.clear()  # a background process deletes the interface


def _run_verb(
    plugins: Mapping[str, Any], name: str, command: str, network: Mapping[str, Any], path: str, ifname: str = "eth0"
) -> Any:
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "warm-up",
        "CNI_IFNAME": ifname,
        "CNI_NETNS": _NETNS,
        "CNI_PATH": path,
    }
    stdout = io.BytesIO()
    reading_end, writing_end = os.pipe()
    with open(writing_end, "wb") as runtime:
        runtime.write(gojson.dumps(network).encode())
    with open(reading_end, "rb", buffering=0) as stdin:
        failed = skel.run(plugins[name], env, stdin, stdout, about="", delegates=plugins)
    with suppress(ChildProcessError):  # a verb's background process ends before the next verb begins
        while os.waitpid(-1, 0):
            pass
    if failed:
        raise RuntimeError(f"warm-up: {command} of {name}: {stdout.getvalue().decode()}")
    return gojson.loads(stdout.getvalue()) if stdout.getvalue() else None


# The objects of traffic control and the ifb, by kind and position: the content of their messages.
_created: dict[tuple[int, bytes], bytes] = {}


class _Socket(socket.socket):
    """Answers netlink requests like a kernel with one bridge, one port and the addresses of `_NETWORK`."""

    def __init__(self, *unused: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._answers = b""

    def setsockopt(self, *unused: int) -> None:  # type: ignore[override]
        """Accepts any option."""

    def bind(self, address: object) -> None:
        """Accepts any address, and notifies subscribers that the links which a verb may delete are deleted."""
        super().bind(b"")
        self.sendto(b"notification", self.getsockname())
        header = kernel.link.RTM_DELLINK, 0, 0
        self._answers = b"".join(encode(LinkMessage, header, {"index": index}, []) for index in _DELETED)

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
    fake_vrf.update(kind, flags, request)
    if fake_device.is_meant(kind, request[_HEADER.size :]):
        yield from fake_device.answers(kind, (multi, sequence, 0), request[_HEADER.size :], _MAC)
    elif kind == kernel.link.RTM_GETLINK:
        child = b"".join(fake_child.answers(kind, flags, sequence, request))
        other = child or fake_vrf.answer(request, sequence) or _ifb(request, sequence)
        yield other or _link(request, (kernel.link.RTM_NEWLINK, multi, sequence))
    elif kind == kernel.link.RTM_NEWLINK and b"ifb\0" in request:
        _created[kind, _IFB] = request[_HEADER.size :]
    elif kind == kernel.link.RTM_NEWLINK:
        yield from fake_child.answers(kind, flags, sequence, request)
    elif kind in _TRAFFIC:
        yield from _traffic(kind, (multi, sequence, 0), request[_HEADER.size :])
    elif kind == kernel.address.RTM_GETADDR:
        (index,) = _INT.unpack_from(request, 20)
        for text in _ADDRESSES.get(index, ()):
            cidr = parse_cidr(text)
            values = {"family": _family(cidr), "prefixlen": cidr.network.prefixlen, "index": index}
            attributes: Attributes = [("IFA_LOCAL", cidr.ip.packed), ("IFA_ADDRESS", cidr.ip.packed)]
            yield encode(AddressMessage, (kernel.address.RTM_NEWADDR, multi, sequence), values, attributes)
    elif kind in fake_routing.KINDS:
        yield from fake_routing.answers(kind, (multi, sequence, 0), request[_HEADER.size :], _VETH)
    elif fake_nftables.is_request(kind):
        yield from fake_nftables.answers(kind, (multi, sequence, 0), request[_HEADER.size :])
    elif kind == kernel.link.RTM_GETNSID:
        yield encode(NamespaceMessage, (kernel.link.RTM_NEWNSID, 0, sequence), {}, [("NETNSA_NSID", 0)])
    if dump or flags & kernel.rtnl.NLM_F_ACK:
        yield _HEADER.pack(20, _NLMSG_DONE if dump else _NLMSG_ERROR, multi, sequence, 0) + bytes(4)


def _traffic(kind: int, header: tuple[int, int, int], content: bytes) -> Iterator[bytes]:
    """Stores, deletes and lists objects of traffic control; a position is an interface and a parent."""
    create, delete, _ = _TRAFFIC[kind]
    position = create, content[4:8] + content[12:16]
    if kind == create:
        _created[position] = content
    elif kind == delete:
        _created.pop(position, None)
    elif position in _created:
        yield _HEADER.pack(_HEADER.size + len(_created[position]), create, *header) + _created[position]
    elif not header[0]:
        yield _HEADER.pack(_HEADER.size + 4, _NLMSG_ERROR, *header) + _INT.pack(-errno.ENOENT)


def _refuse_program(*commands: Command, **unused: object) -> list[Outcome]:
    """Raises RuntimeError: the verbs run iptables' programs only if netlink fails."""
    raise RuntimeError(f"the warm-up ran {' '.join(commands[0].argv)}: {commands[0].stdin.decode()}")


def _link(request: bytes, header: tuple[int, int, int]) -> bytes:
    (index,) = _INT.unpack_from(request, 20)
    if not index:
        index = next((number for number, name in _NAMES.items() if name.encode() in request), _VETH)
    kind = {_LO: "", _BRIDGE: "bridge", _VETH: "veth"}[index]
    attributes: Attributes = [
        ("IFLA_ADDRESS", bytes(6) if index == _LO else _MAC),
        ("IFLA_IFNAME", _NAMES[index]),
        ("IFLA_MTU", 1500),
        ("IFLA_LINK", _VETH),
        ("IFLA_MASTER", fake_vrf.get_master() if b"eth0\0" in request else _BRIDGE),
        ("IFLA_OPERSTATE", kernel.link.OPERSTATE_UP),
        ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind)]}),
        ("IFLA_LINK_NETNSID", 0),
    ]
    return encode(LinkMessage, header, {"index": index, "flags": kernel.link.IFF_UP}, attributes)


def _ifb(request: bytes, sequence: int) -> bytes:
    """Returns the ifb or ENODEV; b"" for a request for another interface."""
    (index,) = _INT.unpack_from(request, 20)
    if index <= _VETH and _IFB not in request:
        return b""
    existing = _created.get((kernel.link.RTM_NEWLINK, _IFB))
    answer, kind = (existing, kernel.link.RTM_NEWLINK) if existing else (_INT.pack(-errno.ENODEV), _NLMSG_ERROR)
    return _HEADER.pack(_HEADER.size + len(answer), kind, 0, sequence, 0) + answer


class _Parameter(str):
    """A directory in which every name is the same file, which replaces all kernel parameters."""

    __slots__ = ()

    def __add__(self, name: str) -> str:
        return str(self)


def _family(cidr: Cidr) -> int:
    return socket.AF_INET if cidr.version == 4 else socket.AF_INET6


@contextmanager
def _fake_kernel() -> Iterator[str]:
    """Replaces functions that call the kernel while the context is active; yields a directory for leases."""
    # The directory is addressed by a descriptor: its name differs in every build, and Python would intern it.
    temporary = f"/tmp/podwire-{os.urandom(8).hex()}"
    os.mkdir(temporary, 0o700)
    descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    directory = f"/proc/self/fd/{descriptor}/leases"
    replacements = _replacements(directory)
    originals = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    os.mkdir(directory, 0o700)
    with open(f"{directory}/parameter", "wb") as parameter:
        parameter.write(b"1")
    os.symlink("/proc/self/exe", f"{directory}/host-local")
    for module, name, replacement in replacements:
        setattr(module, name, replacement)
    fake_nftables.create_built_in_chains()
    try:
        yield directory
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
        fake_nftables.clear()
        fake_routing.clear()
        os.close(descriptor)
        shutil.rmtree(temporary)


def _replacements(directory: str) -> list[tuple[Any, str, Any]]:
    """Returns modules, names in them, and the values of these names with the fake kernel."""
    return [
        (socket, "socket", _Socket),
        (
            kernel.netfilter.iptables,
            "_LEGACY_TABLES",
            dict.fromkeys(kernel.netfilter.iptables.FAMILIES, f"{directory}/parameter"),
        ),
        (
            kernel.netfilter.iptables_program,
            "_installed",
            {name: f"/sbin/{name}" for name in ("iptables-restore", "ip6tables-restore")}.__getitem__,
        ),
        (kernel.netfilter.iptables_program, "is_nft", bool),
        (process.child, "run", _refuse_program),
        (kernel.link, "random_mac", lambda: _MAC),
        (kernel.tap, "create", fake_child.create_tap),
        (ipam.dhcp.rpc, "_connect", fake_dhcp.connect),
        (kernel.netns, "setns", lambda descriptor, kind: None),
        (kernel.link_deletion, "send_in_background", lambda socket, request, report: 0),
        (kernel.netfilter.nft, "close_in_background", lambda socket, ended, microseconds: 0),
        (kernel.sysctl, "_ROOT", _Parameter(f"{directory}/parameter")),
    ]
