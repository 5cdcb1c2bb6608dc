"""Parses the configuration of firewall into a frozen dataclass.

Nothing here touches the kernel, and no other module validates values of the configuration.
"""

from __future__ import annotations

import re
import sys

from attachment import cache
from cni.args import CmdArgs, is_interface_name
from cni.conf import Attachment, NetConf
from cni.errors import invalid_conf
from cni.keys import STRING, Key
from cni.result import Result
from plugins.firewall.spec import OPEN, POLICIES, FirewallSpec
from process.values import dataclass

AUTOMATIC, FIREWALLD, IPTABLES, NFTABLES = "", "firewalld", "iptables", "nftables"
_BACKENDS = (AUTOMATIC, FIREWALLD, IPTABLES, NFTABLES)
KEYS = (
    Key("backend", (STRING,), choices=_BACKENDS[1:]),
    Key("ingressPolicy", (STRING,), choices=POLICIES),
    Key("iptablesAdminChainName", (STRING,)),
    Key("firewalldZone", (STRING,)),
)
_CHAIN_BYTES = 28  # XT_EXTENSION_MAXNAMELEN - 1 (linux/netfilter/x_tables.h)
_CHAIN = re.compile(
    r"""(?!CNI-(FORWARD|ISOLATION-))[^\s"'\\!-][^\s"'\\]*"""
)  # one word for iptables-restore, and not a chain of this plugin
_RESERVED = ("INPUT", "FORWARD", "OUTPUT", "ACCEPT", "DROP", "QUEUE", "RETURN")


@dataclass(frozen=True)
class FirewallConf:
    """The rules of one attachment, and their backend: "" for firewalld if it runs, otherwise the first that works."""

    spec: FirewallSpec
    backend: str


def parse(args: CmdArgs, net_conf: NetConf, prev_result: Result | None) -> FirewallConf:
    """Reads the whole configuration; raises CniError(7) with the reference plugin's texts (there with code 999).

    CNI_ARGS is ignored; CNI_IFNAME only names the owner of the rules.
    """
    fields = net_conf.fields
    policy = fields.string("ingressPolicy") or OPEN
    if policy not in POLICIES:
        details = f'set "ingressPolicy" to one of {", ".join(POLICIES)}'
        raise invalid_conf(f'unknown ingress policy: "{policy}"', details)
    prev_result = prev_result or Result()
    spec = FirewallSpec(
        network=net_conf.name,
        container_id=args.container_id,
        ifname=args.ifname,
        addresses=tuple(dict.fromkeys(ip.address.ip for ip in prev_result.ips)),
        policy=policy,
        bridge=_bridge(policy, prev_result) if prev_result.ips and policy != OPEN else "",
        ports=tuple(
            item.name for item in prev_result.interfaces[1:] if is_interface_name(item.name) and not item.sandbox
        ),
        admin_chain=_admin_chain(net_conf),
        zone=_zone(net_conf),
    )
    return FirewallConf(spec, _backend(net_conf))


def parse_leniently(args: CmdArgs, net_conf: NetConf) -> FirewallSpec:
    """Reads what DEL needs, as far as possible; without prevResult the addresses are those in libcni's cache.

    `bridge` is the interface that a policy would apply to, whatever the policy is.
    """
    prev_result = net_conf.lenient_prev_result() or Result()
    addresses = tuple(dict.fromkeys(ip.address.ip for ip in prev_result.ips))
    if not addresses:
        addresses = cache.read_addresses(net_conf.name, Attachment(args.container_id, args.ifname))
    first = next(iter(prev_result.interfaces), None)
    bridge = first.name if first and not first.sandbox else ""
    zone = net_conf.fields.raw("firewalldZone")
    zone = zone if isinstance(zone, str) and zone and "\0" not in zone else "trusted"
    return FirewallSpec(net_conf.name, args.container_id, args.ifname, addresses, bridge=bridge, zone=zone)


def _backend(net_conf: NetConf) -> str:
    """Returns the backend; an unknown name selects one automatically, as in the reference plugin."""
    name = net_conf.fields.string("backend")
    if name not in _BACKENDS:
        known = ", ".join(_BACKENDS[1:])
        print(f'firewall: "backend" {name!r} is not one of {known}: using the first one that works', file=sys.stderr)
        return AUTOMATIC
    return name


def _admin_chain(net_conf: NetConf) -> str:
    name = net_conf.fields.string("iptablesAdminChainName") or "CNI-ADMIN"
    plain = name.isascii() and name.isprintable() and len(name) <= _CHAIN_BYTES
    if not plain or not _CHAIN.fullmatch(name) or name in _RESERVED:
        hint = f"use 1 to {_CHAIN_BYTES} ASCII characters without spaces, quotes or backslashes, "
        hint += "no - or ! at the start, and no name of iptables or of this plugin"
        raise net_conf.fields.error("iptablesAdminChainName", f'is not a valid name for your chain: "{name}"', hint)
    return name


def _zone(net_conf: NetConf) -> str:
    name = net_conf.fields.string("firewalldZone") or "trusted"
    if "\0" in name:  # D-Bus refuses it in a string
        raise net_conf.fields.error("firewalldZone", f"is not a valid zone name: {name!r}", "remove the NUL character")
    return name


def _bridge(policy: str, prev_result: Result) -> str:
    """Returns the host interface that a policy applies to: the first one in prevResult."""
    demand = (
        f'interface needs to be set for ingress policy "{policy}", make sure to chain "firewall" plugin with "bridge"'
    )
    if not prev_result.interfaces:
        raise invalid_conf(demand, "prevResult names no interface")
    first = prev_result.interfaces[0]
    if not first.name:
        raise invalid_conf("got empty bridge name", demand)
    if not is_interface_name(first.name):  # nftables would truncate it, perhaps to the name of another interface
        details = "it is the first interface in prevResult, and must be one of the host"
        raise invalid_conf(f"no interface can be called {first.name!r}", details)
    if first.sandbox:
        details = f'the first interface in prevResult is "{first.name}" in {first.sandbox}, not one of the host'
        raise invalid_conf(demand, details)
    return first.name
