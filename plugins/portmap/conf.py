"""The configuration of portmap: read, checked, turned into one frozen value.

One rule: nothing here touches the kernel, and below here nothing is checked again.
"""

from __future__ import annotations

import re
from contextlib import suppress

from attachment.host_veth import host_veth
from cni.address import Interface
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, IP, LIST, OBJECT, STRING, Key, each, runtime_config
from cni.result import Result
from plugins.portmap.conditions import UNDERSTOOD, compiled
from plugins.portmap.spec import HostPorts, PortMapping
from process.values import dataclass

IPTABLES, NFTABLES = "iptables", "nftables"
PROTOCOLS = ("tcp", "udp", "sctp")

_CONTEXT = "failed to parse network configuration"  # the reference's
_PORT_MAX = 65535
_MARK_BIT = 13  # the reference's: mark 0x2000
_CHAIN_NAME_MAX = 28  # XT_EXTENSION_MAXNAMELEN - 1 (linux/netfilter/x_tables.h)
_CHAIN_NAME = re.compile(r"""[^\s"'\\!-][^\s"'\\]*""")  # what is one word to iptables-restore as it stands
_QUOTED_BYTES = 3  # that a word becomes longer on such a line, apart from what is escaped in it
_WORDS_BYTES = 4096  # iptables-restore takes what is behind 10,239 bytes of a line for another line
_CONDITIONS = {4: "conditionsV4", 6: "conditionsV6"}

KEYS = (
    *each(BOOLEAN, "snat", "masqAll"),
    Key("backend", (STRING,), choices=(IPTABLES, NFTABLES)),
    *(Key(name, (LIST,), (STRING,)) for name in _CONDITIONS.values()),
    Key("markMasqBit", (INTEGER,)),
    Key("externalSetMarkChain", (STRING,)),
    Key("onConflict", (STRING,), choices=("fail",)),
    runtime_config(
        Key(
            "portMappings",
            (LIST,),
            (OBJECT,),
            (*each(INTEGER, "hostPort", "containerPort"), Key("protocol", (STRING,)), Key("hostIP", (IP,))),
        )
    ),
)


@dataclass(frozen=True)
class PortmapConf:
    """What is asked for: `backend` is "iptables", "nftables", or "" for the first of them that works here."""

    backend: str
    ports: HostPorts


def parse(args: CmdArgs, conf: NetConf, prev_result: Result | None = None) -> PortmapConf:
    """Reads the whole configuration; `prev_result` gives the pod's addresses.

    Raises CniError(7) (reference: code 999, its texts).
    """
    fields = conf.fields.with_context(_CONTEXT)
    mark_bit = fields.integer("markMasqBit")
    external = fields.string("externalSetMarkChain")
    if external and mark_bit is not None:
        raise _wrong("Cannot specify externalSetMarkChain and markMasqBit", "the chain sets its own mark: remove one")
    if mark_bit is not None and not 0 <= mark_bit <= 31:
        raise _wrong("MasqMarkBit must be between 0 and 31", f'"markMasqBit" is {mark_bit}')
    _check_words(fields, "externalSetMarkChain", (external,))
    if external and (len(external.encode()) > _CHAIN_NAME_MAX or not _CHAIN_NAME.fullmatch(external)):
        hint = f"write up to {_CHAIN_NAME_MAX} bytes without blanks, quotes and backslashes, no - or ! in front"
        raise fields.error("externalSetMarkChain", f'is no name for a chain: "{external}"', hint)
    conditions = {version: fields.strings(key) for version, key in _CONDITIONS.items()}
    for version, key in _CONDITIONS.items():
        _check_words(fields, key, conditions[version])
    ports = HostPorts(
        network=conf.name,
        container_id=args.container_id,
        ifname=args.ifname,
        mappings=_mappings(fields),
        addresses=_addresses(prev_result, args.ifname) if prev_result else {},
        snat=fields.boolean("snat", default=True),
        masq_all=fields.boolean("masqAll"),
        mark_bit=_MARK_BIT if mark_bit is None else mark_bit,
        external_mark_chain=external,
        conditions=conditions,
        refuse_taken=_refuse_taken(fields),
        netns=args.netns,
        host_interfaces=_host_interfaces(prev_result),
        host_veth=_host_veth(prev_result, args),
    )
    backend = _backend(fields, ports)
    if backend == NFTABLES:
        _check_conditions(fields, conditions)
    return PortmapConf(backend, ports)


def parse_leniently(args: CmdArgs, conf: NetConf) -> HostPorts:
    """Returns what DEL needs: whose rules they are and, as far as can be read, the ports and addresses."""
    try:
        prev_result = conf.prev_result()
    except CniError:
        prev_result = None
    found = []
    for item in _asked(conf):
        with suppress(CniError):
            found.append(_mapping(item))
    addresses = _addresses(prev_result, args.ifname) if prev_result else {}
    return HostPorts(
        conf.name,
        args.container_id,
        args.ifname,
        tuple(found),
        addresses,
        host_interfaces=_host_interfaces(prev_result),
        host_veth=_host_veth(prev_result, args),
        netns=args.netns,
    )


def may_have_ports(conf: NetConf) -> bool:
    """Tells whether host ports are asked for, be it by a value of a wrong type: what DEL wants to know."""
    try:
        return bool(conf.runtime_config.raw("portMappings"))
    except CniError:
        return True


def _mappings(fields: Fields) -> tuple[PortMapping, ...]:
    """Returns what the runtime asks for (capability portMappings), each mapping once; raises CniError(7)."""
    found = [_mapping(item) for item in fields.section("runtimeConfig").objects("portMappings")]
    return tuple(dict.fromkeys(found))


def _asked(conf: NetConf) -> tuple[Fields, ...]:
    try:
        return conf.runtime_config.objects("portMappings")
    except CniError:
        return ()


def _mapping(item: Fields) -> PortMapping:
    container_port = _port(item, "containerPort", "Invalid container port number")
    host_port = _port(item, "hostPort", "Invalid host port number")
    if not item.string("protocol"):
        raise item.error("protocol", "is missing", f"write one of {', '.join(PROTOCOLS)}")
    protocol = item.string("protocol").lower()  # runtimes send lower case, Kubernetes' objects have capitals
    if protocol not in PROTOCOLS:
        said = item.string("protocol")
        raise item.error("protocol", f'is unknown: "{said}"', f"write one of {', '.join(PROTOCOLS)}")
    try:
        host_ip = item.ip("hostIP")
    except CniError as error:
        error.details = 'write an address of the host like "192.0.2.1", or leave it out for all of them'
        raise
    return PortMapping(host_port, container_port, protocol, host_ip)


def _port(item: Fields, key: str, text: str) -> int:
    number = item.integer(key) or 0
    if not 0 < number <= _PORT_MAX:
        raise _wrong(f"{text}: {number}", f'"{item.path(key)}" must be between 1 and {_PORT_MAX}')
    return number


def _addresses(result: Result, ifname: str) -> dict[int, Interface]:
    """Returns the first address of each IP version that is the sandbox interface's or, for all we know, may be."""
    found: dict[int, Interface] = {}
    for ip in result.ips:
        if ip.interface is not None and 0 <= ip.interface < len(result.interfaces):
            interface = result.interfaces[ip.interface]
            if interface.name != ifname or not interface.sandbox:
                continue
        found.setdefault(ip.address.version, ip.address)
    return found


def _host_interfaces(result: Result | None) -> tuple[str, ...]:
    """Returns the interfaces that the result lists on the host: a bridge, the host veth, an ifb."""
    listed = (item.name for item in (result.interfaces if result else ()) if not item.sandbox)
    return tuple(name for name in listed if is_interface_name(name))


def _host_veth(result: Result | None, args: CmdArgs) -> str:
    """Returns the name of the pod's host veth, "" where prevResult does not list it or is another pod's."""
    name = host_veth(result.interfaces if result else (), args.ifname, args.netns).name
    return name if is_interface_name(name) else ""


def _backend(fields: Fields, ports: HostPorts) -> str:
    """Returns the backend that is asked for, be it by conditions in its language (the reference takes iptables then).

    "!" and "-" begin iptables' words, and none of nftables'.
    """
    asked = fields.string("backend")
    if asked not in ("", IPTABLES, NFTABLES):
        hint = f'set it to "{IPTABLES}" or "{NFTABLES}", or leave it out for the one that works'
        raise _wrong(f'unrecognized backend "{asked}"', f'"backend": {hint}')
    keys: dict[str, list[str]] = {IPTABLES: ["externalSetMarkChain"] if ports.external_mark_chain else [], NFTABLES: []}
    for version, key in _CONDITIONS.items():
        words = ports.conditions[version]
        if words and not words[0].strip():
            raise fields.error(key, "begins with an empty word", "leave the key out for no conditions")
        if words:
            keys[IPTABLES if words[0][:1] in ("-", "!") else NFTABLES].append(key)
    backend = asked or next((name for name, own in keys.items() if own), "")
    if backend:
        other = NFTABLES if backend == IPTABLES else IPTABLES
        if keys[other]:
            cure = f'write conditions in the words of {backend}, or set "backend" to "{other}"'
            if ports.external_mark_chain:
                cure = f'leave out "externalSetMarkChain", which is for {IPTABLES} only, or what is for {NFTABLES}'
            elif not asked:
                cure = f'{backend} by the words of "{keys[backend][0]}": write all conditions in one language'
            raise _wrong(
                f"{backend} backend was requested but configuration contains {other}-specific options "
                f"[{' '.join(keys[other])}]",
                cure,
            )
    return backend


def _check_words(fields: Fields, key: str, words: tuple[str, ...]) -> None:
    """Refuses what would end a line in the middle of a word."""
    for index, word in enumerate(words):
        if any(ord(character) < 0x20 or character == "\x7f" for character in word):
            hint = f"word {index + 1}: use printable characters"
            raise fields.error(key, f"has a control character in {word!r}", hint)
    if sum(len(word.encode()) + _QUOTED_BYTES for word in words) > _WORDS_BYTES:
        raise fields.error(key, f"is longer than {_WORDS_BYTES} bytes", "use fewer conditions")


def _check_conditions(fields: Fields, words: dict[int, tuple[str, ...]]) -> None:
    """Refuses what we cannot make rules of without `nft`."""
    for version, key in _CONDITIONS.items():
        try:
            compiled(words[version], version)
        except ValueError as error:
            raise fields.error(key, str(error), UNDERSTOOD) from None


def _refuse_taken(fields: Fields) -> bool:
    said = fields.string("onConflict")
    if said not in ("", "fail"):
        hint = 'set it to "fail", or leave it out: then the container that was first keeps the port'
        raise fields.error("onConflict", f'is unknown: "{said}"', hint)
    return bool(said)


def _wrong(msg: str, details: str) -> CniError:
    """Returns the error in the reference's words."""
    return CniError(Code.INVALID_NETWORK_CONFIG, msg, details)
