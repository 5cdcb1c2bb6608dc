"""The targets: for each case, the ratios of medians (podwire / reference, podwire / kernel alone) not to exceed.

One rule: a target is what podwire is required to reach, not what it reaches; the report marks each missed target.
"""

from __future__ import annotations

from collections.abc import Mapping

_CHECK = 0.5  # for every CHECK without a target below
_FLOOR, _FLOOR_VERSION = 2.0, 1.8  # podwire / kernel alone; VERSION beside a process that does nothing
_BRIDGE = {"ADD": 0.5, "DEL": 0.35}
_MASQUERADE = {"ADD": 0.35, "DEL": 0.25}
_PORT = {"ADD": 0.25, "DEL": 0.2}
_MANY_PORTS = {"ADD": 0.02, "CHECK": 0.05, "DEL": 0.3}
_LIMITS = {"ADD": 0.4, "DEL": 0.35}
_OTHER_PLUGIN = {"ADD": 0.5, "DEL": 0.35}
_FULL_CHAIN = {"ADD": 0.25, "DEL": 0.15}
_PODMAN = {"ADD": 0.3, "DEL": 0.25}
_PARALLEL = {"ADD": 0.3, "DEL": 0.3}  # wall time

# By the title of a case, without its verb.
_BY_BACKEND = {
    "masquerade, {}": _MASQUERADE,
    "1 host port, {}:": _PORT,
    "100 host ports, {}:": _MANY_PORTS,
    "masquerading bridge, 1 host port, {}:": _PORT,
    "masquerading bridge, 2 limits, {}:": _LIMITS,
    "masquerading bridge, 1 host port, 2 limits, {}:": _FULL_CHAIN,
    "masquerading bridge, 1 host port, firewall, tuning, {}:": _PODMAN,
    "masquerading ptp, {}:": _MASQUERADE,
    "full chain, {}, 50 in parallel:": _PARALLEL,
}
_TARGETS: Mapping[str, Mapping[str, float]] = {
    "": {"VERSION": 0.6},
    "bridge": _BRIDGE,
    "bridge, dual stack": _BRIDGE,
    **dict.fromkeys(
        ("macvlan:", "ipvlan:", "vlan:", "host-device:", "sbr:", "sbr, dual stack:", "vrf:"),
        _OTHER_PLUGIN,
    ),
    **{
        title.format(backend): by_verb for title, by_verb in _BY_BACKEND.items() for backend in ("iptables", "nftables")
    },
}


def floor_target(case: str) -> float:
    """Returns the target of a case beside the kernel's work alone; that of VERSION is a process that does nothing."""
    return _FLOOR_VERSION if case == "VERSION" else _FLOOR


def target_ratio(case: str) -> float | None:
    """Returns the target of a case, such as "bridge ADD"; None without a target."""
    title, _, verb = case.rpartition(" ")
    return _TARGETS.get(title, {}).get(verb, _CHECK if verb == "CHECK" else None)
