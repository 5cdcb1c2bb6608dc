"""Parses and validates the configuration of tap into a frozen TapConf.

All functions are pure. The other modules of the plugin do not validate the configuration again.
"""

from __future__ import annotations

from attachment import container_interface, requested_mac
from cni import link_name
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.fields import Fields
from cni.keys import BOOLEAN, INTEGER, IPAM_TYPE, MAC, STRING, Key, keys_of_type, runtime_config
from cni.keys import DNS as DNS_KEY
from cni.result import DNS
from kernel.tap import MTU_MAX, MTU_MIN, TapOptions
from process.values import dataclass

_ID_MAX = (1 << 32) - 2  # the highest 32-bit number means "no ID" to the kernel

KEYS = (
    Key("multiQueue", (BOOLEAN,)),
    *keys_of_type(INTEGER, "mtu", "owner", "group"),
    MAC,
    *keys_of_type(STRING, "selinuxContext", "bridge"),
    IPAM_TYPE,
    DNS_KEY,
    runtime_config(MAC),
)


@dataclass(frozen=True)
class TapConf:
    """The configuration of tap: `mtu` in bytes, 0 for the kernel's default; `mac` b"" for a random one.

    `bridge` is a bridge of the container, "" for none. `ipam_type` is "" for layer 2. `dns`, unless None, replaces the
    DNS settings of the IPAM result.
    """

    options: TapOptions
    mtu: int
    mac: bytes
    bridge: str
    ipam_type: str
    dns: DNS | None


def parse(args: CmdArgs, net_conf: NetConf) -> TapConf:
    """Returns the validated configuration; raises CniError(7), and CniError(4) for CNI_ARGS.

    The reference plugin has code 999 for both.
    """
    fields = net_conf.fields
    options = TapOptions(
        multi_queue=fields.boolean("multiQueue"),
        owner=fields.integer("owner", minimum=0, maximum=_ID_MAX),
        group=fields.integer("group", minimum=0, maximum=_ID_MAX),
        selinux_label=_label(fields),
    )
    return TapConf(
        options=options,
        mtu=_mtu(fields),
        mac=requested_mac.parse(args, net_conf, "tap"),
        bridge=link_name.read(fields, "bridge"),
        ipam_type=net_conf.ipam_type,
        dns=container_interface.parse_dns(net_conf),
    )


def _mtu(fields: Fields) -> int:
    mtu = fields.integer("mtu") or 0
    if mtu and not MTU_MIN <= mtu <= MTU_MAX:
        hint = "leave it out for the kernel's default"
        raise fields.error("mtu", f"must be 0 or between {MTU_MIN} and {MTU_MAX}, not {mtu}", hint)
    return mtu


def _label(fields: Fields) -> str:
    label = fields.string("selinuxContext")
    if "\0" in label:
        raise fields.error("selinuxContext", "contains a NUL character", "write it as `ps -Z` prints it")
    return label
