"""The choice between the firewall's backends.

One rule: ADD uses one backend and stores nowhere which, so DEL and GC look into all.
"""

from __future__ import annotations

import sys

from kernel.netfilter.backends import Backends
from plugins.firewall import firewalld, iptables, nftables
from plugins.firewall.conf import AUTOMATIC, FIREWALLD, FirewallConf
from plugins.firewall.spec import ISOLATED, OPEN, SAME_BRIDGE, FirewallSpec
from process.values import replace

_BACKENDS: Backends[FirewallSpec] = Backends(
    iptables, nftables, 'install iptables or a kernel with nftables, or take "firewall" out of the list'
)
_IN_A_VLAN = {
    SAME_BRIDGE: "pods of other bridges still reach it",
    ISOLATED: "where bridged packets are dropped, those of the gateway are, too",
}


def add(conf: FirewallConf) -> None:
    """Creates the rules; raises CniError, and the caller rolls back with DEL's steps."""
    by_firewalld, rules = _shared_out(conf)
    if rules:
        _BACKENDS.add(rules.spec, rules.backend)  # first, so that nothing is accepted before the policy applies
        _tell_of_vlan(rules.spec)
    if by_firewalld:
        firewalld.add(conf.spec)


def check(conf: FirewallConf) -> None:
    """Raises CniError(999) for a missing rule."""
    by_firewalld, rules = _shared_out(conf)
    if by_firewalld:
        firewalld.check(conf.spec)
    if rules:
        _BACKENDS.check(rules.spec, rules.backend)


def get_problem(conf: FirewallConf) -> str:
    """Returns why ADD cannot work, "" if it can."""
    by_firewalld, rules = _shared_out(conf)
    found = firewalld.get_problem(conf.spec.zone) if by_firewalld else ""
    return found or (_BACKENDS.get_problem(rules.backend) if rules else "")


def _tell_of_vlan(spec: FirewallSpec) -> None:
    """Tells on stderr where a policy does not do what it says: the bridge's gateway in a VLAN is one of its ports."""
    gateway = next((name for name in spec.ports if name.startswith(f"{spec.bridge}.")), "")
    if spec.policy != OPEN and gateway:
        print(
            f'firewall: ingressPolicy "{spec.policy}" is about "{spec.bridge}", but the pod is routed by '
            f'"{gateway}", a port of it: {_IN_A_VLAN[spec.policy]}',
            file=sys.stderr,
        )


def _shared_out(conf: FirewallConf) -> tuple[bool, FirewallConf | None]:
    """Returns whether firewalld lets the addresses through, and what is left for rules of iptables or nftables.

    It does when it is asked for, or runs where nothing else is asked for; then only a policy is left.
    """
    if conf.backend != FIREWALLD and not (conf.backend == AUTOMATIC and firewalld.is_running()):
        return False, conf
    policy = FirewallConf(replace(conf.spec, accepts=False), AUTOMATIC)
    return True, policy if policy.spec.policy != OPEN else None
