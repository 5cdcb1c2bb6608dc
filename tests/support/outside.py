"""A machine at a node's uplink, which has addresses outside and routes to the node's pods."""

from tests.support.namespaces import Namespace

NODE, NODE6 = "198.51.100.1", "2001:db8::1"
EXTERNAL, EXTERNAL6 = "198.51.100.2", "2001:db8::2"  # of the machine


def connect(host: Namespace, machine: Namespace, *further: str) -> None:
    """Connects a node with a machine, which also has the `further` addresses; the node has routes to these."""
    host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", machine.name)
    for end, name, cidrs in (
        (host, "uplink", (f"{NODE}/24", f"{NODE6}/64")),
        (machine, "eth0", (f"{EXTERNAL}/24", f"{EXTERNAL6}/64", *further)),
    ):
        for cidr in cidrs:
            end.ip("address", "add", cidr, "dev", name, *(["nodad"] if ":" in cidr else []))
        end.ip("link", "set", name, "up")
    for ip in further:
        host.ip("route", "add", ip, "via", EXTERNAL6 if ":" in ip else EXTERNAL)
    for subnet, gateway in (("10.22.0.0/16", NODE), ("fd00:22::/64", NODE6)):
        machine.ip("route", "add", subnet, "via", gateway)
