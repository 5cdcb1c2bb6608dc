"""The configuration of static: typed values, or an error that names the key.

One rule: no I/O. Addresses of runtimeConfig replace those of `args`, which replace those of "ipam" and CNI_ARGS.
"""

from __future__ import annotations

from cni import addressing
from cni.address import Address, Cidr, parse_cidr, parse_ip
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.keys import CIDR, IP, IPS, LIST, OBJECT, ROUTES, Key, args_cni, runtime_config, section
from cni.keys import DNS as DNS_KEY
from cni.result import DNS, IPConfig, Route
from process.values import dataclass, replace

KEYS = (
    section(
        "ipam",
        Key("addresses", (LIST,), (OBJECT,), (Key("address", (CIDR,)), Key("gateway", (IP,)))),
        ROUTES,
        DNS_KEY,
    ),
    args_cni(IPS),
    runtime_config(IPS),
)

_NO_ADDRESS = "the 'address' field is expected to be in CIDR notation"
_NO_IP = "the 'ip' field is expected to be in CIDR notation"
_NO_ENTRY = "an entry in the 'ips' field is NOT in CIDR notation"


@dataclass(frozen=True)
class StaticConf:
    """The result of ADD. `is_final` is false if the runtime may choose the addresses and sends none."""

    ips: tuple[IPConfig, ...]
    routes: tuple[Route, ...]
    dns: DNS
    is_final: bool


def parse(net_conf: NetConf, args: CmdArgs) -> StaticConf:
    """Returns the validated configuration; raises CniError(7), CniError(4) for CNI_ARGS.

    The order of the checks is the reference plugin's.
    """
    ipam = addressing.ipam_section(net_conf, "static")
    entries = [(item.string("address"), item.path("address"), item.ip("gateway")) for item in ipam.objects("addresses")]
    routes, dns = addressing.routes(ipam), DNS.from_fields(ipam.section("dns"))
    env = _from_cni_args(args)
    by_args, by_runtime = (
        tuple(IPConfig(_cidr(text, where, _NO_ENTRY)) for where, text in items)
        for items in addressing.requested_ips(net_conf)
    )
    ips = by_runtime or by_args
    if not ips:
        ips = (*(IPConfig(_cidr(text, f'"{at}"', _NO_ADDRESS), gateway) for text, at, gateway in entries), *env)
    addressing.refuse_multiple(
        [ip.address.version for ip in ips], net_conf, "remove all but one address of each family"
    )
    return StaticConf(
        ips, routes, dns, is_final=bool(by_runtime) or not net_conf.fields.section("capabilities").boolean("ips")
    )


def _from_cni_args(args: CmdArgs) -> tuple[IPConfig, ...]:
    """Returns the addresses of CNI_ARGS, each with the last GATEWAY in its subnet."""
    env = args.cni_args("IP", "GATEWAY")
    items = _split(env.get("IP", ""))
    ips = tuple(IPConfig(_cidr(item, "IP= in CNI_ARGS", _NO_IP, Code.INVALID_ENVIRONMENT)) for item in items)
    for gateway in map(_gateway, _split(env.get("GATEWAY", ""))):
        ips = tuple(replace(ip, gateway=gateway) if gateway in ip.address.network else ip for ip in ips)
    return ips


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text else []


def _gateway(text: str) -> Address:
    try:
        return parse_ip(text)
    except ValueError:
        raise CniError(
            Code.INVALID_ENVIRONMENT,
            f"invalid gateway address: {text}",
            "write it like GATEWAY=10.1.2.1 or GATEWAY=10.1.2.1,fd00:12::1, without prefix lengths",
        ) from None


def _cidr(text: str, where: str, problem: str, code: Code = Code.INVALID_NETWORK_CONFIG) -> Cidr:
    try:
        return parse_cidr(text)
    except ValueError:
        raise CniError(code, f"{problem}, got: '{text}'", _hint(text, where)) from None


def _hint(text: str, where: str) -> str:
    """Returns the fix. The most frequent mistake is a missing prefix length, which host-local permits."""
    try:
        address = parse_ip(text)
    except ValueError:
        return f'{where} must be an address with the prefix length of its subnet, like "10.1.2.5/24"'
    length = 24 if address.version == 4 else 64
    return (
        f"{where} lacks the prefix length of its subnet: write {address}/{length} if the subnet is a /{length}, "
        "in the network's configuration or in the pod's annotation that requests the address"
    )
