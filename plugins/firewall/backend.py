"""The choice between the firewall's backends.

One rule: rules are made by one backend; which one made them is not remembered, so DEL and GC look into all.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from kernel.netfilter.backends import Backends
from plugins.firewall import firewalld, iptables, nftables
from plugins.firewall.conf import AUTOMATIC, FIREWALLD, FirewallConf
from plugins.firewall.wanted import ISOLATED, OPEN, SAME_BRIDGE, Protected

_BACKENDS: Backends[Protected] = Backends(
    iptables, nftables, 'install iptables or a kernel with nftables, or take "firewall" out of the list'
)
_IN_A_VLAN = {
    SAME_BRIDGE: "pods of other bridges still reach it",
    ISOLATED: "where bridged packets are dropped, those of the gateway are, too",
}


def add(conf: FirewallConf) -> None:
    """Makes the rules; raises CniError, and nothing is taken back then: DEL's steps do that."""
    name, wanted = conf.backend, conf.wanted
    by_firewalld = _is_firewalld(name)
    if by_firewalld:
        name, wanted = AUTOMATIC, replace(wanted, accepts=False)
    if wanted.accepts or wanted.policy != OPEN:
        _BACKENDS.add(wanted, name)  # first, so that nobody is let through before the policy holds
        _tell_of_vlan(wanted)
    if by_firewalld:
        firewalld.add(conf.wanted)


def check(conf: FirewallConf) -> None:
    """Raises CniError(999) for what is missing."""
    name, wanted = conf.backend, conf.wanted
    if _is_firewalld(name):
        firewalld.check(wanted)
        name, wanted = AUTOMATIC, replace(wanted, accepts=False)
    if wanted.accepts or wanted.policy != OPEN:
        _BACKENDS.check(wanted, name)


def problem(conf: FirewallConf) -> str:
    """Tells what keeps ADD from working, "" when nothing does."""
    name, wanted = conf.backend, conf.wanted
    if _is_firewalld(name):
        if found := firewalld.problem(wanted.zone):
            return found
        name, wanted = AUTOMATIC, replace(wanted, accepts=False)
    return _BACKENDS.problem(name) if wanted.accepts or wanted.policy != OPEN else ""


def _tell_of_vlan(wanted: Protected) -> None:
    """Tells on stderr where a policy does not do what it says: the bridge's gateway in a VLAN is one of its ports."""
    gateway = next((name for name in wanted.ports if name.startswith(f"{wanted.bridge}.")), "")
    if wanted.policy != OPEN and gateway:
        print(
            f'firewall: ingressPolicy "{wanted.policy}" is about "{wanted.bridge}", but the pod is routed by '
            f'"{gateway}", a port of it: {_IN_A_VLAN[wanted.policy]}',
            file=sys.stderr,
        )


def _is_firewalld(name: str) -> bool:
    """Tells whether firewalld lets the addresses through: asked for, or running where nothing else is asked for."""
    return name == FIREWALLD or (name == AUTOMATIC and firewalld.is_running())
