"""Parses and validates the configuration of ptp into a frozen PtpConf.

All functions are pure. The other modules of the plugin do not validate the configuration again.
"""

from __future__ import annotations

from attachment import auto_mtu
from attachment.container_interface import parse_dns, refuse_untyped_ipam
from attachment.masquerade import options
from attachment.masquerade.options import MasqueradeOptions
from attachment.policy import options as policy_options
from cni.conf import NetConf
from cni.keys import DNS as DNS_KEY
from cni.keys import IPAM_TYPE
from cni.result import DNS
from process.values import dataclass

KEYS = (*options.KEYS, auto_mtu.KEY, policy_options.KEY, IPAM_TYPE, DNS_KEY)


@dataclass(frozen=True)
class PtpConf:
    """The configuration of ptp; `ipam_type` is "" for layer 2.

    `mtu` is in bytes, 0 for the kernel's default; with `mtu_auto` ADD derives it from the host's interfaces. With
    `network_policy` podwire-agent filters the pod's traffic. `dns`, unless None, replaces the DNS settings of the IPAM
    result, even if empty.
    """

    ipam_type: str
    masquerade: MasqueradeOptions | None
    mtu: int
    mtu_auto: bool
    network_policy: bool
    dns: DNS | None


def parse(net_conf: NetConf) -> PtpConf:
    """Parses the configuration; raises CniError(7) with the texts of the reference plugins, which have code 999.

    Without the key `ipam` the attachment is layer 2 only; `ipam` without a type is an error.
    """
    refuse_untyped_ipam(net_conf)
    mtu, is_auto = auto_mtu.parse(net_conf.fields)
    return PtpConf(
        ipam_type=net_conf.ipam_type,
        masquerade=options.parse(net_conf),
        mtu=mtu,
        mtu_auto=is_auto,
        network_policy=policy_options.parse(net_conf),
        dns=parse_dns(net_conf),
    )
