"""The configuration of firewall: read, checked, turned into one frozen value.

One rule: nothing here touches the kernel, and below here nothing is checked again.
"""

from __future__ import annotations

import re
import sys

from attachment import cache
from cni.args import CmdArgs, is_interface_name
from cni.conf import Attachment, NetConf
from cni.errors import CniError, Code
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
)  # one word to iptables-restore, and not ours
_RESERVED = ("INPUT", "FORWARD", "OUTPUT", "ACCEPT", "DROP", "QUEUE", "RETURN")


@dataclass(frozen=True)
class FirewallConf:
    """What is wanted for one attachment, and by which backend: "" for firewalld if it runs, else what works."""

    spec: FirewallSpec
    backend: str


def parse(args: CmdArgs, conf: NetConf, prev_result: Result | None) -> FirewallConf:
    """Reads the whole configuration; raises CniError(7) (reference: code 999, its texts).

    CNI_ARGS are not for this plugin, and CNI_NETNS and CNI_IFNAME tell no more than whose rules they are.
    """
    fields = conf.fields
    policy = fields.string("ingressPolicy") or OPEN
    if policy not in POLICIES:
        details = f'set "ingressPolicy" to one of {", ".join(POLICIES)}'
        raise CniError(Code.INVALID_NETWORK_CONFIG, f'unknown ingress policy: "{policy}"', details)
    prev_result = prev_result or Result()
    spec = FirewallSpec(
        network=conf.name,
        container_id=args.container_id,
        ifname=args.ifname,
        addresses=tuple(dict.fromkeys(ip.address.ip for ip in prev_result.ips)),
        policy=policy,
        bridge=_bridge(policy, prev_result) if prev_result.ips and policy != OPEN else "",
        ports=tuple(
            item.name for item in prev_result.interfaces[1:] if is_interface_name(item.name) and not item.sandbox
        ),
        admin_chain=_chain(conf),
        zone=_zone(conf),
    )
    return FirewallConf(spec, _backend(conf))


def parse_leniently(args: CmdArgs, conf: NetConf) -> FirewallSpec:
    """Returns what DEL needs to know, as far as it can be read; without prevResult libcni's cache tells the addresses.

    `bridge` is the interface that a policy would be about, whatever the policy is.
    """
    try:
        prev_result = conf.prev_result()
    except CniError:
        prev_result = None
    prev_result = prev_result or Result()
    addresses = tuple(dict.fromkeys(ip.address.ip for ip in prev_result.ips))
    if not addresses:
        addresses = cache.read_addresses(conf.name, Attachment(args.container_id, args.ifname))
    first = next(iter(prev_result.interfaces), None)
    bridge = first.name if first and not first.sandbox else ""
    zone = conf.fields.raw("firewalldZone")
    zone = zone if isinstance(zone, str) and zone and "\0" not in zone else "trusted"
    return FirewallSpec(conf.name, args.container_id, args.ifname, addresses, bridge=bridge, zone=zone)


def _backend(conf: NetConf) -> str:
    """Returns the backend; a name that there is none of means any that works, as with the reference."""
    name = conf.fields.string("backend")
    if name not in _BACKENDS:
        known = ", ".join(_BACKENDS[1:])
        print(f'firewall: "backend" {name!r} is none of {known}: taking one that works', file=sys.stderr)
        return AUTOMATIC
    return name


def _chain(conf: NetConf) -> str:
    name = conf.fields.string("iptablesAdminChainName") or "CNI-ADMIN"
    plain = name.isascii() and name.isprintable() and len(name) <= _CHAIN_BYTES
    if not plain or not _CHAIN.fullmatch(name) or name in _RESERVED:
        hint = f"1 to {_CHAIN_BYTES} ASCII characters without blanks, quotes and backslashes, no - or ! in front"
        hint += ", and no name of iptables or of this plugin"
        raise conf.fields.error("iptablesAdminChainName", f'is no name for a chain of yours: "{name}"', hint)
    return name


def _zone(conf: NetConf) -> str:
    name = conf.fields.string("firewalldZone") or "trusted"
    if "\0" in name:  # which D-Bus takes in no text
        raise conf.fields.error("firewalldZone", f"is no name for a zone: {name!r}", "no NUL in it")
    return name


def _bridge(policy: str, prev_result: Result) -> str:
    """Returns the interface of the host that a policy is about: the first one, which an interface plugin made."""
    demand = (
        f'interface needs to be set for ingress policy "{policy}", make sure to chain "firewall" plugin with "bridge"'
    )
    if not prev_result.interfaces:
        raise CniError(Code.INVALID_NETWORK_CONFIG, demand, "prevResult names no interface")
    first = prev_result.interfaces[0]
    if not first.name:
        raise CniError(Code.INVALID_NETWORK_CONFIG, "got empty bridge name", demand)
    if not is_interface_name(first.name):  # nftables would take the beginning of it for another interface's
        details = "it is the first interface in prevResult, and must be one of the host"
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"no interface can be called {first.name!r}", details)
    if first.sandbox:
        details = f'the first interface in prevResult is "{first.name}" in {first.sandbox}, not one of the host'
        raise CniError(Code.INVALID_NETWORK_CONFIG, demand, details)
    return first.name
