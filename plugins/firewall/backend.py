"""The choice between the firewall's backends.

ADD does not store which backend it used, so DEL and GC remove rules from all of them.
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
_EFFECTS_IN_VLAN = {
    SAME_BRIDGE: "pods on other bridges still reach it",
    ISOLATED: "if bridged packets are dropped, the gateway's are dropped, too",
}


def add(conf: FirewallConf) -> None:
    """Creates the rules; raises CniError, and the caller rolls back with DEL's steps."""
    uses_firewalld, rules = _divide(conf)
    if rules:
        _BACKENDS.add(rules.spec, rules.backend)  # first, so that nothing is accepted before the policy applies
        _warn_of_vlan(rules.spec)
    if uses_firewalld:
        firewalld.add(conf.spec)


def check(conf: FirewallConf) -> None:
    """Raises CniError(999) for a missing rule."""
    uses_firewalld, rules = _divide(conf)
    if uses_firewalld:
        firewalld.check(conf.spec)
    if rules:
        _BACKENDS.check(rules.spec, rules.backend)


def get_problem(conf: FirewallConf) -> str:
    """Returns why ADD cannot work, "" if it can."""
    uses_firewalld, rules = _divide(conf)
    problem = firewalld.get_problem(conf.spec.zone) if uses_firewalld else ""
    return problem or (_BACKENDS.get_problem(rules.backend) if rules else "")


def _warn_of_vlan(spec: FirewallSpec) -> None:
    """Prints to stderr that a policy has less effect on a pod in a VLAN, whose gateway is a port of the bridge."""
    gateway = next((name for name in spec.ports if name.startswith(f"{spec.bridge}.")), "")
    if spec.policy != OPEN and gateway:
        print(
            f'firewall: ingressPolicy "{spec.policy}" applies to "{spec.bridge}", but the pod is routed by '
            f'"{gateway}", a port of that bridge: {_EFFECTS_IN_VLAN[spec.policy]}',
            file=sys.stderr,
        )


def _divide(conf: FirewallConf) -> tuple[bool, FirewallConf | None]:
    """Returns whether firewalld accepts the addresses, and the configuration of rules in iptables or nftables.

    firewalld accepts them if it is the configured backend, or if it runs and no backend is configured. Then rules are
    needed only for a policy other than open: the second value is None without one.
    """
    if conf.backend != FIREWALLD and not (conf.backend == AUTOMATIC and firewalld.is_running()):
        return False, conf
    policy = FirewallConf(replace(conf.spec, accepts=False), AUTOMATIC)
    return True, policy if policy.spec.policy != OPEN else None
