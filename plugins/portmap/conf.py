"""The configuration of portmap: keys, validation, and the host ports of an attachment as frozen dataclasses.

This module is pure, and no other module validates values of the configuration. The host ports do not depend on the
backend; each backend turns them into rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from attachment.host_veth import host_veth
from cni.address import Address, Cidr
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, IP, LIST, OBJECT, STRING, Key, keys_of_type, runtime_config
from cni.result import Result
from plugins.portmap.conditions import SUPPORTED_CONDITIONS, compile_conditions
from process.values import dataclass, field

IPTABLES, NFTABLES = "iptables", "nftables"
PROTOCOLS = ("tcp", "udp", "sctp")

_CONTEXT = "failed to parse network configuration"  # as the reference plugin prints it
_PORT_MAX = 65535
_MARK_BIT = 13  # packet mark 0x2000, the default of the reference plugin
_CHAIN_NAME_MAX = 28  # XT_EXTENSION_MAXNAMELEN - 1 (linux/netfilter/x_tables.h)
_CHAIN_NAME = re.compile(r"""[^\s"'\\!-][^\s"'\\]*""")  # a word that iptables-restore accepts unquoted
_QUOTED_BYTES = 3  # two quotes and the space before a word; escapes are not counted
_WORDS_BYTES = 4096  # iptables-restore accepts 10,239 bytes in a line; escapes and the rest of the rule need space, too
CONDITION_KEYS = {4: "conditionsV4", 6: "conditionsV6"}

KEYS = (
    *keys_of_type(BOOLEAN, "snat", "masqAll"),
    Key("backend", (STRING,), choices=(IPTABLES, NFTABLES)),
    *(Key(name, (LIST,), (STRING,)) for name in CONDITION_KEYS.values()),
    Key("markMasqBit", (INTEGER,)),
    Key("externalSetMarkChain", (STRING,)),
    Key("onConflict", (STRING,), choices=("fail",)),
    runtime_config(
        Key(
            "portMappings",
            (LIST,),
            (OBJECT,),
            (*keys_of_type(INTEGER, "hostPort", "containerPort"), Key("protocol", (STRING,)), Key("hostIP", (IP,))),
        )
    ),
)


@dataclass(frozen=True)
class PortMapping:
    """A published host port: `protocol` is "tcp", "udp" or "sctp"; `host_ip` None means every address of the host."""

    host_port: int
    container_port: int
    protocol: str
    host_ip: Address | None = None

    @property
    def bound_ip(self) -> Address | None:
        """The host address that the mapping is limited to, None if it has no `host_ip`, or 0.0.0.0 or ::."""
        return None if self.host_ip is None or self.host_ip.is_unspecified else self.host_ip

    def applies_to(self, version: int) -> bool:
        """Returns whether the mapping applies to IP `version` (4 or 6)."""
        return self.host_ip is None or self.host_ip.version == version

    def overlaps(self, protocol: str, host_port: int, host_ip: Address | None) -> bool:
        """Returns whether a packet can match both this mapping and `host_port`; `host_ip` None means every address."""
        same_port = (self.protocol, self.host_port) == (protocol, host_port)
        return same_port and (self.bound_ip is None or host_ip in (None, self.bound_ip))

    def __str__(self) -> str:
        ip = self.bound_ip
        address = "" if ip is None else f"[{ip}]:" if ip.version == 6 else f"{ip}:"
        return f"{address}{self.host_port}/{self.protocol}"


@dataclass(frozen=True)
class HostPorts:
    """The host ports of one attachment.

    `addresses`: at most one pod address for each IP version, with the prefix length of its subnet (10.22.0.2/16).
    `snat`: masquerade connections from the host's loopback and from the pod's subnet.
    `masq_all`: masquerade all connections.
    `mark_bit`: the bit of the packet mark that selects packets to masquerade.
    `external_mark_chain`: the iptables chain that sets the packet mark instead; "" for portmap's own chain.
    `conditions`: additional matches in the language of the backend, by IP version.
    `refuse_conflicts`: ADD fails if another running container has published the same port.
    `host_interfaces`: the host's interfaces in prevResult.
    `host_veth`: the pod's host veth among them, "" if prevResult does not list it.
    """

    network: str
    container_id: str
    ifname: str
    mappings: tuple[PortMapping, ...] = ()
    addresses: Mapping[int, Cidr] = field(default_factory=dict)
    snat: bool = True
    masq_all: bool = False
    mark_bit: int = 13
    external_mark_chain: str = ""
    conditions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    refuse_conflicts: bool = False
    netns: str = ""
    host_interfaces: tuple[str, ...] = ()
    host_veth: str = ""

    @property
    def ip_versions(self) -> tuple[int, ...]:
        """The IP versions for which rules exist: those of the pod's addresses, in order."""
        return tuple(sorted(self.addresses))

    def mappings_for(self, version: int) -> tuple[PortMapping, ...]:
        """Returns the mappings that apply to IP `version`, in order."""
        return tuple(mapping for mapping in self.mappings if mapping.applies_to(version))


@dataclass(frozen=True)
class PortmapConf:
    """The parsed configuration: `backend` is "iptables", "nftables", or "" for the first of the two that works."""

    backend: str
    ports: HostPorts


def parse(args: CmdArgs, net_conf: NetConf, prev_result: Result | None = None) -> PortmapConf:
    """Parses the configuration; `prev_result` contains the pod's addresses.

    Raises CniError(7) with the messages of the reference plugin, which uses code 999.
    """
    fields = net_conf.fields.with_context(_CONTEXT)
    mark_bit = fields.integer("markMasqBit")
    external = fields.string("externalSetMarkChain")
    if external and mark_bit is not None:
        raise invalid_conf(
            "Cannot specify externalSetMarkChain and markMasqBit",
            "the external chain sets its own packet mark: remove one of the two keys",
        )
    if mark_bit is not None and not 0 <= mark_bit <= 31:
        raise invalid_conf("MasqMarkBit must be between 0 and 31", f'"markMasqBit" is {mark_bit}')
    _check_words(fields, "externalSetMarkChain", (external,))
    if external and (len(external.encode()) > _CHAIN_NAME_MAX or not _CHAIN_NAME.fullmatch(external)):
        hint = f"use at most {_CHAIN_NAME_MAX} bytes without spaces, quotes or backslashes, and no - or ! at the start"
        raise fields.error("externalSetMarkChain", f'is not a valid chain name: "{external}"', hint)
    conditions = {version: fields.strings(key) for version, key in CONDITION_KEYS.items()}
    for version, key in CONDITION_KEYS.items():
        _check_words(fields, key, conditions[version])
    ports = HostPorts(
        network=net_conf.name,
        container_id=args.container_id,
        ifname=args.ifname,
        mappings=_mappings(fields),
        addresses=_addresses(prev_result, args.ifname) if prev_result else {},
        snat=fields.boolean("snat", default=True),
        masq_all=fields.boolean("masqAll"),
        mark_bit=_MARK_BIT if mark_bit is None else mark_bit,
        external_mark_chain=external,
        conditions=conditions,
        refuse_conflicts=_refuse_conflicts(fields),
        netns=args.netns,
        host_interfaces=_host_interfaces(prev_result),
        host_veth=_host_veth(prev_result, args),
    )
    backend = _backend(fields, ports)
    if backend == NFTABLES:
        _check_conditions(fields, conditions)
    return PortmapConf(backend, ports)


def parse_leniently(args: CmdArgs, net_conf: NetConf) -> HostPorts:
    """Returns the owner of the rules and all valid mappings and addresses, for DEL; raises nothing."""
    prev_result = net_conf.lenient_prev_result()
    mappings = []
    for mapping_fields in _valid_mapping_list(net_conf):
        with suppress(CniError):
            mappings.append(_mapping(mapping_fields))
    return HostPorts(
        net_conf.name,
        args.container_id,
        args.ifname,
        tuple(mappings),
        _addresses(prev_result, args.ifname) if prev_result else {},
        host_interfaces=_host_interfaces(prev_result),
        host_veth=_host_veth(prev_result, args),
        netns=args.netns,
    )


def may_have_host_ports(net_conf: NetConf) -> bool:
    """Returns whether the attachment may have host ports: portMappings is not empty, or has the wrong type."""
    try:
        return bool(net_conf.runtime_config.raw("portMappings"))
    except CniError:
        return True


def _mappings(fields: Fields) -> tuple[PortMapping, ...]:
    """Returns the mappings that the runtime requests (capability portMappings), without duplicates."""
    mappings = [_mapping(mapping_fields) for mapping_fields in fields.section("runtimeConfig").objects("portMappings")]
    return tuple(dict.fromkeys(mappings))


def _valid_mapping_list(net_conf: NetConf) -> tuple[Fields, ...]:
    """Returns the objects in portMappings, none if it is not a list of objects."""
    try:
        return net_conf.runtime_config.objects("portMappings")
    except CniError:
        return ()


def _mapping(mapping_fields: Fields) -> PortMapping:
    container_port = _port(mapping_fields, "containerPort", "Invalid container port number")
    host_port = _port(mapping_fields, "hostPort", "Invalid host port number")
    if not mapping_fields.string("protocol"):
        raise mapping_fields.error("protocol", "is missing", f"write one of {', '.join(PROTOCOLS)}")
    protocol = mapping_fields.string("protocol").lower()  # runtimes send lower case, Kubernetes objects have upper case
    if protocol not in PROTOCOLS:
        unknown = mapping_fields.string("protocol")
        raise mapping_fields.error("protocol", f'is unknown: "{unknown}"', f"write one of {', '.join(PROTOCOLS)}")
    try:
        host_ip = mapping_fields.ip("hostIP")
    except CniError as error:
        error.details = 'write an address of the host like "192.0.2.1", or leave it out for all of them'
        raise
    return PortMapping(host_port, container_port, protocol, host_ip)


def _port(mapping_fields: Fields, key: str, text: str) -> int:
    number = mapping_fields.integer(key) or 0
    if not 0 < number <= _PORT_MAX:
        raise invalid_conf(f"{text}: {number}", f'"{mapping_fields.path(key)}" must be between 1 and {_PORT_MAX}')
    return number


def _addresses(result: Result, ifname: str) -> dict[int, Cidr]:
    """Returns, for each IP version, the first address that prevResult does not assign to another interface."""
    addresses: dict[int, Cidr] = {}
    for ip in result.ips:
        if ip.interface is not None and 0 <= ip.interface < len(result.interfaces):
            interface = result.interfaces[ip.interface]
            if interface.name != ifname or not interface.sandbox:
                continue
        addresses.setdefault(ip.address.version, ip.address)
    return addresses


def _host_interfaces(result: Result | None) -> tuple[str, ...]:
    """Returns the host's interfaces in the result: a bridge, the host veth, an ifb."""
    listed = (item.name for item in (result.interfaces if result else ()) if not item.sandbox)
    return tuple(name for name in listed if is_interface_name(name))


def _host_veth(result: Result | None, args: CmdArgs) -> str:
    """Returns the name of the pod's host veth, "" if prevResult does not list it or belongs to another pod."""
    name = host_veth(result.interfaces if result else (), args.ifname, args.netns).name
    return name if is_interface_name(name) else ""


def _backend(fields: Fields, ports: HostPorts) -> str:
    """Returns the configured backend, else the backend in whose language the conditions are written, else "".

    Conditions for iptables begin with "!" or "-"; conditions for nftables never do.
    """
    configured = fields.string("backend")
    if configured not in ("", IPTABLES, NFTABLES):
        hint = f'set it to "{IPTABLES}" or "{NFTABLES}", or leave it out to use whichever works'
        raise invalid_conf(f'unrecognized backend "{configured}"', f'"backend": {hint}')
    specific_keys: dict[str, list[str]] = {
        IPTABLES: ["externalSetMarkChain"] if ports.external_mark_chain else [],
        NFTABLES: [],
    }
    for version, key in CONDITION_KEYS.items():
        words = ports.conditions[version]
        if words and not words[0].strip():
            raise fields.error(key, "begins with an empty word", "leave the key out if there are no conditions")
        if words:
            specific_keys[IPTABLES if words[0][:1] in ("-", "!") else NFTABLES].append(key)
    backend = configured or next((name for name, keys in specific_keys.items() if keys), "")
    if backend:
        other = NFTABLES if backend == IPTABLES else IPTABLES
        if specific_keys[other]:
            fix = f'write the conditions for {backend}, or set "backend" to "{other}"'
            if ports.external_mark_chain:
                fix = f'remove "externalSetMarkChain", which only {IPTABLES} supports, or the options for {NFTABLES}'
            elif not configured:
                fix = f'"{specific_keys[backend][0]}" is written for {backend}: write all conditions for one backend'
            raise invalid_conf(
                f"{backend} backend was requested but configuration contains {other}-specific options "
                f"[{' '.join(specific_keys[other])}]",
                fix,
            )
    return backend


def _check_words(fields: Fields, key: str, words: tuple[str, ...]) -> None:
    """Raises CniError(7) for words that iptables-restore cannot read in one line."""
    for index, word in enumerate(words):
        if any(ord(character) < 0x20 or character == "\x7f" for character in word):
            hint = f"word {index + 1}: use printable characters"
            raise fields.error(key, f"has a control character in {word!r}", hint)
    if sum(len(word.encode()) + _QUOTED_BYTES for word in words) > _WORDS_BYTES:
        raise fields.error(key, f"is longer than {_WORDS_BYTES} bytes", "use fewer conditions")


def _check_conditions(fields: Fields, words: dict[int, tuple[str, ...]]) -> None:
    """Raises CniError(7) for conditions that portmap cannot compile."""
    for version, key in CONDITION_KEYS.items():
        try:
            compile_conditions(words[version], version)
        except ValueError as error:
            raise fields.error(key, str(error), SUPPORTED_CONDITIONS) from None


def _refuse_conflicts(fields: Fields) -> bool:
    policy = fields.string("onConflict")
    if policy not in ("", "fail"):
        hint = 'set it to "fail", or leave it out: then the container that published the port first keeps it'
        raise fields.error("onConflict", f'is unknown: "{policy}"', hint)
    return bool(policy)
