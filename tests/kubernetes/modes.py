"""The modes of a cluster: how its nodes are connected, and which network podwire makes.

One rule: a mode is a directory of deploy/ with the changes that deploy/README.md names. The first one has none;
together the others cover every way to connect nodes, IP version and backend, ptp, and pools.
No mode has kube-proxy's IPVS, which the kernel of the tests lacks (CONFIG_IP_VS).
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.plan import IPV4, IPV6, Family
from tests.support import manifests

Object = dict[str, Any]
VARIABLE = "PODWIRE_CLUSTER_MODE"  # the environment variable with the name of the mode
DIRECT = "direct"
STICKY = "sticky"  # the namespace whose pods keep their addresses, and its pool
_BOTH = (IPV4, IPV6)
_ONE_LINK, _TWO_LINKS = (0, 0, 0), (0, 0, 1)


@dataclass(frozen=True)
class Mode:
    """The IP versions, each node's link, arguments of the agent, a change of the network, the directory of deploy/.

    `upstream` is the pattern of the names of upstream's tests.
    """

    families: tuple[Family, ...] = (IPV4,)
    links: tuple[int, ...] = _ONE_LINK
    agent: tuple[str, ...] = ()
    change: Callable[[Object], Object] = lambda network: network
    directory: Path = manifests.INSTALL
    upstream: str = r"\[sig-network\]"

    def objects(self) -> list[Object]:
        """Returns the objects of the directory with the mode's changes."""
        rendered = manifests.render(self.directory)
        for one in rendered:
            for container in manifests.containers(one):
                container["args"] += self.agent
            if one["kind"] == "ConfigMap":
                ((file, text),) = one["data"].items()
                one["data"][file] = json.dumps(self.change(json.loads(text)))
        return rendered

    def pools(self) -> Object | None:
        """Returns the pools of addresses, None for podCIDRs; they need the kinds of `objects`."""
        pools = [
            {"name": "default", "cidrs": ["10.244.0.0/17", "fd00:244::/112"]},
            {"name": STICKY, "cidrs": ["10.244.128.0/24", "fd00:244::1:0/112"], "namespaces": [STICKY], "sticky": True},
        ]
        space = {"apiVersion": "podwire.io/v1", "kind": "IPSpace", "metadata": {"name": "default"}}
        return {**space, "spec": {"pools": pools}} if self.directory == manifests.POOLS_STICKY else None


def backend(name: str) -> Callable[[Object], Object]:
    """Returns a change to one backend of the packet filter for all plugins."""

    def change(network: Object) -> Object:
        first, portmap, *rest = network["plugins"]
        plugins = [{**first, "ipMasqBackend": name}, {**portmap, "backend": name}, *rest]
        return {**network, "plugins": plugins}

    return change


def _ptp(network: Object) -> Object:
    """Replaces bridge by ptp, which takes the default route from IPAM."""
    first, *rest = network["plugins"]
    ptp = {key: first[key] for key in ("mtu", "ipMasq", "ipMasqBackend", "nonMasqueradeCluster")}
    ipam = {**first["ipam"], "routes": [{"dst": "0.0.0.0/0"}]}
    return {**network, "plugins": [{"type": "ptp", **ptp, "ipam": ipam}, *rest]}


MODES = {
    DIRECT: Mode(),
    "router": Mode(links=(0, 1, 2), agent=("--routes", "vxlan"), change=_ptp),  # each node on a link of its own
    "mixed": Mode(links=_TWO_LINKS, change=backend("nftables")),  # VXLAN where the agent finds a router
    "ipv6": Mode(families=(IPV6,), links=_TWO_LINKS),
    "policy": Mode(
        families=_BOTH, links=_TWO_LINKS, directory=manifests.NETWORK_POLICY, upstream=r"\[Feature:NetworkPolicy\]"
    ),
    # Namespaces have neither a product UUID nor a permanent MAC address.
    "pools": Mode(
        families=_BOTH,
        directory=manifests.POOLS_STICKY,
        agent=("--machine", "$(NODE_NAME)"),
        change=backend("iptables"),
    ),
}


def name() -> str:
    """Returns the name of the mode, which the environment has."""
    return os.environ.get(VARIABLE) or DIRECT


def current() -> Mode:
    """Returns the mode that the environment names."""
    return MODES[name()]
