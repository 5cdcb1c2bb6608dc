"""Parses and validates the configuration of ipvlan into a frozen IpvlanConf.

All functions are pure. The other modules of the plugin do not validate the configuration again.
"""

from __future__ import annotations

from attachment import conflict_detection, container_interface, host_access, master
from attachment.master import MasterOptions
from cni.conf import NetConf
from cni.errors import invalid_conf
from cni.keys import DNS as DNS_KEY
from cni.keys import IPAM_TYPE, STRING, Key
from cni.result import DNS, Result
from process.values import dataclass, replace

MODES = {"l2": 0, "l3": 1, "l3s": 2}  # IPVLAN_MODE_*, linux/if_link.h

KEYS = (
    *master.KEYS,
    Key("mode", (STRING,), choices=tuple(MODES)),
    conflict_detection.KEY,
    host_access.KEY,
    IPAM_TYPE,
    DNS_KEY,
)


@dataclass(frozen=True)
class IpvlanConf:
    """The configuration of ipvlan: `mode` is one of MODES.

    `dns`, unless None, replaces the DNS settings of IPAM or prevResult.
    """

    master: MasterOptions
    mode: str
    dns: DNS | None
    host_access: bool
    conflict_detection: bool


def parse(net_conf: NetConf) -> IpvlanConf:
    """Returns the validated configuration; raises CniError(7) with the reference plugin's texts (its code is 999).

    Without the key `ipam` the interface has the addresses of prevResult, or none; `ipam` without a type is an error.
    """
    fields = net_conf.fields
    container_interface.refuse_untyped_ipam(net_conf)
    mode = fields.string("mode") or "l2"
    if mode not in MODES:
        raise invalid_conf(f'unknown ipvlan mode: "{mode}"', f'set "mode" to one of {", ".join(MODES)}')
    conf = IpvlanConf(
        master=master.parse(fields),
        mode=mode,
        dns=container_interface.parse_dns(net_conf),
        host_access=fields.boolean(host_access.KEY.name),
        conflict_detection=fields.boolean(conflict_detection.KEY.name),
    )
    if conf.host_access:
        host_access.refuse_impossible(conf.master, net_conf.ipam_type)
    if conf.conflict_detection and mode != "l2":
        msg = f'"conflictDetection" is not possible: in mode "{mode}" pods do not use ARP'
        raise invalid_conf(msg, 'remove "conflictDetection", or use mode "l2"')
    if net_conf.ipam_type == "dhcp" and mode != "l2":
        msg = f'"ipam" of type dhcp is not possible in mode "{mode}": pods share one MAC address and get no broadcasts'
        raise invalid_conf(msg, 'use mode "l2", or macvlan')
    return conf


def with_chained_master(conf: IpvlanConf, prev_result: Result | None) -> IpvlanConf:
    """Returns the configuration for ADD: the master of a chained ipvlan is the only interface of prevResult.

    The key `master` takes precedence. Raises CniError(7) if prevResult has no interface or several.
    """
    if conf.master.name or prev_result is None:
        return conf
    names = [item.name for item in prev_result.interfaces]
    if len(names) != 1 or not names[0]:
        msg = "chained master failure. PrevResult lacks a single named interface"
        listed = ", ".join(names) or "none"
        raise invalid_conf(msg, f'set "master": the plugin before ipvlan returned these interfaces: {listed}')
    return replace(conf, master=replace(conf.master, name=names[0]))
