"""The configuration of bandwidth: read, checked, turned into one frozen value.

One rule: nothing here touches the kernel, and below here nothing is checked again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from plugins.bandwidth.limit import Limit

_CONTEXT = "failed to parse network configuration"  # the reference's
_KEYS = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_UINT64_MAX = (1 << 64) - 1
_BURST_BYTES_MAX = (1 << 32) - 1  # the reference's bound: a burst must stay below


@dataclass(frozen=True)
class BandwidthConf:
    """What is asked for: `ingress` limits what the pod receives, `egress` what it sends; None is unlimited.

    `max_burst` is in bits, 0 for none.
    """

    ingress: Limit | None
    egress: Limit | None
    max_burst: int

    @property
    def limits(self) -> bool:
        """Tells whether there is anything to do."""
        return bool(self.ingress or self.egress)


def parse(conf: NetConf) -> BandwidthConf:
    """Reads the whole configuration; raises CniError(7) (reference: code 999, its texts).

    Any of the four keys in the configuration itself, be it 0, makes the runtime's count for nothing (reference).
    """
    fields = conf.fields.within(_CONTEXT)
    static = any(fields.has(key) for key in _KEYS)
    asked = fields if static else fields.section("runtimeConfig").section("bandwidth")
    return BandwidthConf(
        ingress=_limit(asked, "ingressRate", "ingressBurst"),
        egress=_limit(asked, "egressRate", "egressBurst"),
        max_burst=fields.integer("maxBurst", minimum=0, maximum=_UINT64_MAX) or 0,
    )


def _limit(fields: Fields, rate_key: str, burst_key: str) -> Limit | None:
    rate, burst = (fields.integer(key, minimum=0, maximum=_UINT64_MAX) or 0 for key in (rate_key, burst_key))
    if rate and not burst:
        hint = f'"{fields.at(burst_key)}" is missing or 0; a tenth of "{rate_key}" is a good burst (both in bits)'
        raise _wrong("if rate is set, burst must also be set", hint)
    if burst and not rate:
        raise _wrong("if burst is set, rate must also be set", f'"{fields.at(rate_key)}" is missing or 0')
    if burst // 8 >= _BURST_BYTES_MAX:
        hint = f'"{fields.at(burst_key)}" is {burst} bits; it must be below {8 * _BURST_BYTES_MAX}'
        raise _wrong("burst cannot be more than 4GB", hint)
    if 0 < rate < 8:
        raise fields.error(rate_key, f"must be 0 or at least 8, not {rate}", "it is in bits per second")
    return Limit(rate, burst) if rate else None


def _wrong(msg: str, details: str) -> CniError:
    """Returns the error in the reference's words, which do not name the key."""
    return CniError(Code.INVALID_NETWORK_CONFIG, msg, details)
