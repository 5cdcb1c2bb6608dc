"""The network state of a namespace as a value that can be compared and read.

One rule: two states are equal exactly if only time has passed between them; counters, indexes, timers and attributes
that follow the carrier are not part of a state.
"""

import json
import re
from typing import Any

from tests.support.namespaces import Namespace
from tests.support.processes import output

State = dict[str, Any]

# Removed from each link: numbers that differ between equal links, and attributes that the kernel updates later.
_LINK_NOISE = {"ifindex", "operstate", "stats64", "stats", "link_index", "link_netnsid", "ifname", "addr_info"}
_LINK_NOISE |= {"gro_max_size", "gso_max_size", "gso_max_segs", "tso_max_size", "tso_max_segs"}
_LINK_NOISE |= {"num_tx_queues", "num_rx_queues", "inet6_addr_gen_mode", "min_mtu", "max_mtu", "broadcast"}
_CARRIER_FLAGS = {"NO-CARRIER", "LOWER_UP"}
_ADDRESS_NOISE = {"valid_life_time", "preferred_life_time", "tentative", "dynamic", "label"}
_ROUTE_NOISE = {"expires", "flags", "pref", "cache", "used", "age"}
# Attributes of bridges and ports: timers, the state of the spanning tree, and numbers in the order of attaching.
_PORT_NOISE = re.compile(r"timer|_id$|^id$|^no$|^state$|^root_|^designated_|^topology_|^hash")
_COUNTERS = re.compile(r"\[\d+:\d+\]")


def state(namespace: Namespace, *, netfilter: bool = False) -> State:
    """Returns links (with their addresses), routes of all tables and rules; with `netfilter` also all its rules.

    Without counters, without link-local IPv6 addresses, which come and go with the carrier, and without the kernel's
    routes in the local table, which depend on the addresses.
    """
    text = output("ip", "-n", namespace.name, "-j", "-d", "-batch", "-", stdin="addr show\nrule show\n")
    links, rules = map(json.loads, text.splitlines())
    whole: State = {
        "links": {link["ifname"]: _link(link) for link in links},
        "routes": {f"ipv{family}": _routes(namespace, family) for family in (4, 6)},
        "rules": rules,
    }
    if netfilter:
        whole["nft"] = nft_rules(namespace)
        whole["iptables"] = {tool: iptables_rules(namespace, tool) for tool in ("iptables", "ip6tables")}
    return whole


def links(namespace: Namespace) -> dict[str, Any]:
    """Returns the links of `namespace` by name, each with its `addresses`."""
    by_name: dict[str, Any] = state(namespace)["links"]
    return by_name


def shown(namespace: Namespace, name: str) -> dict[str, Any]:
    """Returns all that `ip -d link` shows of one link, including ifindex, operstate and port state."""
    (link,) = json.loads(namespace.ip("-j", "-d", "link", "show", "dev", name))
    assert isinstance(link, dict)
    return link


def nft_rules(namespace: Namespace) -> list[str]:
    """Returns the nftables rule set as text, without counters and handles."""
    lines = namespace.run("nft", "-s", "list", "ruleset").splitlines()
    return [line for line in lines if not line.startswith("#")]


def iptables_rules(namespace: Namespace, tool: str = "iptables") -> list[str]:
    """Returns what `iptables-save` (or `ip6tables-save`) prints, without comments and counters."""
    lines = namespace.run(f"{tool}-save").splitlines()
    return [_COUNTERS.sub("", line).strip() for line in lines if not line.startswith("#")]


def qdiscs(namespace: Namespace) -> list[str]:
    """Returns the qdiscs of all links, without `noqueue`."""
    return sorted(line for line in namespace.run("tc", "qdisc", "show").splitlines() if line.split()[1] != "noqueue")


def _link(link: dict[str, Any]) -> dict[str, Any]:
    kept = _less(link, _LINK_NOISE)
    kept["flags"] = sorted(set(link["flags"]) - _CARRIER_FLAGS)
    kept["addresses"] = [_less(item, _ADDRESS_NOISE) for item in link["addr_info"] if not _is_link_local(item["local"])]
    stable: dict[str, Any] = _without_noise(kept)
    return stable


def _less(attributes: dict[str, Any], noise: set[str]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key not in noise}


def _without_noise(value: Any) -> Any:
    """Returns the attributes of a link without those of bridges and ports that change with time."""
    if isinstance(value, dict):
        return {key: _without_noise(item) for key, item in value.items() if not _PORT_NOISE.search(key)}
    return value


def _routes(namespace: Namespace, family: int) -> list[dict[str, Any]]:
    text = output("ip", "-n", namespace.name, "-j", f"-{family}", "route", "show", "table", "all")
    routes = [_less(route, _ROUTE_NOISE) for route in json.loads(text or "[]") if not _follows_from_addresses(route)]
    return sorted(routes, key=lambda route: json.dumps(route, sort_keys=True))


def _follows_from_addresses(route: dict[str, Any]) -> bool:
    is_local = route.get("table") == "local" and route.get("protocol") == "kernel"
    return is_local or route["dst"] == "ff00::/8" or _is_link_local(route["dst"])


def _is_link_local(text: str) -> bool:
    return text.startswith("fe80:")
