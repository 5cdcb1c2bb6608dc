"""Parses and validates the configuration of vlan into a frozen VlanConf.

All functions are pure. The other modules of the plugin do not validate the configuration again.
"""

from __future__ import annotations

from attachment import container_interface, master
from attachment.master import MasterOptions
from cni.conf import NetConf
from cni.errors import invalid_conf
from cni.fields import Fields
from cni.keys import DNS as DNS_KEY
from cni.keys import INTEGER, IPAM_TYPE, LIST, STRING, Key
from cni.result import DNS
from process.values import dataclass

PROTOCOLS = {"802.1Q": 0x8100, "802.1ad": 0x88A8}  # ETH_P_8021Q, ETH_P_8021AD, linux/if_ether.h
_MAX_ID = 4094
_MAX_PCP = 7  # the priority in a VLAN tag has three bits
_MAX_PRIORITY = (1 << 32) - 1

KEYS = (
    *master.KEYS,
    Key("vlanId", (INTEGER,)),
    Key("protocol", (STRING,), choices=tuple(PROTOCOLS)),
    Key("ingressQosMap", (LIST,), (STRING,)),
    Key("egressQosMap", (LIST,), (STRING,)),
    IPAM_TYPE,
    DNS_KEY,
)

PriorityMap = tuple[tuple[int, int], ...]  # (from, to)


@dataclass(frozen=True)
class VlanConf:
    """The configuration of vlan: `protocol` is one of PROTOCOLS; `dns`, unless None, replaces IPAM's DNS settings.

    `ingress` maps priorities of tags to priorities of packets, `egress` priorities of packets to those of tags.
    """

    master: MasterOptions
    vlan_id: int
    protocol: str
    ingress: PriorityMap
    egress: PriorityMap
    dns: DNS | None


def parse(net_conf: NetConf) -> VlanConf:
    """Returns the validated configuration; raises CniError(7) with the reference plugin's texts (its code is 999).

    Without the key `ipam` the interface has no addresses; `ipam` without a type is an error.
    """
    fields = net_conf.fields
    container_interface.refuse_untyped_ipam(net_conf, "failed to execute IPAM delegate: ")
    protocol = fields.string("protocol") or "802.1Q"
    if protocol not in PROTOCOLS:
        raise fields.error("protocol", f'is not a VLAN protocol: "{protocol}"', f"set it to {' or '.join(PROTOCOLS)}")
    conf = VlanConf(
        master=master.parse(fields),
        vlan_id=fields.integer("vlanId") or 0,
        protocol=protocol,
        ingress=_priorities(fields, "ingressQosMap", _MAX_PCP, _MAX_PRIORITY),
        egress=_priorities(fields, "egressQosMap", _MAX_PRIORITY, _MAX_PCP),
        dns=container_interface.parse_dns(net_conf),
    )
    if not conf.master.name:
        msg = '"master" field is required. It specifies the host interface name to create the VLAN for'
        raise invalid_conf(msg, 'set "master" to an interface of the host: ip link')
    if not 0 <= conf.vlan_id <= _MAX_ID:
        msg = f"invalid VLAN ID {conf.vlan_id} (must be between 0 and 4095 inclusive)"
        raise invalid_conf(msg, f"the largest usable ID is {_MAX_ID}: the standard reserves 4095")
    return conf


def _priorities(fields: Fields, key: str, max_from: int, max_to: int) -> PriorityMap:
    """Reads a list of "FROM:TO", as `ip link` takes it; raises CniError(7)."""
    pairs: dict[int, int] = {}
    for index, text in enumerate(fields.strings(key)):
        first, colon, second = text.partition(":")
        numbers = [int(part) for part in (first, second) if part.isascii() and part.isdigit() and len(part) <= 10]
        if not colon or len(numbers) != 2 or numbers[0] > max_from or numbers[1] > max_to:
            details = f"write FROM:TO, with FROM from 0 to {max_from} and TO from 0 to {max_to}"
            raise fields.error(f"{key}[{index}]", f'is not a pair of priorities: "{text}"', details)
        pairs[numbers[0]] = numbers[1]
    return tuple(sorted(pairs.items()))
