"""The configuration of sbr: keys, parsing, a frozen dataclass.

One rule: no I/O; values are checked here and nowhere else.
"""

from __future__ import annotations

from cni.address import Address, parse_ip
from cni.conf import NetConf
from cni.errors import CniError, invalid_conf
from cni.keys import BOOLEAN, INTEGER, IP, LIST, Key
from process.values import dataclass

KEYS = (Key("table", (INTEGER,)), Key("gateways", (LIST,), (IP,)), Key("addSourceHints", (BOOLEAN,)))

_CONTEXT = "failed to parse network configuration"  # the reference plugin's text
_MAX_TABLE = (1 << 32) - 1
_MAX_GATEWAYS = 2
_ONE_EACH = "list at most one IPv4 and one IPv6 address"


@dataclass(frozen=True)
class SbrConf:
    """The parsed configuration.

    `table` is the number of an existing table, None if sbr fills tables of its own; `gateways` has at most one address
    of each IP version; with `add_source_hints` the subnets' routes stay in table main, too.
    """

    table: int | None = None
    gateways: tuple[Address, ...] = ()
    add_source_hints: bool = False

    def gateway(self, version: int) -> Address | None:
        """Returns the configured gateway of IP `version`, None without one."""
        return next((item for item in self.gateways if item.version == version), None)


def parse(net_conf: NetConf) -> SbrConf:
    """Reads the whole configuration; raises CniError(7) with the reference plugin's texts (its code is 999)."""
    fields = net_conf.fields.with_context(_CONTEXT)
    return SbrConf(
        table=fields.integer("table", minimum=1, maximum=_MAX_TABLE),
        gateways=_gateways(fields.strings("gateways")),
        add_source_hints=fields.boolean("addSourceHints"),
    )


def lenient_table(net_conf: NetConf) -> int | None:
    """Returns the key `table`, None if it is invalid: DEL removes what it can."""
    try:
        return net_conf.fields.integer("table", minimum=1, maximum=_MAX_TABLE)
    except CniError:
        return None


def _gateways(texts: tuple[str, ...]) -> tuple[Address, ...]:
    if len(texts) > _MAX_GATEWAYS:
        raise _error("gateways list cannot contain more than 2 entries (one IPv4, one IPv6)")
    gateways: dict[int, Address] = {}
    for text in texts:
        try:
            gateway = parse_ip(text)
        except ValueError:
            raise _error(f"invalid static gateway IP address: {text}") from None
        if gateway.is_unspecified:
            raise _error(f"invalid static gateway IP address: {text}")
        if first := gateways.get(gateway.version):
            raise _error(f"gateways list contains multiple IPv{gateway.version} addresses: {first} and {gateway}")
        gateways[gateway.version] = gateway
    return tuple(gateways.values())


def _error(msg: str) -> CniError:
    return invalid_conf(msg, f'"gateways": {_ONE_EACH}')
