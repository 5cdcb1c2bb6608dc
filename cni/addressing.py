"""What IPAM plugins read alike: their section, its routes, the addresses asked for; and what a result can hold.

One rule: an address that is asked for is a text with its place here; whether it needs a prefix is each plugin's own.
"""

from __future__ import annotations

from typing import NamedTuple

from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from cni.result import Route, route_from_fields
from cni.versions import at_least


class RequestedIP(NamedTuple):
    """One address that is asked for, as written, and the place where it stands, for error texts."""

    where: str
    text: str


def ipam_section(conf: NetConf, kind: str) -> Fields:
    """Returns the `ipam` object of a plugin named `kind`; CniError(7) without one (text of the reference)."""
    ipam = conf.fields.nested("ipam")
    if ipam is None:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            "IPAM config missing 'ipam' key",
            f'give the network an object "ipam" of type {kind}',
        )
    return ipam


def routes(ipam: Fields) -> tuple[Route, ...]:
    """Returns the routes of the section as they stand; raises CniError(7)."""
    found = ipam.objects("routes")
    for item in found:
        if not item.has("dst"):
            raise item.error("dst", "is missing", 'a route needs its destination: "0.0.0.0/0" or "::/0" is the default')
    return tuple(map(route_from_fields, found))


def requested_ips(conf: NetConf) -> tuple[tuple[RequestedIP, ...], tuple[RequestedIP, ...]]:
    """Returns what `args.cni.ips` asks for, and what `runtimeConfig.ips` (capability `ips`) does; CniError(7)."""
    if not (conf.fields.has("args") or conf.fields.has("runtimeConfig")):  # as with most pods
        return (), ()
    return _requests(conf.cni_args, "args.cni.ips"), _requests(conf.runtime_config, "runtimeConfig.ips")


def supports_multiple(conf: NetConf) -> bool:
    """Tells whether a result of the configuration's version can hold several addresses of a family."""
    return at_least(conf.version, "0.3.0")


def refuse_multiple(families: list[int], conf: NetConf, cure: str) -> None:
    """Refuses what a result of CNI 0.1.0 or 0.2.0 cannot hold: two addresses of one family. Raises CniError(7)."""
    if len(families) > len(set(families)) and not supports_multiple(conf):
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f"CNI version {conf.cni_version} does not support more than 1 address per family",
            f"use cniVersion 0.3.0 or later, or {cure}",
        )


def _requests(fields: Fields, path: str) -> tuple[RequestedIP, ...]:
    return tuple(RequestedIP(f'"{path}[{i}]"', text) for i, text in enumerate(fields.strings("ips")))
