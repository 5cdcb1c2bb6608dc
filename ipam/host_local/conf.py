"""The configuration of host-local: typed values, or an error that names the key.

One rule: no I/O. `data_dir`, which DEL and GC need, can be read even if everything else is invalid, so that an edited
configuration never prevents the release of an address.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface

from cni import addressing
from cni.address import Address, Cidr, parse_cidr, parse_ip, with_prefix
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, invalid_conf
from cni.fields import Fields
from cni.keys import CIDR, IP, IPS, LIST, ROUTES, STRING, Key, args_cni, runtime_config, section
from cni.result import Route
from ipam.host_local.ranges import Range, RangeSet, first_overlap, overlap
from process.values import dataclass

DATA_DIR = "/var/lib/cni/networks"

_RANGE = (Key("subnet", (CIDR,)), *(Key(name, (IP,)) for name in ("rangeStart", "rangeEnd", "gateway")))
KEYS = (
    section(
        "ipam",
        Key("ranges", (LIST,), (LIST,), _RANGE),
        *_RANGE,
        ROUTES,
        Key("resolvConf", (STRING,)),
        Key("dataDir", (STRING,)),
        Key("pool", (STRING,)),
    ),
    args_cni(IPS),
    runtime_config(Key("ipRanges", (LIST,), (LIST,), _RANGE), IPS),
)


@dataclass(frozen=True)
class HostLocalConf:
    """A validated configuration; ADD allocates one address of each range set, a `requested` one if one lies in it.

    With a `pool` there are no range sets here: the grants have them (grants.py).
    """

    data_dir: str
    pool: str
    range_sets: tuple[RangeSet, ...]
    requested: tuple[Address, ...]
    routes: tuple[Route, ...]
    resolv_conf: str


def parse(net_conf: NetConf, args: CmdArgs) -> HostLocalConf:
    """Returns the validated configuration; raises CniError(7), CniError(4) for CNI_ARGS.

    The order of the checks is the reference plugin's.
    """
    ipam = addressing.ipam_section(net_conf, "host-local")
    requested = _requested(net_conf, args)
    sets = range_sets(net_conf)
    pool = ipam.string("pool")
    if pool and sets:
        raise ipam.error("pool", "excludes ranges", f'the addresses are those of pool {pool}: remove "ranges"')
    if not (sets or pool):
        raise invalid_conf(
            "no IP ranges specified",
            'set "ranges" or "subnet" in "ipam"; a runtime that chooses the ranges sends "runtimeConfig.ipRanges"',
        )
    check_families(sets, net_conf)
    _check_overlaps(sets)
    return HostLocalConf(
        data_dir=data_dir(net_conf),
        pool=pool,
        range_sets=sets,
        requested=requested,
        routes=addressing.routes(ipam),
        resolv_conf=ipam.string("resolvConf"),
    )


def data_dir(net_conf: NetConf) -> str:
    """Returns the directory that contains the stores of all networks; raises CniError(7) for an invalid path."""
    ipam = net_conf.fields.section("ipam")
    path = ipam.string("dataDir") or DATA_DIR
    if "\0" in path:
        raise ipam.error("dataDir", "must not contain a NUL character")
    return path


def range_sets(net_conf: NetConf) -> tuple[RangeSet, ...]:
    """Returns the range sets in the order of their numbers: "ipRanges" of runtimeConfig, "subnet", "ranges".

    Raises CniError(7), "invalid range set N: ...".
    """
    sets = []
    for number, items in enumerate(_raw_sets(net_conf)):
        try:
            sets.append(_range_set(items))
        except CniError as error:
            raise error.prefixed(f"invalid range set {number}: ") from None
    return tuple(sets)


def gateways(net_conf: NetConf) -> Iterator[Iterator[Cidr]]:
    """Yields the gateways of each range set, with the prefixes of their subnets; raises CniError(7).

    Parses each range only when the iterator reaches it, since a set may have thousands of ranges.
    """
    for items in _raw_sets(net_conf):
        yield (
            with_prefix(item.gateway, item.subnet.prefixlen)
            for item in map(_range, items)
            if item.gateway.version == item.subnet.version
        )


def check_families(sets: tuple[RangeSet, ...], net_conf: NetConf) -> None:
    """Raises CniError(7) for two sets of one family, which a result of CNI 0.1.0 or 0.2.0 cannot contain."""
    addressing.refuse_multiple([item.version for item in sets], net_conf, "put the ranges of each family into one set")


def _raw_sets(net_conf: NetConf) -> tuple[tuple[Fields, ...], ...]:
    ipam = net_conf.fields.section("ipam")
    raw = net_conf.runtime_config.object_lists("ipRanges") if net_conf.fields.has("runtimeConfig") else ()
    if ipam.has("subnet"):
        raw += ((ipam,),)
    return raw + ipam.object_lists("ranges")


def _check_overlaps(sets: tuple[RangeSet, ...]) -> None:
    """Raises CniError(7) for overlapping sets; names the first two in the order of the reference plugin."""
    index = first_overlap([item for range_set in sets for item in range_set.ranges])
    if index is None:
        return
    set_numbers = [number for number, range_set in enumerate(sets) for _ in range_set.ranges]
    i = set_numbers[index]
    j = next(j for j in range(i + 1, len(sets)) if sets[i].overlaps(sets[j]))
    raise invalid_conf(f"range set {i} overlaps with {j}", f"{sets[i]} and {sets[j]}")


def _requested(net_conf: NetConf, args: CmdArgs) -> tuple[Address, ...]:
    """Returns the requested addresses, each once, in the order CNI_ARGS, args, capability.

    CNI_ARGS is ignored if `args` has addresses (CNI's CONVENTIONS.md, "CNI_ARGS"); the reference plugin combines both.
    """
    env = args.cni_args("IP")
    from_args, from_runtime = addressing.requested_ips(net_conf)
    addresses: dict[Address, None] = {}
    if "IP" in env and not from_args:
        try:
            addresses[_bare_ip(env["IP"])] = None
        except ValueError:
            raise CniError(
                Code.INVALID_ENVIRONMENT,
                f'ARGS: error parsing value of pair "IP={env["IP"]}": invalid IP address {env["IP"]}',
                "CNI_ARGS takes IP=10.1.2.50 or IP=10.1.2.50/24",
            ) from None
    for where, text in from_args + from_runtime:
        try:
            addresses[_bare_ip(text)] = None
        except ValueError:
            raise invalid_conf(f"invalid IP address {text} in {where}", 'write it like "10.1.2.50"') from None
    return tuple(addresses)


def _bare_ip(text: str) -> Address:
    return parse_cidr(text).ip if "/" in text else parse_ip(text)


def _range_set(items: tuple[Fields, ...]) -> RangeSet:
    if not items:
        raise invalid_conf("empty range set", "each range set is a list of at least one object with a subnet")
    ranges = tuple(_range(item) for item in items)
    if len({item.subnet.version for item in ranges}) > 1:
        raise invalid_conf(
            "mixed address families",
            "put IPv4 and IPv6 subnets into two sets: an attachment gets one address of each set",
        )
    index = first_overlap(ranges)
    if index is not None:
        other = next(item for item in ranges[index + 1 :] if overlap(ranges[index], item))
        raise invalid_conf(f"subnets {ranges[index]} and {other} overlap")
    return RangeSet(ranges)


def _range(fields: Fields) -> Range:
    """Returns the range of one range object, with its defaults (the reference plugin's Range.Canonicalize)."""
    where = f'in "{fields.path("subnet")}"'
    cidr = fields.cidr("subnet")
    if cidr is None:
        raise invalid_conf("IP <nil> not v4 nor v6", f'"{fields.path("subnet")}" is missing')
    if cidr.network.prefixlen > cidr.max_prefixlen - 2:
        raise invalid_conf(f"Network {cidr} too small to allocate from", where)
    if isinstance(cidr, IPv4Interface) and ":" in fields.string("subnet"):
        raise invalid_conf("IPNet IP and Mask version mismatch", f"{where}: write an IPv4 subnet with dots")
    subnet = cidr.network
    base = int(subnet.network_address)
    if base != int(cidr):
        raise invalid_conf(
            "Network has host bits set. "
            f"For a subnet mask of length {subnet.prefixlen} the network address is {subnet.network_address}",
            where,
        )
    top = base | (1 << subnet.max_prefixlen - subnet.prefixlen) - 1
    gateway, start, end = fields.ip("gateway"), fields.ip("rangeStart"), fields.ip("rangeEnd")
    for key, bound in (("RangeStart", start), ("RangeEnd", end)):
        if bound is not None and bound not in subnet:
            raise invalid_conf(f"{key} {bound} not in network {subnet}", where)
    if start is not None and end is not None and start > end:  # type: ignore[operator] # one family: both in subnet
        raise invalid_conf(f"RangeStart {start} not in network {subnet}", f"it lies after the rangeEnd {end}")
    first = base + 1 if start is None else int(start)
    last = int(end) if end is not None else top - 1 if subnet.version == 4 else top  # IPv4: not the broadcast
    if first > last:
        raise invalid_conf(f"RangeStart {start or first} not in network {subnet}", "it lies after the last address")
    return Range(subnet, first, last, gateway or subnet.network_address + 1)
