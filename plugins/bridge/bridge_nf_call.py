"""bridge-nf-call-iptables: the kernel setting that sends frames between a bridge's ports through iptables.

kube-proxy needs it when a pod calls a service, and the pod that answers is on the same bridge. The answer goes directly
from port to port. If iptables does not process it, it arrives with the address of the pod instead of the service's,
and the caller drops it.

The setting exists while the module br_netfilter is loaded. It applies to the whole host (before Linux 5.3 to all
network namespaces), so it is never rolled back.
"""

from __future__ import annotations

import os
import sys

from cni.errors import CniError, Code, internal
from kernel import modules, sysctl
from kernel.errors import KernelError
from kernel.netfilter import nft
from plugins.bridge.conf import BridgeConf

_IPV4, _IPV6 = "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"
_LOAD = "modprobe br_netfilter; at boot: a file in /etc/modules-load.d"
_KUBE_PROXY_CHAINS = (  # chains that kube-proxy creates in iptables mode with iptables-nft, and in nftables mode
    nft.Chain(nft.Table(nft.IPV4, "nat"), "KUBE-SERVICES"),
    nft.Chain(nft.Table(nft.IPV4, "kube-proxy"), "services"),
)


def ensure(conf: BridgeConf) -> None:
    """Sets the configured value; without one, only warns on stderr if kube-proxy needs the setting.

    Sets it for IPv4 and IPv6, whichever the pod has, since kube-proxy serves both. Raises CniError(999) on failure.
    """
    if conf.bridge_netfilter is None:
        _warn_if_bypassed(conf)
        return
    for name in _wrong_settings(conf):
        sysctl.ensure_or_fail(name, _value(conf), "set whether bridged frames pass iptables")


def refuse_bypass(conf: BridgeConf) -> None:
    """Raises CniError(50) if frames between pods would bypass their network policies, and ADD is not to change that."""
    if not conf.network_policy or conf.bridge_netfilter:
        return
    for name in (_IPV4, _IPV6):
        try:
            is_on = sysctl.get(name) == "1"
        except OSError:
            is_on = False
        if not is_on:
            raise CniError(
                Code.PLUGIN_NOT_AVAILABLE,
                f'"networkPolicy" needs net/{name}=1: frames between the pods of a bridge bypass policies without it',
                f'load the module br_netfilter ({_LOAD}), and set "bridgeNetfilter" to true',
            )


def check(conf: BridgeConf) -> None:
    """Checks that the setting has the configured value; raises CniError(999)."""
    for name in _wrong_settings(conf):
        raise _wrong_value(conf, name)


def refuse_unavailable(conf: BridgeConf) -> None:
    """Raises CniError(999) if the setting is wrong and ADD could not set it.

    A wrong value that ADD can set is no failure: if STATUS failed, the runtime would start no pod, and no ADD would
    set the value.
    """
    for name in _wrong_settings(conf):
        if not sysctl.is_writable(name):
            raise _wrong_value(conf, name)


def _wrong_settings(conf: BridgeConf) -> list[str]:
    """Returns the settings whose value is not the configured one; raises CniError(999) without br_netfilter."""
    names = []
    for name in (_IPV4, _IPV6) if conf.bridge_netfilter is not None else ():
        try:
            if sysctl.get(name) != _value(conf):
                names.append(name)
        except FileNotFoundError as error:
            if conf.bridge_netfilter and name == _IPV4:
                raise internal(
                    f'"bridgeNetfilter" is not available: {error.filename} is missing',
                    modules.get_obstacle("br_netfilter") or _LOAD,
                ) from error
    return names


def _wrong_value(conf: BridgeConf, name: str) -> CniError:
    details = f'"bridgeNetfilter" requires it; on the node run: {sysctl.command(name, _value(conf))}'
    return internal(f"net/{name} is not {_value(conf)}", details)


def _value(conf: BridgeConf) -> str:
    return "1" if conf.bridge_netfilter else "0"


def _warn_if_bypassed(conf: BridgeConf) -> None:
    """Warns on stderr when bridged frames bypass iptables although kube-proxy uses it on this host.

    Reads one file if the setting is on; otherwise it also looks up kube-proxy's chains by netlink. Chains of
    iptables-legacy are not detected: listing them would need another program.
    """
    hint = 'set "bridgeNetfilter" to true'
    try:
        if sysctl.get(_IPV4) != "0":
            return
    except FileNotFoundError:
        # The look-up would load nf_tables on a host that does not use it; such a host has no chains of kube-proxy. With
        # masquerading this ADD uses the packet filter anyway.
        if not (conf.masquerade or os.path.isdir("/sys/module/nf_tables")):
            return
        hint = f"{modules.explain_missing('br_netfilter')}; then {hint}"
    except OSError:
        return
    try:
        with nft.open_socket() as socket:
            is_used = any(nft.get_chains(socket, *_KUBE_PROXY_CHAINS))
    except KernelError:
        return  # unknown: no warning
    if is_used:
        print(f"bridge: kube-proxy needs net/{_IPV4}=1: {hint}", file=sys.stderr)
