"""Repair: what others take away from a living attachment without touching its interface.

One rule: whose frames pass is decided by the result of ADD, never by what the interface in the pod is like by now: who
is root there may have changed it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment import forwarding
from attachment.repair import repair_if_missing
from cni.address import parse_mac
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import CniError, Code, run_all
from cni.result import Interface, Result
from kernel import link
from kernel.rtnl import Socket
from plugins.bridge import mac_spoof, netfilter
from plugins.bridge.conf import BridgeConf

_INCOMPLETE = "the cached result is of another plugin, or of an old CNI version: create the container again"


def repair(args: CmdArgs, conf: NetConf, own: BridgeConf, prev_result: Result) -> None:
    """Makes what is missing of rules and settings; tries all of it. Raises CniError."""
    versions = sorted({ip.address.version for ip in prev_result.ips}) if own.is_gateway else []
    steps: list[Callable[[], object]] = [
        partial(
            repair_if_missing, "forwarding", partial(forwarding.check, version), partial(forwarding.enable, version)
        )
        for version in versions
    ]
    if own.masquerade:
        steps.append(partial(own.masquerade.repair, args, conf, prev_result))
    if own.mac_spoof_check:
        steps.append(partial(_protect, args, conf.name, own, prev_result))
    asked = partial(netfilter.check, own), partial(netfilter.ensure, own)
    run_all(*steps, partial(repair_if_missing, "the setting of bridged frames", *asked))


def _protect(args: CmdArgs, network: str, own: BridgeConf, prev_result: Result) -> None:
    outside, inside = _ends(args, own, prev_result)
    attachment = network, args.container_id, args.ifname, outside.name, parse_mac(inside.mac)
    repair_if_missing(
        "the MAC spoof check", partial(mac_spoof.check, *attachment), partial(mac_spoof.protect, *attachment)
    )


def _ends(args: CmdArgs, own: BridgeConf, prev_result: Result) -> tuple[Interface, Interface]:
    """Returns both ends as the result names them, the host's being there; raises CniError(999)."""
    inside = next((item for item in prev_result.interfaces if item.name == args.ifname and item.sandbox), None)
    if inside is None or not inside.mac:
        raise CniError(Code.INTERNAL, f"the result of ADD names no {args.ifname} with its address", _INCOMPLETE)
    with Socket() as host:
        for item in prev_result.interfaces:
            if not item.sandbox and item.name != own.bridge:
                (found,) = link.get(host, link.by_name_request(item.name))
                if found and found.kind == "veth" and found.mac == item.mac and found.master:
                    return item, inside
    raise CniError(Code.INTERNAL, "no interface on this host is the one that the result of ADD names", _INCOMPLETE)
