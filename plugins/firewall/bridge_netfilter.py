"""Whether frames between two ports of a bridge pass through iptables, which "isolated" needs.

This module only reads. The settings are the host's; the plugin `bridge` changes them if `bridgeNetfilter` is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from kernel import sysctl
from plugins.firewall.spec import ISOLATED, FirewallSpec

_SETTINGS = {4: "bridge/bridge-nf-call-iptables", 6: "bridge/bridge-nf-call-ip6tables"}
_BRIDGE_SETTINGS = {4: "nf_call_iptables", 6: "nf_call_ip6tables"}
HINT = (
    'set "bridgeNetfilter" to true in the configuration of bridge (needs the module: modprobe br_netfilter), '
    'or "backend" to "nftables"'
)


def get_problem(spec: FirewallSpec) -> str:
    """Returns why other pods on the bridge still reach an isolated attachment, "" if they do not."""
    if spec.policy != ISOLATED:
        return ""
    off = [version for version in spec.versions if not _passes(version, spec.bridge)]
    return f'pods on "{spec.bridge}" still reach each other: {_names(off)} is not 1' if off else ""


def _passes(version: int, bridge: str) -> bool:
    """Returns whether the host's or the bridge's setting sends an IP version through iptables; False if unreadable."""
    try:
        if sysctl.get(_SETTINGS[version]) == "1":
            return True
    except OSError:
        pass
    try:
        descriptor = os.open(f"/sys/class/net/{bridge}/bridge/{_BRIDGE_SETTINGS[version]}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(descriptor, 16).strip() == b"1"
    finally:
        os.close(descriptor)


def _names(versions: Iterable[int]) -> str:
    return ", ".join(f"net/{_SETTINGS[version]}" for version in versions)
