"""The routing table of a VRF device: chooses a free one, and names conflicts. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cni.errors import CniError, internal
from kernel.rule import PolicyRule
from kernel.vrf import KIND, Vrf

# default, main, local (linux/rtnetlink.h); 252 is "compat", which nothing uses.
RESERVED = frozenset({253, 254, 255})


def choose(vrfs: Iterable[Vrf], rules: Iterable[PolicyRule], with_routes: Collection[int]) -> int:
    """Returns the lowest table that no VRF device, rule or route of the namespace uses.

    The reference plugin considers VRF devices only.
    """
    used = RESERVED.union(with_routes, (vrf.table for vrf in vrfs), (rule.table for rule in rules))
    number = 1
    while number in used:
        number += 1
    return number


def require_vrf(device: Vrf) -> Vrf:
    """Returns `device` if it is a VRF device; raises CniError(999) with the text of the reference plugin."""
    if device.kind != KIND:
        details = f'it is {f"a {device.kind}" if device.kind else "no virtual interface"}; choose another "vrfname"'
        raise internal(f"Netlink {device.name} is not a VRF", details)
    return device


def table_conflict(device: Vrf, table: int) -> CniError | None:
    """Returns the error for a VRF device with another table than the configured one, 0 for any; None without one."""
    if table in (0, device.table):
        return None
    msg = f"VRF {device.name} already exist with different routing table {device.table}"
    return internal(
        msg, f'"table" is {table}: set it to {device.table}, remove it, or choose another "vrfname" for this network'
    )


def uses(
    table: int, name: str, vrfs: Iterable[Vrf], rules: Iterable[PolicyRule], with_routes: Collection[int]
) -> list[str]:
    """Returns what else uses a configured table, in words: other VRF devices, routes, rules, the kernel.

    None of it is an error: the reference plugin accepts each of them, and VRF devices may share a table.
    """
    others = [vrf.name for vrf in vrfs if vrf.table == table and vrf.name != name]
    listed = [f"VRF {other}" for other in others]
    if table in RESERVED:
        listed.append("the kernel")
    elif not others and table in with_routes:
        listed.append("other routes")
    if table not in RESERVED and any(rule.table == table for rule in rules):
        listed.append("routing rules")
    return listed
