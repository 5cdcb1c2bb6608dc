"""The program that created a chain of the packet filter, by the names that it and its neighbours have.

This module is pure. A chain of iptables that several programs share ("FORWARD") has no owner of its own.
"""

from __future__ import annotations

from kernel.netfilter.ruleset import FilterChain, FilterRule

PODWIRE = "podwire"
_TABLES = {
    "kube-proxy": "kube-proxy",
    "firewalld": "firewalld",
    "firewalld_policy_drop": "firewalld",
    "netavark": "netavark",
    "libvirt_network": "libvirt",
    "calico": "Calico",
    "docker-bridges": "Docker",
    "cni_hostport": PODWIRE,
    "cni_plugins_masquerade": PODWIRE,
    "podwire_firewall": PODWIRE,
}
_JUMP = b"CNI-"
_PREFIXES = {
    "CNI-": PODWIRE,
    "cni-br-iface-": PODWIRE,
    "DOCKER": "Docker",
    "ufw": "ufw",
    "KUBE-ROUTER": "kube-router",
    "KUBE-": "kube-proxy",
    "LIBVIRT_": "libvirt",
    "NETAVARK": "netavark",
    "cali-": "Calico",
    "CILIUM_": "Cilium",
    "OLD_CILIUM_": "Cilium",
    "FLANNEL": "flannel",
    "WEAVE": "Weave",
    "f2b-": "fail2ban",
    "FWD_": "firewalld",
    "IN_": "firewalld",
}


def owner_of(chain: FilterChain, rule: FilterRule | None = None) -> str:
    """Returns the owner of a chain, or of a rule in a shared one by its comment; "" if it is unknown."""
    if chain.table in _TABLES:
        return _TABLES[chain.table]
    name = next((owner for prefix, owner in _PREFIXES.items() if chain.name.startswith(prefix)), "")
    if not name and rule is not None:
        if _JUMP in rule.data or any(word.startswith("CNI-") for word in rule.words):
            return PODWIRE  # it leads to a chain of podwire, or of the reference plugins
        text = comment_of(rule)
        name = next((owner for prefix, owner in _PREFIXES.items() if text.startswith(prefix.rstrip("-_"))), "")
    return name


def comment_of(rule: FilterRule) -> str:
    """Returns the comment of a rule, "" without one."""
    if rule.comment:
        return rule.comment
    if "--comment" in rule.words:
        return rule.words[rule.words.index("--comment") + 1]
    for name, fields in rule.expressions:
        if name == "match" and fields.get(1, b"").startswith(b"comment\0"):
            return fields.get(3, b"").partition(b"\0")[0].decode(errors="replace")
    return ""
