"""Repair: restores rules and settings that other programs removed from a running attachment.

The MAC spoof check permits the MAC address that the result of ADD lists. The interface's current MAC address proves
nothing: root in the pod can change it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attachment import forwarding
from attachment.policy import options as policy
from attachment.policy.port_guard import BRIDGE
from attachment.prev_result import RECREATE_HINT
from attachment.repair import repair_if_missing
from cni.address import parse_mac
from cni.args import CmdArgs
from cni.conf import NetConf
from cni.errors import internal, run_all
from cni.result import Interface, Result
from kernel import link
from kernel.rtnl import Socket
from plugins.bridge import bridge_nf_call, mac_spoof
from plugins.bridge.conf import BridgeConf

_INCOMPLETE_RESULT_HINT = (
    "another plugin or an old CNI version wrote the cached result: remove the container and create it again"
)


def repair(args: CmdArgs, net_conf: NetConf, conf: BridgeConf, prev_result: Result) -> None:
    """Restores missing rules and settings; runs all steps, then raises CniError for the failures."""
    versions = sorted({ip.address.version for ip in prev_result.ips}) if conf.is_gateway else []
    steps: list[Callable[[], object]] = [
        partial(
            repair_if_missing, "forwarding", partial(forwarding.check, version), partial(forwarding.enable, version)
        )
        for version in versions
    ]
    if conf.masquerade:
        steps.append(partial(conf.masquerade.repair, args, net_conf, prev_result))
    if conf.mac_spoof_check:
        steps.append(partial(_repair_mac_spoof_check, args, net_conf.name, prev_result))
    if conf.network_policy:
        steps.append(partial(_repair_policy, args, net_conf, prev_result))
    check, ensure = partial(bridge_nf_call.check, conf), partial(bridge_nf_call.ensure, conf)
    steps.append(partial(repair_if_missing, "bridge-nf-call-iptables", check, ensure))
    run_all(*steps)


def _repair_mac_spoof_check(args: CmdArgs, network: str, prev_result: Result) -> None:
    host_veth, container_veth = _listed_veths(args, prev_result)
    rule_arguments = network, args.container_id, args.ifname, host_veth.name, parse_mac(container_veth.mac)
    repair_if_missing(
        "the MAC spoof check", partial(mac_spoof.check, *rule_arguments), partial(mac_spoof.add_rules, *rule_arguments)
    )


def _repair_policy(args: CmdArgs, net_conf: NetConf, prev_result: Result) -> None:
    host_veth, container_veth = _listed_veths(args, prev_result)
    policy.repair(policy.build_record(args, net_conf, prev_result, host_veth.name, container_veth.mac, BRIDGE))


def _listed_veths(args: CmdArgs, prev_result: Result) -> tuple[Interface, Interface]:
    """Returns the host veth, which must exist, and the container veth from the result of ADD; raises CniError(999)."""
    container_veth = next((item for item in prev_result.interfaces if item.name == args.ifname and item.sandbox), None)
    if container_veth is None or not container_veth.mac:
        raise internal(f'the result of ADD does not list the MAC address of "{args.ifname}"', _INCOMPLETE_RESULT_HINT)
    with Socket() as host:
        for item in prev_result.interfaces:
            if not item.sandbox and item.name.startswith("veth"):
                (existing,) = link.get(host, link.by_name_request(item.name))
                if existing and existing.kind == "veth" and existing.mac == item.mac and existing.master:
                    return item, container_veth
    raise internal("the host veth that the result of ADD lists does not exist on this host", RECREATE_HINT)
