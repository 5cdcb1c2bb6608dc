"""The program that created a chain of the packet filter, by the names that it and its neighbours have.

This module is pure. A chain of iptables that several programs share ("FORWARD") has no owner of its own.
"""

from __future__ import annotations

from kernel.netfilter.ruleset import FilterChain, FilterRule

PODWIRE = "podwire"
ADMINISTRATOR = "the administrator"
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
    "podwire_guard": PODWIRE,
    "podwire_policy": PODWIRE,
    "kube-network-policies": "kube-network-policies",
    "kindnet-network-policies": "kindnet",
    "kindnet-ipmasq": "kindnet",
    "f2b-table": "fail2ban",
    "crowdsec": "CrowdSec",
    "crowdsec6": "CrowdSec",
    "opensnitch": "OpenSnitch",
    "sshguard": "SSHGuard",
    "netbird": "NetBird",
    "incus": "Incus",
    "lxd": "LXD",
}
_JUMP = b"CNI-"
_PREFIXES = {
    "CNI-ADMIN": ADMINISTRATOR,
    "CNI-": PODWIRE,
    "cni-br-iface-": PODWIRE,
    "DOCKER-USER": ADMINISTRATOR,
    "NOMAD-ADMIN": ADMINISTRATOR,
    "DOCKER": "Docker",
    "ufw": "ufw",
    "KUBE-ROUTER": "kube-router",
    "KUBE-POD-FW": "kube-router",
    "KUBE-NWPLCY": "kube-router",
    "KUBE-": "kube-proxy",
    "IP-MASQ": "ip-masq-agent",
    "LIBVIRT_": "libvirt",
    "NETAVARK": "netavark",
    "cali-": "Calico",
    "califw-": "Calico",
    "CILIUM_": "Cilium",
    "OLD_CILIUM_": "Cilium",
    "cilium": "Cilium",
    "ANTREA-": "Antrea",
    "AZURE-NPM": "Azure NPM",
    "OVN-KUBE-": "OVN-Kubernetes",
    "FLANNEL": "flannel",
    "WEAVE": "Weave",
    "f2b-": "fail2ban",
    "fail2ban": "fail2ban",
    "CROWDSEC": "CrowdSec",
    "crowdsec": "CrowdSec",
    "sshguard": "SSHGuard",
    "ts-": "Tailscale",
    "NETBIRD-": "NetBird",
    "PVEFW-": "Proxmox",
    "nixos-fw": "NixOS",
    "FWD_": "firewalld",
    "IN_": "firewalld",
}
# How the comments of their rules in shared chains begin.
_COMMENTS = {
    "cali:": "Calico",
    "cilium": "Cilium",
    "kube-router": "kube-router",
    "kubernetes": "kube-proxy",
    "ip-masq-agent": "ip-masq-agent",
    "flannel": "flannel",
}
# The rules of these are decisions about packets: a policy, a ban, an administrator's own rule.
_DECIDING = frozenset(
    (
        *(ADMINISTRATOR, "kube-router", "Calico", "Cilium", "Antrea", "Azure NPM", "OVN-Kubernetes", "Weave"),
        *("kube-network-policies", "kindnet", "fail2ban", "CrowdSec", "SSHGuard", "OpenSnitch", "NetBird", "Proxmox"),
    )
)


def owner_of(chain: FilterChain, rule: FilterRule | None = None) -> str:
    """Returns the owner of a chain, or of a rule in a shared one by its comment; "" if it is unknown."""
    if chain.table in _TABLES:
        return _TABLES[chain.table]
    if name := _by_prefix(chain.name, _PREFIXES) or _by_prefix(chain.table, _PREFIXES):
        return name
    if rule is None:
        return ""
    if _JUMP in rule.data or any(word.startswith("CNI-") for word in rule.words):
        return PODWIRE  # it leads to a chain of podwire, or of the reference plugins
    return _by_prefix(comment_of(rule), _COMMENTS)


def is_decision(owner: str) -> bool:
    """Returns whether an owner's rules are decisions: they restrict packets on purpose."""
    return owner in _DECIDING


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


def _by_prefix(text: str, owners: dict[str, str]) -> str:
    return next((owner for prefix, owner in owners.items() if text.startswith(prefix)), "")
