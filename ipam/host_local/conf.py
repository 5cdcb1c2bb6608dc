"""The configuration of host-local, parsed: typed values or an error that names the key.

One rule: pure. What DEL and GC need (`data_dir`) can be read although everything else is broken, so that an edited
configuration never keeps an address from being released.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface

from cni import addressing
from cni.address import Address, Interface, parse_cidr, parse_ip, with_prefix
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
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
    ),
    args_cni(IPS),
    runtime_config(Key("ipRanges", (LIST,), (LIST,), _RANGE), IPS),
)


@dataclass(frozen=True)
class HostLocalConf:
    """What ADD needs: one address of each range set, in order, `requested` ones where they lie in a set."""

    data_dir: str
    range_sets: tuple[RangeSet, ...]
    requested: tuple[Address, ...]
    routes: tuple[Route, ...]
    resolv_conf: str


def parse(conf: NetConf, args: CmdArgs) -> HostLocalConf:
    """Reads and validates all of it, in the reference's order; raises CniError(7), CniError(4) for CNI_ARGS."""
    ipam = addressing.ipam_section(conf, "host-local")
    requested = _requested(conf, args)
    sets = range_sets(conf)
    if not sets:
        raise _invalid(
            "no IP ranges specified",
            'set "ranges" or "subnet" in "ipam"; a runtime that chooses the ranges sends "runtimeConfig.ipRanges"',
        )
    check_families(sets, conf)
    _check_overlaps(sets)
    return HostLocalConf(
        data_dir=data_dir(conf),
        range_sets=sets,
        requested=requested,
        routes=addressing.routes(ipam),
        resolv_conf=ipam.string("resolvConf"),
    )


def data_dir(conf: NetConf) -> str:
    """Returns the directory in which each network has its store; raises CniError(7) for what is no path."""
    ipam = conf.fields.section("ipam")
    path = ipam.string("dataDir") or DATA_DIR
    if "\0" in path:
        raise ipam.error("dataDir", "must not contain a NUL character")
    return path


def range_sets(conf: NetConf) -> tuple[RangeSet, ...]:
    """Returns the range sets in the order that numbers them: the runtime's, the old single range, `ranges`.

    Raises CniError(7), "invalid range set N: ...".
    """
    sets = []
    for number, items in enumerate(_raw_sets(conf)):
        try:
            sets.append(_range_set(items))
        except CniError as error:
            raise error.prefixed(f"invalid range set {number}: ") from None
    return tuple(sets)


def gateways(conf: NetConf) -> Iterator[Iterator[Interface]]:
    """Yields the gateways of each range set, with the prefixes of their subnets; raises CniError(7).

    A range is read when its gateway is asked for, since a set may have thousands.
    """
    for items in _raw_sets(conf):
        yield (
            with_prefix(item.gateway, item.subnet.prefixlen)
            for item in map(_range, items)
            if item.gateway.version == item.subnet.version
        )


def check_families(sets: tuple[RangeSet, ...], conf: NetConf) -> None:
    """Refuses what a result of CNI 0.1.0 or 0.2.0 cannot hold: two addresses of one family. Raises CniError(7)."""
    addressing.refuse_multiple([item.version for item in sets], conf, "put the ranges into one set")


def _raw_sets(conf: NetConf) -> tuple[tuple[Fields, ...], ...]:
    ipam = conf.fields.section("ipam")
    raw = conf.runtime_config.object_lists("ipRanges") if conf.fields.has("runtimeConfig") else ()
    if ipam.has("subnet"):
        raw += ((ipam,),)
    return raw + ipam.object_lists("ranges")


def _check_overlaps(sets: tuple[RangeSet, ...]) -> None:
    """Refuses sets that have an address in common, and names the first two in the reference's order of comparison."""
    at = first_overlap([item for one in sets for item in one.ranges])
    if at is None:
        return
    numbers = [number for number, one in enumerate(sets) for _ in one.ranges]
    i = numbers[at]
    j = next(j for j in range(i + 1, len(sets)) if sets[i].overlaps(sets[j]))
    raise _invalid(f"range set {i} overlaps with {j}", f"{sets[i]} and {sets[j]}")


def _requested(conf: NetConf, args: CmdArgs) -> tuple[Address, ...]:
    """Returns the addresses asked for, each once, in the order CNI_ARGS, args, capability.

    CNI_ARGS does not count when args has the same thing (CONVENTIONS.md, "CNI_ARGS"); the reference adds them up.
    """
    env = args.cni_args("IP")
    from_args, from_runtime = addressing.requested_ips(conf)
    wanted: dict[Address, None] = {}
    if "IP" in env and not from_args:
        try:
            wanted[_bare_ip(env["IP"])] = None
        except ValueError:
            raise CniError(
                Code.INVALID_ENVIRONMENT,
                f'ARGS: error parsing value of pair "IP={env["IP"]}": invalid IP address {env["IP"]}',
                "CNI_ARGS takes IP=10.1.2.50 or IP=10.1.2.50/24",
            ) from None
    for where, text in from_args + from_runtime:
        try:
            wanted[_bare_ip(text)] = None
        except ValueError:
            raise _invalid(f"invalid IP address {text} in {where}", 'write it like "10.1.2.50"') from None
    return tuple(wanted)


def _bare_ip(text: str) -> Address:
    return parse_cidr(text).ip if "/" in text else parse_ip(text)


def _range_set(items: tuple[Fields, ...]) -> RangeSet:
    if not items:
        raise _invalid("empty range set", "a set is a list of at least one object with a subnet")
    ranges = tuple(_range(item) for item in items)
    if len({item.subnet.version for item in ranges}) > 1:
        raise _invalid("mixed address families", "an attachment gets one address of each set: make it two sets")
    at = first_overlap(ranges)
    if at is not None:
        other = next(item for item in ranges[at + 1 :] if overlap(ranges[at], item))
        raise _invalid(f"subnets {ranges[at]} and {other} overlap")
    return RangeSet(ranges)


def _range(fields: Fields) -> Range:
    """Reads one range object and fills in its defaults (reference: Range.Canonicalize)."""
    where = f'in "{fields.path("subnet")}"'
    given = fields.cidr("subnet")
    if given is None:
        raise _invalid("IP <nil> not v4 nor v6", f'"{fields.path("subnet")}" is missing')
    if given.network.prefixlen > given.max_prefixlen - 2:
        raise _invalid(f"Network {given} too small to allocate from", where)
    if isinstance(given, IPv4Interface) and ":" in fields.string("subnet"):
        raise _invalid("IPNet IP and Mask version mismatch", f"{where}: write an IPv4 subnet with dots")
    subnet = given.network
    base = int(subnet.network_address)
    if base != int(given):
        raise _invalid(
            "Network has host bits set. "
            f"For a subnet mask of length {subnet.prefixlen} the network address is {subnet.network_address}",
            where,
        )
    top = base | (1 << subnet.max_prefixlen - subnet.prefixlen) - 1
    gateway, start, end = fields.ip("gateway"), fields.ip("rangeStart"), fields.ip("rangeEnd")
    for key, bound in (("RangeStart", start), ("RangeEnd", end)):
        if bound is not None and bound not in subnet:
            raise _invalid(f"{key} {bound} not in network {subnet}", where)
    if start is not None and end is not None and start > end:  # type: ignore[operator] # one family: both in subnet
        raise _invalid(f"RangeStart {start} not in network {subnet}", f"it lies behind the rangeEnd {end}")
    first = base + 1 if start is None else int(start)
    last = int(end) if end is not None else top - 1 if subnet.version == 4 else top  # IPv4: not the broadcast
    if first > last:
        raise _invalid(f"RangeStart {start or first} not in network {subnet}", "it lies behind the last address")
    return Range(subnet, first, last, gateway or subnet.network_address + 1)


def _invalid(msg: str, details: str = "") -> CniError:
    return CniError(Code.INVALID_NETWORK_CONFIG, msg, details)
