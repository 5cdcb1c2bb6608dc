"""Runs vrf's verbs on a temporary host, podwire's or the reference plugin's, and reads the state that they change.

A pod's container ID is the name of its namespace.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support import netstate
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


def default_routes(pod: Namespace, result: dict[str, Any], ifname: str = "eth0", *, number: int = 1) -> dict[str, Any]:
    """Adds default routes as an IPAM plugin requests them; returns the result with these routes."""
    pod.ip("route", "append", "default", "via", f"10.{number}.0.1", "dev", ifname)
    pod.ip("-6", "route", "append", "default", "via", f"fd00:{number}::1", "dev", ifname)
    return result | {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}


def connect(
    host: Namespace, pod: Namespace, ifname: str = "eth0", *, number: int = 1, keep_ipv6: bool = False
) -> dict[str, Any]:
    """Connects a pod to the host by a veth, as an interface plugin with dual-stack IPAM; returns the result.

    The networks are 10.<number>.0.0/24 and fd00:<number>::/64; .1 is the host, .2 the pod. `keep_ipv6` keeps IPv6
    addresses while the interface is down, as newer interface plugins set it.
    """
    veth, ipv4, ipv6 = f"h{number}{pod.name[-8:]}", f"10.{number}.0.", f"fd00:{number}::"
    host.ip("link", "add", veth, "type", "veth", "peer", "name", ifname, "netns", pod.name)
    for namespace, name, last in ((host, veth, 1), (pod, ifname, 2)):
        namespace.set_sysctl(f"net/ipv6/conf/{name}/accept_dad", "0")
        namespace.set_sysctl(f"net/ipv6/conf/{name}/keep_addr_on_down", str(int(keep_ipv6)))
        namespace.ip("address", "add", f"{ipv4}{last}/24", "dev", name)
        namespace.ip("address", "add", f"{ipv6}{last}/64", "dev", name, "nodad")
        namespace.ip("link", "set", name, "up")
    mac = netstate.shown(pod, ifname)["address"]
    return {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": veth}, {"name": ifname, "mac": mac, "sandbox": pod.path}],
        "ips": [
            {"address": f"{ipv4}2/24", "gateway": f"{ipv4}1", "interface": 1},
            {"address": f"{ipv6}2/64", "gateway": f"{ipv6}1", "interface": 1},
        ],
        "routes": [],
    }
