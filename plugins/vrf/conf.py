"""Parses and validates the configuration of vrf into a frozen VrfConf. All functions are pure."""

from __future__ import annotations

from cni.args import is_interface_name
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.keys import INTEGER, STRING, Key
from process.values import dataclass

KEYS = (Key("vrfname", (STRING,)), Key("table", (INTEGER,)))
_UINT32_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class VrfConf:
    """The configuration of vrf: the name of the VRF device, and its routing table, 0 to choose one."""

    name: str
    table: int


def parse(net_conf: NetConf) -> VrfConf:
    """Parses the configuration; raises CniError(7), for a missing name with the text of the reference (code 999)."""
    name = net_conf.fields.string("vrfname")
    table = net_conf.fields.integer("table", minimum=0, maximum=_UINT32_MAX) or 0
    if not name:
        details = '"vrfname" names the VRF device in the pod: "vrfname": "blue"'
        raise invalid_conf("configuration is expected to have a valid vrf name", details)
    if not is_interface_name(name):
        details = "at most 15 bytes, without slash, colon and spaces"
        raise net_conf.fields.error("vrfname", f"is not a valid interface name: {name}", details)
    return VrfConf(name, table)


def lenient_name(net_conf: NetConf) -> str:
    """Returns the name of the VRF device, "" if the configuration has no valid one: then ADD created none."""
    try:
        name = net_conf.fields.string("vrfname")
    except CniError:
        return ""
    return name if is_interface_name(name) else ""
