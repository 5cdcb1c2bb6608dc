"""The configuration of bridge: read, checked, turned into one frozen value.

One rule: nothing here touches the kernel, and below here nothing is checked again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from cni import gojson
from cni.address import parse_mac
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.result import DNS
from cni.versions import at_least

_MTU_MIN, _MTU_MAX = 68, 65535  # what the kernel lets a veth have (linux/if_ether.h)


@dataclass(frozen=True)
class BridgeConf:
    """One bridge network and the attachment asked for; `mtu` in bytes, 0 leaves it to the kernel; `mac` b"" for any.

    `ipam_type` is "" for a layer 2 network. `dns`, when there is one, replaces what IPAM says.
    """

    bridge: str
    ipam_type: str
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    mtu: int
    hairpin: bool
    promisc: bool
    isolated: bool
    dad: bool
    container_interface_down: bool
    mac: bytes
    dns: DNS


def parse(args: CmdArgs, conf: NetConf) -> BridgeConf:
    """Reads the whole configuration; raises CniError(7), CniError(4) for CNI_ARGS (reference: code 999, its texts)."""
    fields = conf.fields
    parsed = BridgeConf(
        bridge=_bridge_name(fields),
        ipam_type=ipam_type(conf),
        is_gateway=fields.boolean("isGateway") or fields.boolean("isDefaultGateway"),
        is_default_gateway=fields.boolean("isDefaultGateway"),
        force_address=fields.boolean("forceAddress"),
        mtu=_mtu(fields),
        hairpin=fields.boolean("hairpinMode"),
        promisc=fields.boolean("promiscMode"),
        isolated=fields.boolean("portIsolation"),
        dad=fields.boolean("enabledad"),
        container_interface_down=fields.boolean("disableContainerInterface"),
        mac=_mac(args, conf),
        dns=DNS.from_fields(fields.section("dns")),
    )
    if parsed.ipam_type and parsed.container_interface_down:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            "cannot use IPAM when DisableContainerInterface flag is set",
            'remove "ipam" or "disableContainerInterface"',
        )
    if parsed.hairpin and parsed.promisc:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            "cannot set hairpin mode and promiscuous mode at the same time",
            'remove "hairpinMode" or "promiscMode"',
        )
    return parsed


def ipam_type(conf: NetConf) -> str:
    """Returns the type of the IPAM delegate, "" for a layer 2 network: all that DEL, GC and STATUS need to know."""
    return conf.fields.section("ipam").string("type")


def refuse_unsupported(conf: NetConf) -> None:
    """Refuses keys that this version does not serve: CniError(2), naming key and value. DEL never asks."""
    fields = conf.fields
    asked = [(key, fields.raw(key)) for key in ("ipMasq", "vlan", "vlanTrunk", "macspoofchk")]
    for key, value in asked:
        if value or value == []:  # an empty vlanTrunk still asks for VLAN filtering
            raise CniError(
                Code.UNSUPPORTED_FIELD,
                f'"{key}": {gojson.dumps(value)} is not supported by this version of podwire\'s bridge',
                f'keep the reference plugin under another name, say "bridge-reference", as the "type" of {conf.name}',
            )


def warn_of_leftovers(conf: NetConf) -> None:
    """Tells on stderr what DEL does not remove of an attachment that the reference plugin made."""
    for key in ("ipMasq", "macspoofchk"):
        if conf.fields.raw(key) is True:
            print(f'bridge: "{key}": rules that the reference plugin made for this attachment stay', file=sys.stderr)


def refuse_addressless_version(parsed: BridgeConf, conf: NetConf) -> None:
    """Refuses a layer 2 network of CNI 0.1.0 or 0.2.0, whose results consist of addresses (text of the reference)."""
    if not parsed.ipam_type and not at_least(conf.version, "0.3.0"):
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            "cannot convert: no valid IP addresses",
            f'cniVersion {conf.version} cannot tell of an attachment without addresses; add "ipam" or use 0.3.0',
        )


def _bridge_name(fields: Fields) -> str:
    name = fields.string("bridge", "cni0")
    if not is_interface_name(name):
        details = "1 to 15 bytes, no blanks, slashes, colons and percent signs"
        raise fields.error("bridge", f'is no name for an interface: "{name}"', details)
    return name


def _mtu(fields: Fields) -> int:
    mtu = fields.integer("mtu") or 0
    if mtu and not _MTU_MIN <= mtu <= _MTU_MAX:
        raise fields.error("mtu", f"must be 0 or between {_MTU_MIN} and {_MTU_MAX}, not {mtu}")
    return mtu


def _mac(args: CmdArgs, conf: NetConf) -> bytes:
    """Returns the address asked for: runtimeConfig before args.cni before CNI_ARGS."""
    environment = args.cni_args("MAC").get("MAC", "")
    text = conf.runtime_config.string("mac") or conf.cni_args.string("mac") or environment
    if not text:
        return b""
    try:
        mac = parse_mac(text)
    except ValueError as error:
        raise CniError(Code.INVALID_NETWORK_CONFIG, str(error), "write it like 02:00:00:00:00:01") from None
    if len(mac) != 6 or mac[0] & 1 or not any(mac):
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f"address {text}: invalid MAC address",
            "an Ethernet interface needs six bytes, not a multicast address and not zero",
        )
    return mac
