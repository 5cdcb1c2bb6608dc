"""The configuration of ptp: read, checked, turned into one frozen value.

One rule: nothing here touches the kernel, and below here nothing is checked again.
"""

from __future__ import annotations

from attachment.masquerade import options
from attachment.masquerade.options import MasqueradeOptions
from attachment.veth import parse_mtu
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.keys import DNS as DNS_KEY
from cni.keys import INTEGER, IPAM_TYPE, Key
from cni.result import DNS
from process.values import dataclass

_DNS_KEYS = ("nameservers", "domain", "search", "options")
KEYS = (*options.KEYS, Key("mtu", (INTEGER,)), IPAM_TYPE, DNS_KEY)


@dataclass(frozen=True)
class PtpConf:
    """One point-to-point network; `mtu` in bytes, 0 leaves it to the kernel; `ipam_type` is "" for layer 2.

    `dns`, unless None, replaces what IPAM says, be it empty.
    """

    ipam_type: str
    masquerade: MasqueradeOptions | None
    mtu: int
    dns: DNS | None


def parse(conf: NetConf) -> PtpConf:
    """Reads the whole configuration; raises CniError(7) (reference: code 999, its texts).

    Without the key `ipam` the attachment is of layer 2; with the key, but without a type in it, somebody forgot it.
    """
    if conf.fields.has("ipam") and not conf.ipam_type:
        details = '"ipam" has no "type"; for a pair without addresses leave out "ipam"'
        raise CniError(Code.INVALID_NETWORK_CONFIG, "no plugin name provided", details)
    dns = conf.fields.section("dns")
    return PtpConf(
        ipam_type=conf.ipam_type,
        masquerade=options.parse(conf),
        mtu=parse_mtu(conf.fields),
        dns=DNS.from_fields(dns) if any(dns.has(key) for key in _DNS_KEYS) else None,
    )
