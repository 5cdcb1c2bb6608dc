"""The aims: of each case the ratio ours/reference, of medians, that it should not exceed. All of them, here.

One rule: an aim is set by what is asked of podwire, not by what it reaches; a missed one is marked wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping

_CHECK = 0.5  # of whatever is checked, unless it says otherwise
_BRIDGE = {"ADD": 0.5, "DEL": 0.35}
_MASQUERADE = {"ADD": 0.35, "DEL": 0.25}
_PORT = {"ADD": 0.25, "DEL": 0.2}
_MANY_PORTS = {"ADD": 0.02, "CHECK": 0.05, "DEL": 0.3}
_LIMITS = {"ADD": 0.4, "DEL": 0.35}
_WHOLE = {"ADD": 0.25, "DEL": 0.15}
_PODMAN = {"ADD": 0.3, "DEL": 0.25}
_AT_ONCE = {"ADD": 0.3, "DEL": 0.3}  # wall time

# By the title of a case, without its verb.
_OF_EACH_BACKEND = {
    "masquerade, {}": _MASQUERADE,
    "1 host port, {}:": _PORT,
    "100 host ports, {}:": _MANY_PORTS,
    "masquerading bridge, 1 host port, {}:": _PORT,
    "masquerading bridge, 2 limits, {}:": _LIMITS,
    "masquerading bridge, 1 host port, 2 limits, {}:": _WHOLE,
    "masquerading bridge, 1 host port, firewall, tuning, {}:": _PODMAN,
    "masquerading ptp, {}:": _MASQUERADE,
    "full chain, {}, 50 at a time:": _AT_ONCE,
}
_WANTED: Mapping[str, Mapping[str, float]] = {
    "": {"VERSION": 0.6},
    "bridge": _BRIDGE,
    "bridge, dual stack": _BRIDGE,
    **{title.format(backend): aims for title, aims in _OF_EACH_BACKEND.items() for backend in ("iptables", "nftables")},
}


def ratio(case: str) -> float | None:
    """Returns the ratio wanted of a case ("bridge ADD"), None where none is."""
    title, _, verb = case.rpartition(" ")
    return _WANTED.get(title, {}).get(verb, _CHECK if verb == "CHECK" else None)
