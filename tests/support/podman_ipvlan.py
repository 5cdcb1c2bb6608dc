"""Networks of `podman network create --driver=ipvlan`: the files that podman 4.3.1 writes, and its calls of the plugin.

tests/clients/test_podman_ipvlan.py compares them with those of the installed podman, whose kernel may lack ipvlan;
tests/netns/test_podman_ipvlan.py makes the calls on a kernel that has it. This podman refuses `--opt parent=...` for
ipvlan: its files have an empty `master`, and the plugin uses the interface of the default route.
"""

from collections.abc import Mapping
from typing import Any

from tests.support.netlist import NetworkList

VERSION = "4.3.1"
NAME = "pods"
L2, L3, INTERNAL = "l2", "l3", "internal"

# The options of `podman network create` beside driver and name.
OPTIONS = {
    L2: (
        "--opt=mode=l2",
        "--opt=mtu=1400",
        "--ipv6",
        "--subnet=10.25.0.0/24",
        "--gateway=10.25.0.251",
        "--ip-range=10.25.0.128/26",
        "--subnet=fd00:25::/64",
        "--gateway=fd00:25::251",
    ),
    L3: ("--opt=mode=l3", "--subnet=10.68.0.0/24"),
    INTERNAL: ("--internal", "--subnet=10.25.0.0/24"),
}
_L2_RANGES = [
    [{"subnet": "10.25.0.0/24", "rangeStart": "10.25.0.129", "rangeEnd": "10.25.0.191", "gateway": "10.25.0.251"}],
    [{"subnet": "fd00:25::/64", "gateway": "fd00:25::251"}],
]
_PLUGINS: dict[str, dict[str, Any]] = {
    L2: {
        "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": _L2_RANGES},
        "mtu": 1400,
        "mode": "l2",
    },
    L3: {
        "ipam": {
            "type": "host-local",
            "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "10.68.0.0/24", "gateway": "10.68.0.1"}]],
        },
        "mode": "l3",
    },
    INTERNAL: {"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.25.0.0/24"}]]}},
}
_PODMAN_OPTIONS: dict[str, dict[str, str]] = {L2: {"mode": "l2", "mtu": "1400"}, L3: {"mode": "l3"}, INTERNAL: {}}


def file(kind: str) -> dict[str, Any]:
    """Returns the network's file in /etc/cni/net.d."""
    plugin = {"type": "ipvlan", "master": "", **_PLUGINS[kind], "capabilities": {"ips": True}}
    args = {"args": {"podman_options": options}} if (options := _PODMAN_OPTIONS[kind]) else {}
    return {**args, "cniVersion": "0.4.0", "name": NAME, "plugins": [plugin]}


def network(kind: str) -> NetworkList:
    """Returns the network's list, whose requests are those of podman's libcni."""
    content = file(kind)
    return NetworkList(content["name"], content["cniVersion"], tuple(content["plugins"]))


def cni_args(container: str, requests: Mapping[str, str] | None = None) -> str:
    """Returns CNI_ARGS for a container, with `requests` of an address (`IP`) or a MAC address (`MAC`)."""
    pairs = {"IgnoreUnknown": "1", "K8S_POD_NAME": container, **(requests or {})}
    return ";".join(f"{key}={value}" for key, value in pairs.items())
