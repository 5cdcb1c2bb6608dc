"""The configuration of bandwidth: reads and checks it, and returns a frozen dataclass.

One rule: no I/O; values are checked here and nowhere else.
"""

from __future__ import annotations

from cni.address import Network, parse_cidr
from cni.conf import NetConf
from cni.errors import invalid_conf
from cni.fields import Fields
from cni.keys import CIDR, INTEGER, LIST, Key, keys_of_type, runtime_config, section
from kernel.traffic import ADDRESS_FILTERS_MAX
from plugins.bandwidth.limit import Limit
from plugins.bandwidth.subnets import EVERYWHERE, Subnets
from process.values import dataclass

_CONTEXT = "failed to parse network configuration"  # the reference plugin's text
_RATES = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_SUBNETS = tuple(Key(name, (LIST,), (CIDR,)) for name in ("unshapedSubnets", "shapedSubnets"))
KEYS = (
    *keys_of_type(INTEGER, *_RATES, "maxBurst"),
    *_SUBNETS,
    runtime_config(section("bandwidth", *keys_of_type(INTEGER, *_RATES), *_SUBNETS)),
)
_UINT64_MAX = (1 << 64) - 1
_BURST_BYTES_MAX = (1 << 32) - 1  # the reference plugin's limit: a burst must be smaller


@dataclass(frozen=True)
class BandwidthConf:
    """The parsed configuration: `ingress` limits traffic to the pod, `egress` traffic from it; None is unlimited.

    `max_burst` is in bits, 0 for none; `subnets` selects the traffic that is limited.
    """

    ingress: Limit | None
    egress: Limit | None
    max_burst: int
    subnets: Subnets = EVERYWHERE

    @property
    def has_limits(self) -> bool:
        """Whether at least one direction is limited."""
        return bool(self.ingress or self.egress)


def parse(net_conf: NetConf) -> BandwidthConf:
    """Parses the whole configuration; raises CniError(7) with the texts of the reference plugin, which has code 999.

    If the configuration has one of the four keys of rates and bursts, even 0, the runtime's limits are ignored, as in
    the reference plugin. Subnets are separate: the runtime's replace those of the configuration, which otherwise apply
    to the runtime's limits, too.
    """
    fields = net_conf.fields.with_context(_CONTEXT)
    static = any(fields.has(key) for key in _RATES)
    limits = fields if static else fields.section("runtimeConfig").section("bandwidth")
    return BandwidthConf(
        ingress=_limit(limits, "ingressRate", "ingressBurst"),
        egress=_limit(limits, "egressRate", "egressBurst"),
        max_burst=fields.integer("maxBurst", minimum=0, maximum=_UINT64_MAX) or 0,
        subnets=_subnets(limits) or _subnets(fields) or EVERYWHERE,
    )


def _limit(fields: Fields, rate_key: str, burst_key: str) -> Limit | None:
    rate, burst = (fields.integer(key, minimum=0, maximum=_UINT64_MAX) or 0 for key in (rate_key, burst_key))
    if rate and not burst:
        hint = f'"{fields.path(burst_key)}" is missing or 0; a tenth of "{rate_key}" is a good burst (both in bits)'
        raise invalid_conf("if rate is set, burst must also be set", hint)
    if burst and not rate:
        raise invalid_conf("if burst is set, rate must also be set", f'"{fields.path(rate_key)}" is missing or 0')
    if burst // 8 >= _BURST_BYTES_MAX:
        hint = f'"{fields.path(burst_key)}" is {burst} bits; it must be below {8 * _BURST_BYTES_MAX}'
        raise invalid_conf("burst cannot be more than 4GB", hint)
    if 0 < rate < 8:
        raise fields.error(rate_key, f"must be 0 or at least 8, not {rate}", "it is in bits per second")
    return Limit(rate, burst) if rate else None


def _subnets(fields: Fields) -> Subnets | None:
    """Returns the configured subnets, None if there are none."""
    unshaped, shaped = (_networks(fields, key) for key in ("unshapedSubnets", "shapedSubnets"))
    if unshaped and shaped:
        msg = "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded"
        raise invalid_conf(
            msg, f'"{fields.path("unshapedSubnets")}" exempts subnets, "shapedSubnets" exempts all others'
        )
    return Subnets(unshaped or shaped, only=bool(shaped)) if unshaped or shaped else None


def _networks(fields: Fields, key: str) -> tuple[Network, ...]:
    networks: dict[Network, None] = {}  # each once, in order
    for number, text in enumerate(fields.strings(key)):
        try:
            networks[parse_cidr(text).network] = None
        except ValueError:
            hint = 'write it like "10.0.0.0/8" or "fd00::/64"'
            raise fields.error(f"{key}[{number}]", f'is not a subnet: "{text}"', hint) from None
    if len(networks) > ADDRESS_FILTERS_MAX:
        raise fields.error(
            key, f"must not have more than {ADDRESS_FILTERS_MAX} subnets, not {len(networks)}", "merge some of them"
        )
    return tuple(networks)
