"""Runs vrf's verbs on a temporary host, podwire's or the reference plugin's, and reads the state that they change.

A pod's container ID is the name of its namespace.
"""

import json
from typing import Any

from tests.support import netstate, sbr_network
from tests.support.attaching import Network
from tests.support.namespaces import Namespace

_L3MDEV = 1000  # the priority of the kernel's rules for VRF devices, which it never deletes


class VrfNetwork(Network):
    """A network's vrf on one host."""

    def everything(self, pod: Namespace) -> dict[str, Any]:
        """Returns the state of a pod without the l3mdev rules."""
        return state(pod)


def state(pod: Namespace) -> dict[str, Any]:
    """Returns the state of a pod without the l3mdev rules."""
    whole = netstate.state(pod)
    return {**whole, "rules": [rule for rule in whole["rules"] if rule["priority"] != _L3MDEV]}


def vrfs(pod: Namespace) -> dict[str, int]:
    """Returns the routing table of each VRF device by the device's name."""
    shown = json.loads(pod.ip("-j", "-d", "link", "show", "type", "vrf") or "[]")
    return {link["ifname"]: link["linkinfo"]["info_data"]["table"] for link in shown if link}


def master(pod: Namespace, ifname: str = "eth0") -> str:
    """Returns the name of the link of which an interface is a port, "" for none."""
    return str(netstate.shown(pod, ifname).get("master", ""))


def list_routes(pod: Namespace, table: int | str, family: int = 4) -> list[str]:
    """Returns the routes of a table as `ip route` prints them, without link-local and multicast ones."""
    lines = pod.run("ip", f"-{family}", "route", "show", "table", str(table), check=False).splitlines()
    return sorted(
        " ".join(line.split())
        for line in lines
        if not line.startswith(("fe80::", "local fe80::", "multicast", "anycast", "broadcast"))
    )


def connect(
    host: Namespace,
    pod: Namespace,
    ifname: str = "eth0",
    *,
    number: int = 1,
    keep_ipv6: bool = False,
    has_routes: bool = True,
) -> dict[str, Any]:
    """Connects a pod to the host by a veth, as an interface plugin with dual-stack IPAM; returns the result.

    The networks are 10.<number>.0.0/24 and fd00:<number>::/64; .1 is the host, to which default routes lead, .2 the
    pod. `keep_ipv6` keeps IPv6 addresses while the interface is down, as newer interface plugins set it.
    """
    pod.set_sysctl("net/ipv6/conf/default/keep_addr_on_down", str(int(keep_ipv6)))
    addresses, gateways = (f"10.{number}.0.2/24", f"fd00:{number}::2/64"), (f"10.{number}.0.1", f"fd00:{number}::1")
    peer = f"h{number}{pod.name[-8:]}"
    result = sbr_network.connect(host, pod, *addresses, ifname=ifname, peer_name=peer, gateways=gateways)
    if not has_routes:
        return result
    for version, gateway in zip(("-4", "-6"), gateways, strict=True):
        pod.ip(version, "route", "append", "default", "via", gateway, "dev", ifname)
    return result | {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
