"""The configuration of bandwidth: read, checked, turned into one frozen value.

One rule: nothing here touches the kernel, and below here nothing is checked again.
"""

from __future__ import annotations

from cni.address import Network, parse_cidr
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.keys import CIDR, INTEGER, LIST, Key, each, runtime, section
from kernel.traffic import RULES_MAX
from plugins.bandwidth.limit import Limit
from plugins.bandwidth.subnets import EVERYWHERE, Subnets
from process.values import dataclass

_CONTEXT = "failed to parse network configuration"  # the reference's
_RATES = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_SUBNETS = tuple(Key(name, (LIST,), (CIDR,)) for name in ("unshapedSubnets", "shapedSubnets"))
KEYS = (
    *each(INTEGER, *_RATES, "maxBurst"),
    *_SUBNETS,
    runtime(section("bandwidth", *each(INTEGER, *_RATES), *_SUBNETS)),
)
_UINT64_MAX = (1 << 64) - 1
_BURST_BYTES_MAX = (1 << 32) - 1  # the reference's bound: a burst must stay below


@dataclass(frozen=True)
class BandwidthConf:
    """What is asked for: `ingress` limits what the pod receives, `egress` what it sends; None is unlimited.

    `max_burst` is in bits, 0 for none; `subnets` says to and from where the limits hold.
    """

    ingress: Limit | None
    egress: Limit | None
    max_burst: int
    subnets: Subnets = EVERYWHERE

    @property
    def limits(self) -> bool:
        """Tells whether there is anything to do."""
        return bool(self.ingress or self.egress)


def parse(conf: NetConf) -> BandwidthConf:
    """Reads the whole configuration; raises CniError(7) (reference: code 999, its texts).

    Any of the four keys in the configuration itself, be it 0, makes the runtime's count for nothing (reference).
    Subnets are no such key: beside the runtime's rates they hold unless the runtime gives some, too.
    """
    fields = conf.fields.within(_CONTEXT)
    static = any(fields.has(key) for key in _RATES)
    asked = fields if static else fields.section("runtimeConfig").section("bandwidth")
    return BandwidthConf(
        ingress=_limit(asked, "ingressRate", "ingressBurst"),
        egress=_limit(asked, "egressRate", "egressBurst"),
        max_burst=fields.integer("maxBurst", minimum=0, maximum=_UINT64_MAX) or 0,
        subnets=_subnets(asked) or _subnets(fields) or EVERYWHERE,
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


def _subnets(fields: Fields) -> Subnets | None:
    """Returns what subnets are given, None when there are none."""
    unshaped, shaped = (_networks(fields, key) for key in ("unshapedSubnets", "shapedSubnets"))
    if unshaped and shaped:
        msg = "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded"
        raise _wrong(msg, f'"{fields.at("unshapedSubnets")}" exempts subnets, "shapedSubnets" exempts all others')
    return Subnets(unshaped or shaped, only=bool(shaped)) if unshaped or shaped else None


def _networks(fields: Fields, key: str) -> tuple[Network, ...]:
    found: dict[Network, None] = {}  # each once, in order
    for number, text in enumerate(fields.strings(key)):
        try:
            found[parse_cidr(text).network] = None
        except ValueError:
            hint = 'write it like "10.0.0.0/8" or "fd00::/64"'
            raise fields.error(f"{key}[{number}]", f'is not a subnet: "{text}"', hint) from None
    if len(found) > RULES_MAX:
        raise fields.error(key, f"must not have more than {RULES_MAX} subnets, not {len(found)}", "unite some of them")
    return tuple(found)


def _wrong(msg: str, details: str) -> CniError:
    """Returns the error in the reference's words, which do not name the key."""
    return CniError(Code.INVALID_NETWORK_CONFIG, msg, details)
