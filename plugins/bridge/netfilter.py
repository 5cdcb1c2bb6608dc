"""Whether frames between two ports of a bridge pass through iptables (module br_netfilter).

kube-proxy needs it: a pod's call of a service may be answered by a pod on the same bridge, and the answer goes
straight from port to port. Unless iptables sees it there, it keeps the answering pod's address, and the caller drops
it.

One rule: the setting belongs to the whole host (since Linux 5.3 to the network namespace, before to all of them): it
is set when that is asked for, verified afterwards, and never taken back.
"""

from __future__ import annotations

import os
import sys

from cni.errors import CniError, Code
from kernel import sysctl
from kernel.errors import KernelError
from kernel.netfilter import nft
from plugins.bridge.conf import BridgeConf

_IPV4, _IPV6 = "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"
_LOAD = "load the module on the node: modprobe br_netfilter"
_KUBE_PROXY = (  # its chains in iptables mode, made by iptables-nft, and in nftables mode
    nft.Chain(nft.Table(nft.IPV4, "nat"), "KUBE-SERVICES"),
    nft.Chain(nft.Table(nft.IPV4, "kube-proxy"), "services"),
)


def ensure(conf: BridgeConf) -> None:
    """Makes the setting be as asked for; not asked for, only says on stderr when kube-proxy would need it.

    Both families get it whichever a pod has, as kube-proxy serves both. Raises CniError(999) where it cannot be set.
    """
    if conf.bridge_netfilter is None:
        _warn(conf)
        return
    for name in _deviating(conf):
        sysctl.ensure_or_fail(name, _value(conf), "set whether bridged frames pass iptables")


def check(conf: BridgeConf) -> None:
    """Checks the setting that was asked for; raises CniError(999)."""
    for name in _deviating(conf):
        raise _wrong(conf, name)


def refuse_unavailable(conf: BridgeConf) -> None:
    """Refuses what ADD could not set; raises CniError(999).

    A wrong value that can be set is none of that: a node that is not ready gets no pod, whose ADD would mend it.
    """
    for name in _deviating(conf):
        if not sysctl.is_writable(name):
            raise _wrong(conf, name)


def _deviating(conf: BridgeConf) -> list[str]:
    """Returns the settings that are not as asked for; raises CniError(999) when there are none to ask for."""
    found = []
    for name in (_IPV4, _IPV6) if conf.bridge_netfilter is not None else ():
        try:
            if sysctl.get(name) != _value(conf):
                found.append(name)
        except FileNotFoundError as error:
            if conf.bridge_netfilter and name == _IPV4:
                raise CniError(
                    Code.INTERNAL,
                    f'"bridgeNetfilter" cannot be had: {error.filename} is missing',
                    f"{_LOAD}; at boot: a file in /etc/modules-load.d",
                ) from error
    return found


def _wrong(conf: BridgeConf, name: str) -> CniError:
    details = f'"bridgeNetfilter" asks for it; set it on the node: {sysctl.command(name, _value(conf))}'
    return CniError(Code.INTERNAL, f"net/{name} is not {_value(conf)}", details)


def _value(conf: BridgeConf) -> str:
    return "1" if conf.bridge_netfilter else "0"


def _warn(conf: BridgeConf) -> None:
    """Tells when iptables is passed by although kube-proxy serves this host by it.

    Costs the reading of a file where the setting is on, else a look-up by netlink, which knows iptables-nft's chains
    only: of iptables-legacy's nothing can be known without a process.
    """
    cure = 'set "bridgeNetfilter" to true'
    try:
        if sysctl.get(_IPV4) != "0":
            return
    except FileNotFoundError:
        # Asking would load nf_tables where nobody has it, and then there is no kube-proxy to be found either.
        if not (conf.masquerade or os.path.isdir("/sys/module/nf_tables")):
            return
        cure = f"{_LOAD}; then {cure}"
    except OSError:
        return
    try:
        with nft.open_socket() as socket:
            served = any(nft.get_chains(socket, *_KUBE_PROXY))
    except KernelError:
        return  # where nothing is known nothing is said
    if served:
        print(f"podwire: kube-proxy needs net/{_IPV4}=1: {cure}", file=sys.stderr)
