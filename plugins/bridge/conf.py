"""Parses and validates the configuration of bridge into a frozen BridgeConf.

All functions are pure. The other modules of the plugin do not validate the configuration again.
"""

from __future__ import annotations

from attachment import auto_mtu
from attachment.masquerade import options
from attachment.masquerade.options import MasqueradeOptions
from attachment.policy import options as policy_options
from cni import link_name
from cni.address import parse_mac
from cni.args import CmdArgs, is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, IPAM_TYPE, LIST, MAC, OBJECT, STRING, Key, args_cni, keys_of_type, runtime_config
from cni.keys import DNS as DNS_KEY
from cni.result import DNS
from process.values import dataclass

_VLAN_MAX = 4094  # 4095 is reserved (IEEE 802.1Q)

KEYS = (
    Key("bridge", (STRING,)),
    *keys_of_type(BOOLEAN, "isGateway", "isDefaultGateway", "forceAddress"),
    *options.KEYS,
    auto_mtu.KEY,
    *keys_of_type(BOOLEAN, "hairpinMode", "promiscMode", "portIsolation"),
    Key("vlan", (INTEGER,)),
    Key("vlanTrunk", (LIST,), (OBJECT,), keys_of_type(INTEGER, "id", "minID", "maxID")),
    *keys_of_type(
        BOOLEAN, "preserveDefaultVlan", "macspoofchk", "bridgeNetfilter", "enabledad", "disableContainerInterface"
    ),
    policy_options.KEY,
    IPAM_TYPE,
    DNS_KEY,
    args_cni(MAC),
    runtime_config(MAC),
)


@dataclass(frozen=True)
class PortVlans:
    """The configured VLANs of a port: `access` is untagged, 0 for none; `trunk` are tagged, in ascending order.

    `trunk` is None without "vlanTrunk"; an empty list still enables VLAN filtering, as with the reference plugin.
    With `keep_default` the port also stays in the bridge's default VLAN.
    """

    access: int = 0
    trunk: tuple[int, ...] | None = None
    keep_default: bool = False

    @property
    def filtering(self) -> bool:
        """Whether the bridge must filter by VLAN."""
        return bool(self.access) or self.trunk is not None


@dataclass(frozen=True)
class BridgeConf:
    """The configuration of one bridge network and attachment; `bridge` may be an altname.

    `mtu` is in bytes, 0 for the kernel's default; with `mtu_auto` ADD derives it from the host's interfaces. `mac` is
    b"" for a random MAC address. `ipam_type` is "" for a layer 2 network. A non-empty `dns` replaces that of IPAM.
    If `bridge_netfilter` is None, ADD does not change that setting of the host. With `network_policy` podwire-agent
    filters the pod's traffic.
    """

    bridge: str
    ipam_type: str
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    masquerade: MasqueradeOptions | None
    mtu: int
    mtu_auto: bool
    hairpin: bool
    promisc: bool
    isolated: bool
    vlans: PortVlans
    mac_spoof_check: bool
    bridge_netfilter: bool | None
    network_policy: bool
    dad: bool
    container_interface_down: bool
    mac: bytes
    dns: DNS


def parse(args: CmdArgs, net_conf: NetConf) -> BridgeConf:
    """Returns the validated configuration; raises CniError(7), and CniError(4) for CNI_ARGS.

    The reference plugin has code 999 for both.
    """
    fields = net_conf.fields
    mtu, is_auto = auto_mtu.parse(fields)
    parsed = BridgeConf(
        bridge=_bridge_name(fields),
        ipam_type=net_conf.ipam_type,
        is_gateway=fields.boolean("isGateway") or fields.boolean("isDefaultGateway"),
        is_default_gateway=fields.boolean("isDefaultGateway"),
        force_address=fields.boolean("forceAddress"),
        masquerade=options.parse(net_conf),
        mtu=mtu,
        mtu_auto=is_auto,
        hairpin=fields.boolean("hairpinMode"),
        promisc=fields.boolean("promiscMode"),
        isolated=fields.boolean("portIsolation"),
        vlans=_vlans(fields),
        mac_spoof_check=fields.boolean("macspoofchk"),
        bridge_netfilter=fields.boolean("bridgeNetfilter") if fields.has("bridgeNetfilter") else None,
        network_policy=policy_options.parse(net_conf),
        dad=fields.boolean("enabledad"),
        container_interface_down=fields.boolean("disableContainerInterface"),
        mac=_mac(args, net_conf),
        dns=DNS.from_fields(fields.section("dns")),
    )
    _refuse_combinations(parsed)
    return parsed


def _refuse_combinations(conf: BridgeConf) -> None:
    if conf.ipam_type and conf.container_interface_down:
        raise invalid_conf(
            "cannot use IPAM when DisableContainerInterface flag is set", 'remove "ipam" or "disableContainerInterface"'
        )
    if conf.hairpin and conf.promisc:
        raise invalid_conf(
            "cannot set hairpin mode and promiscuous mode at the same time", 'remove "hairpinMode" or "promiscMode"'
        )
    if conf.network_policy and conf.vlans.trunk is not None:
        raise invalid_conf(
            'cannot use "vlanTrunk" with "networkPolicy"',
            "policies do not see frames with VLAN tags; remove one of the keys",
        )
    if conf.network_policy and conf.bridge_netfilter is False:
        raise invalid_conf(
            'cannot set "bridgeNetfilter" to false with "networkPolicy"',
            'frames between the pods of a bridge bypass policies without it: set it to true, or remove "networkPolicy"',
        )


def gateway_name(bridge: str, conf: BridgeConf) -> str:
    """Returns the name of the gateway interface of the configured VLAN; the reference plugin uses the same name."""
    return f"{bridge}.{conf.vlans.access}"


def refuse_long_names(existing_name: str, conf: BridgeConf) -> None:
    """Raises CniError(7) if ADD would create the bridge, or the gateway interface, with a name of more than 15 bytes.

    `existing_name` is the name of the bridge whose name or altname is configured, "" if there is none.
    """
    if not existing_name and not is_interface_name(conf.bridge):
        raise invalid_conf(
            f'failed to create bridge "{conf.bridge}": the name is longer than 15 bytes',
            'set "bridge" to a shorter name, or to an altname that a bridge of the host has',
        )
    bridge = existing_name or conf.bridge
    name = gateway_name(bridge, conf)
    if conf.is_gateway and conf.vlans.access and not is_interface_name(name):
        raise invalid_conf(
            f'"bridge" "{bridge}" with "vlan" {conf.vlans.access} needs the gateway interface "{name}", '
            "whose name is longer than 15 bytes",
            f'set "bridge" to a name of at most {15 - len(name) + len(bridge)} bytes',
        )


def name_for_del(net_conf: NetConf) -> str:
    """Returns the bridge's name or altname, "" for an invalid one: DEL works without it."""
    try:
        return _bridge_name(net_conf.fields)
    except CniError:
        return ""


def _bridge_name(fields: Fields) -> str:
    return link_name.read(fields, "bridge", "cni0")


def _vlans(fields: Fields) -> PortVlans:
    access = fields.integer("vlan") or 0
    if not 0 <= access <= _VLAN_MAX:
        raise _wrong_vlan(f"invalid VLAN ID {access} (must be between 0 and {_VLAN_MAX})", '"vlan"')
    trunk = _trunk(fields.objects("vlanTrunk")) if fields.has("vlanTrunk") else None
    return PortVlans(access, trunk, fields.boolean("preserveDefaultVlan"))


def _trunk(items: tuple[Fields, ...]) -> tuple[int, ...]:
    """Returns the IDs of all elements, unique and sorted; an element has "id", both "minID" and "maxID", or all."""
    ids: set[int] = set()
    for element in items:
        min_id, max_id, single_id = element.integer("minID"), element.integer("maxID"), element.integer("id")
        if min_id is not None and max_id is not None:
            _check_trunk_id(element, "minID", min_id)
            _check_trunk_id(element, "maxID", max_id)
            if max_id < min_id:
                raise _wrong_vlan(
                    "minID is greater than maxID in trunk parameter", f'"{element.path("minID")}" is {min_id}'
                )
            ids.update(range(min_id, max_id + 1))
        elif min_id is not None or max_id is not None:
            missing = "maxID" if max_id is None else "minID"
            msg = f"minID and maxID should be configured simultaneously, {missing} is missing"
            raise _wrong_vlan(msg, f'set "{element.path(missing)}"')
        if single_id is not None:
            _check_trunk_id(element, "id", single_id)
            ids.add(single_id)
    return tuple(sorted(ids))


def _check_trunk_id(element: Fields, key: str, number: int) -> None:
    if not 1 <= number <= _VLAN_MAX:
        raise _wrong_vlan(f"incorrect trunk {key} parameter", f'"{element.path(key)}" is {number}')


def _wrong_vlan(msg: str, details: str) -> CniError:
    """Returns the error with the reference plugin's text, which has no prefix; `details` name the key."""
    return invalid_conf(msg, f"{details}; VLAN IDs are 1 to {_VLAN_MAX}")


def _mac(args: CmdArgs, net_conf: NetConf) -> bytes:
    """Returns the requested MAC address, b"" for none: runtimeConfig before args.cni before CNI_ARGS."""
    cni_args_mac = args.cni_args("MAC").get("MAC", "")
    text = net_conf.runtime_config.string("mac") or net_conf.cni_args.string("mac") or cni_args_mac
    if not text:
        return b""
    try:
        mac = parse_mac(text)
    except ValueError as error:
        raise invalid_conf(str(error), "write it like 02:00:00:00:00:01") from None
    if len(mac) != 6 or mac[0] & 1 or not any(mac):
        raise invalid_conf(
            f"address {text}: invalid MAC address",
            "an Ethernet interface needs six bytes, not a multicast address and not zero",
        )
    return mac
