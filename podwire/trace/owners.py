"""The program that a rule of the packet filter belongs to, by the names of its table and chain and by its comment."""

from __future__ import annotations

import re

UNKNOWN = "unknown"
# In order; the pattern is searched in "TABLE CHAIN COMMENT".
_PROGRAMS = (
    ("podwire", r"(?i)\b(CNI-[A-Z0-9]|cni_hostport|cni_plugins_masquerade|podwire_)"),
    ("kube-proxy", r"\b(KUBE-|kube-proxy)"),
    ("Docker", r"(?i)\bdocker"),
    ("ufw", r"\bufw6?-"),
    ("firewalld", r"(?i)\bfirewalld\b|\b(FWD[IO]?|IN|OUT|PRE|POST)_(public|trusted|internal|external|dmz|work|home)\b"),
    ("libvirt", r"(?i)\blibvirt"),
    ("netavark", r"(?i)\bnetavark"),
    ("Calico", r"\bcali-|\bcalico"),
    ("Cilium", r"\bCILIUM_|\bcilium"),
    ("flannel", r"(?i)\bflannel"),
    ("Tailscale", r"\bts-(input|forward|postrouting)"),
    ("fail2ban", r"\bf2b-"),
    ("LXD", r"(?i)\blxd?\b"),
)  # fmt: skip
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _PROGRAMS)


def owner_of(table: str, chain: str, text: str = "") -> str:
    """Returns the program that a rule belongs to, as far as its names show; UNKNOWN if they do not."""
    names = f"{table} {chain} {text}"
    return next((name for name, pattern in _PATTERNS if pattern.search(names)), UNKNOWN)
