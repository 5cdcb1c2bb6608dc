"""Parses and validates the configuration of macvlan into a frozen MacvlanConf.

All functions are pure. The other modules of the plugin do not validate the configuration again.
"""

from __future__ import annotations

from attachment import conflict_detection, container_interface, host_access, master, requested_mac
from attachment.master import MasterOptions
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import invalid_conf
from cni.keys import DNS as DNS_KEY
from cni.keys import INTEGER, IPAM_TYPE, MAC, STRING, Key, runtime_config
from cni.result import DNS
from process.values import dataclass

MODES = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}  # MACVLAN_MODE_*, linux/if_link.h
_UINT32_MAX = (1 << 32) - 1

KEYS = (
    *master.KEYS,
    Key("mode", (STRING,), choices=tuple(sorted(MODES))),
    MAC,
    Key("bcqueuelen", (INTEGER,)),
    conflict_detection.KEY,
    host_access.KEY,
    IPAM_TYPE,
    DNS_KEY,
    runtime_config(MAC),
)


@dataclass(frozen=True)
class MacvlanConf:
    """The configuration of macvlan: `mode` is one of MODES; with `mac` b"" the kernel chooses a MAC address.

    `ipam_type` is "" for an interface without addresses. `bcqueuelen` is the length of the queue for broadcast and
    multicast packets, 0 for the kernel's default. `dns`, unless None, replaces the DNS settings of the IPAM result.
    """

    master: MasterOptions
    mode: str
    mac: bytes
    bcqueuelen: int
    ipam_type: str
    dns: DNS | None
    host_access: bool
    conflict_detection: bool


def parse(args: CmdArgs, net_conf: NetConf) -> MacvlanConf:
    """Returns the validated configuration; raises CniError(7), and CniError(4) for CNI_ARGS.

    The reference plugin has code 999 for both.
    """
    fields = net_conf.fields
    mode = fields.string("mode") or "bridge"
    if mode not in MODES:
        raise invalid_conf(f'unknown macvlan mode: "{mode}"', f'set "mode" to one of {", ".join(sorted(MODES))}')
    conf = MacvlanConf(
        master=master.parse(fields),
        mode=mode,
        mac=requested_mac.parse(args, net_conf, "macvlan"),
        bcqueuelen=fields.integer("bcqueuelen", minimum=0, maximum=_UINT32_MAX) or 0,
        ipam_type=net_conf.ipam_type,
        dns=container_interface.parse_dns(net_conf),
        host_access=fields.boolean(host_access.KEY.name),
        conflict_detection=fields.boolean(conflict_detection.KEY.name),
    )
    if conf.host_access:
        _refuse_host_access(conf)
    return conf


def _refuse_host_access(conf: MacvlanConf) -> None:
    """Raises CniError(7) for a mode or another key with which the host cannot reach the pod."""
    reason = ""
    if conf.mode == "passthru":
        reason = 'mode "passthru" gives the pod the whole master'
    elif conf.mode != "bridge":
        reason = f'interfaces of mode "{conf.mode}" do not reach other interfaces on the same master'
    host_access.refuse_impossible(conf.master, conf.ipam_type, reason)
