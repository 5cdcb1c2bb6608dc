"""The configuration of dhcp: typed values, or an error that names the key.

One rule: no I/O. The plugin reads it to refuse mistakes before it calls the daemon; the daemon reads it again from the
call, which may come from the reference plugin.
"""

from __future__ import annotations

import hashlib

from cni import addressing
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, LIST, OBJECT, STRING, Key, section
from ipam.dhcp import options
from ipam.dhcp.packet import MESSAGE_TYPE, OVERLOAD
from ipam.dhcp.router_client import MODES
from process.values import dataclass

SOCKET_PATH = "/run/cni/dhcp.sock"
DATA_DIR = "/var/lib/cni/dhcp"
DUID = "duid"

KEYS = (
    section(
        "ipam",
        Key("daemonSocketPath", (STRING,)),
        Key("dataDir", (STRING,)),
        Key(
            "provide",
            (LIST,),
            (OBJECT,),
            (Key("option", (STRING,)), Key("value", (STRING,)), Key("fromArg", (STRING,))),
        ),
        Key("request", (LIST,), (OBJECT,), (Key("option", (STRING,)), Key("skipDefault", (BOOLEAN,)))),
        Key("priority", (INTEGER,)),
        Key("clientIdentifier", (STRING,), choices=(DUID,)),
        Key("conflictDetection", (BOOLEAN,)),
        Key("ipv4", (BOOLEAN,)),
        Key("ipv6", (STRING,), choices=MODES),
    ),
)

_DEFAULT_REQUEST = (options.ROUTERS, options.SUBNET_MASK)
# What the reference's library requests when the configuration requests nothing.
_EMPTY_REQUEST = (options.SUBNET_MASK, options.ROUTERS, options.DOMAIN_NAME, options.DNS_SERVERS)
_DNS = frozenset((options.DNS_SERVERS, options.DOMAIN_NAME, options.DOMAIN_SEARCH))
# Every message depends on them.
_PROTOCOL = (options.REQUESTED_ADDRESS, OVERLOAD, MESSAGE_TYPE, options.SERVER_ID)
_MAX_BYTES = 255  # of an option
_MAX_ID_BYTES = 254  # of a client identifier without its type
_HASH_BYTES = 16
_DUID_TYPE, _DUID_UUID = b"\xff", b"\x00\x04"  # RFC 4361 section 6.1; RFC 6355
_NO_TYPE = b"\0"  # RFC 2132 section 9.14: the identifier is not a hardware address


@dataclass(frozen=True)
class DhcpConf:
    """A validated configuration: what to send to the server, to request from it, and to do with the answer.

    `priority` is the metric of the routes, 0 for the kernel's. `client_id` is the identifier that the configuration
    provides, b"" without one; with `uses_duid` it is a DUID. `ipv6_mode` is one of MODES, "" without IPv6.
    """

    socket_path: str
    data_dir: str
    provided: tuple[tuple[int, bytes], ...]
    requested: tuple[int, ...]
    priority: int
    client_id: bytes
    uses_duid: bool
    detects_conflicts: bool
    ipv4: bool
    ipv6_mode: str

    @property
    def wants_dns(self) -> bool:
        """Whether the configuration requests DNS settings: only then does the result have them."""
        return bool(_DNS.intersection(self.requested))


def parse(net_conf: NetConf, cni_args: str) -> DhcpConf:
    """Returns the validated configuration; raises CniError(7). `cni_args` is CNI_ARGS, which is split loosely."""
    ipam = addressing.ipam_section(net_conf, "dhcp")
    provided = dict(_provided(ipam, _loose_pairs(cni_args)))
    client_id = provided.pop(options.CLIENT_ID, b"")
    kind = ipam.string("clientIdentifier")
    if kind not in ("", DUID):
        raise ipam.error(
            "clientIdentifier", f'must be "{DUID}", not {kind!r}', "remove it for the reference's identifier"
        )
    if kind and client_id:
        raise ipam.error("clientIdentifier", "excludes the option dhcp-client-identifier", "remove one of the two")
    ipv4, mode = ipam.boolean("ipv4", default=True), ipam.string("ipv6")
    if mode not in ("", *MODES):
        raise ipam.error("ipv6", f'must be {", ".join(MODES)}, not "{mode}"', "remove it for IPv4 only")
    if not (ipv4 or mode):
        raise ipam.error("ipv4", 'is false without "ipv6"', f'add "ipv6": one of {", ".join(MODES)}')
    return DhcpConf(
        socket_path=socket_path(net_conf),
        data_dir=data_dir(net_conf),
        provided=tuple(provided.items()),
        requested=_requested(ipam),
        priority=ipam.integer("priority", minimum=0, maximum=(1 << 32) - 1) or 0,
        client_id=client_id,
        uses_duid=bool(kind),
        detects_conflicts=ipam.boolean("conflictDetection"),
        ipv4=ipv4,
        ipv6_mode=mode,
    )


def socket_path(net_conf: NetConf) -> str:
    """Returns the path of the daemon's socket; raises CniError(7)."""
    return _path(net_conf, "daemonSocketPath", SOCKET_PATH)


def data_dir(net_conf: NetConf) -> str:
    """Returns the directory of the daemon's lease files; raises CniError(7)."""
    return _path(net_conf, "dataDir", DATA_DIR)


def paths_for_release(net_conf: NetConf) -> tuple[str, str]:
    """Returns the paths of socket and lease files; the default instead of an invalid one, so that DEL succeeds."""
    paths = []
    for read, default in ((socket_path, SOCKET_PATH), (data_dir, DATA_DIR)):
        try:
            paths.append(read(net_conf))
        except CniError:  # ADD refuses it, so the file was changed since
            paths.append(default)
    return paths[0], paths[1]


def _path(net_conf: NetConf, key: str, default: str) -> str:
    ipam = net_conf.fields.section("ipam")
    path = ipam.string(key) or default
    if "\0" in path:
        raise ipam.error(key, "must not contain a NUL character")
    return path


def name_of(network: str, container_id: str, ifname: str) -> str:
    """Returns the name of an interface in logs and in client identifiers, which is the reference's."""
    return f"{container_id}/{network}/{ifname}"


def default_client_id(name: str) -> bytes:
    """Returns the reference's client identifier: a name of at most 254 bytes.

    The reference cuts longer names, so that two of them may be equal; here a hash replaces the end.
    """
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _MAX_ID_BYTES:
        digest = hashlib.sha256(encoded).hexdigest()[: 2 * _HASH_BYTES].encode()
        encoded = encoded[: _MAX_ID_BYTES - len(digest)] + digest
    return _NO_TYPE + encoded


def duid_client_id(machine_id: str, cni_args: str, network: str, ifname: str, container_id: str) -> bytes:
    """Returns a client identifier of RFC 4361, which stays the same when Kubernetes creates a pod again on this node.

    Its IAID and DUID are also those of the interface's DHCPv6 client, so that a server recognizes both as one.
    """
    return _DUID_TYPE + iaid(network, ifname) + duid(machine_id, cni_args, container_id)


def duid(machine_id: str, cni_args: str, container_id: str) -> bytes:
    """Returns the DUID-UUID of a pod on its node, named by CNI_ARGS' pod name or, without one, by the container ID."""
    pairs = _loose_pairs(cni_args)
    names = [pairs.get(key, "") for key in ("K8S_POD_NAMESPACE", "K8S_POD_NAME")]
    pod = "/".join(names) if all(names) else container_id
    uuid = hashlib.sha256(f"podwire dhcp\0{machine_id}\0{pod}".encode("utf-8", "surrogateescape")).digest()[:16]
    return _DUID_UUID + uuid


def iaid(network: str, ifname: str) -> bytes:
    """Returns the identifier of an interface among those of its pod, 4 bytes."""
    return hashlib.sha256(f"{network}\0{ifname}".encode("utf-8", "surrogateescape")).digest()[:4]


def _provided(ipam: Fields, cni_args: dict[str, str]) -> list[tuple[int, bytes]]:
    """Returns the options to send, in order; an empty value sends nothing, and the last for an option wins."""
    provided = []
    for item in ipam.objects("provide"):
        number = _number(item)
        value, from_arg = item.string("value"), item.string("fromArg")
        if number in _PROTOCOL:
            msg = f'option "{item.string("option")}" cannot be provided'
            raise invalid_conf(msg, "the client itself sets it in each message; remove it")
        text = cni_args.get(from_arg, value) if from_arg else value
        content = text.encode("utf-8", "surrogateescape")
        if len(content) > _MAX_BYTES:
            msg = f'value too long for option "{item.string("option")}": "{text}"'
            raise invalid_conf(msg, f"an option has at most {_MAX_BYTES} bytes, this has {len(content)}")
        if content:
            provided.append((number, content))
    return provided


def _requested(ipam: Fields) -> tuple[int, ...]:
    """Returns the requested options: the configured ones, then router and mask unless an entry says `skipDefault`."""
    items = ipam.objects("request")
    skips_default = any(item.boolean("skipDefault") for item in items)
    configured = [_number(item) for item in items if item.string("option") or not item.boolean("skipDefault")]
    requested = tuple(dict.fromkeys([*configured, *(() if skips_default else _DEFAULT_REQUEST)]))
    return requested or _EMPTY_REQUEST


def _number(item: Fields) -> int:
    try:
        return options.option_number(item.string("option"))
    except ValueError as error:
        names = ", ".join(sorted(options.NAMES))
        raise invalid_conf(str(error), f"an option is a number from 0 to 255, or one of {names}") from None


def _loose_pairs(cni_args: str) -> dict[str, str]:
    """Returns the pairs of CNI_ARGS as the reference splits them: by ";", then at the first "="."""
    pairs = (item.partition("=") for item in cni_args.split(";"))
    return {key: value for key, separator, value in pairs if separator}
