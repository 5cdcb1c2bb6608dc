"""Configuration shared by the IPAM plugins: the `ipam` object, its routes, requested addresses, result limits.

A requested address stays text here, with its path in the configuration; each plugin decides on prefixes.
"""

from __future__ import annotations

from typing import NamedTuple

from cni.conf import NetConf
from cni.errors import invalid_conf
from cni.fields import Fields
from cni.result import Route, route_from_fields
from cni.versions import at_least


class RequestedIP(NamedTuple):
    """A requested address, as written, and its path in the configuration, for error texts."""

    where: str
    text: str


def ipam_section(conf: NetConf, kind: str) -> Fields:
    """Returns the `ipam` object of a plugin named `kind`; CniError(7) without one (text of the reference)."""
    ipam = conf.fields.nested("ipam")
    if ipam is None:
        raise invalid_conf("IPAM config missing 'ipam' key", f'give the network an object "ipam" of type {kind}')
    return ipam


def routes(ipam: Fields) -> tuple[Route, ...]:
    """Returns the routes of the `ipam` object in their order; raises CniError(7)."""
    items = ipam.objects("routes")
    for item in items:
        if not item.has("dst"):
            raise item.error("dst", "is missing", 'a route needs its destination: "0.0.0.0/0" or "::/0" is the default')
    return tuple(map(route_from_fields, items))


def requested_ips(conf: NetConf) -> tuple[tuple[RequestedIP, ...], tuple[RequestedIP, ...]]:
    """Returns the addresses in `args.cni.ips` and those in `runtimeConfig.ips` (capability `ips`); CniError(7)."""
    if not (conf.fields.has("args") or conf.fields.has("runtimeConfig")):  # most pods
        return (), ()
    return _requests(conf.cni_args, "args.cni.ips"), _requests(conf.runtime_config, "runtimeConfig.ips")


def supports_multiple(conf: NetConf) -> bool:
    """Returns whether a result of the configuration's version can hold several addresses of a family."""
    return at_least(conf.version, "0.3.0")


def refuse_multiple(families: list[int], conf: NetConf, fix: str) -> None:
    """Raises CniError(7) for two addresses of one family, which results of CNI 0.1.0 and 0.2.0 cannot hold."""
    if len(families) > len(set(families)) and not supports_multiple(conf):
        raise invalid_conf(
            f"CNI version {conf.cni_version} does not support more than 1 address per family",
            f"use cniVersion 0.3.0 or later, or {fix}",
        )


def _requests(fields: Fields, path: str) -> tuple[RequestedIP, ...]:
    return tuple(RequestedIP(f'"{path}[{i}]"', text) for i, text in enumerate(fields.strings("ips")))
