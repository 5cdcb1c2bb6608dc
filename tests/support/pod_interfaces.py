"""The plugins that create or move a pod's interface without a bridge: their configurations, and the objects they need.

One rule: the objects have fixed names and MAC addresses, so that the states of two hosts can be compared.
"""

import json
from pathlib import Path
from typing import Any

from tests.support.namespaces import Namespace
from tests.support.netstate import State
from tests.support.processes import output
from tests.support.uplink import UPLINK

NODE = ("10.25.0.250", "fd00:25::250")  # the node's addresses on the master
_DEVICE = "hd"
_ACCESS = "pwha"  # the beginning of a host link's name
_ACCESS_PROTOCOL = "112"  # of the routes through it

# The keys of each plugin, except those that differ between pods.
KEYS: dict[str, dict[str, Any]] = {
    "dummy": {},
    "host-device": {},
    "ipvlan": {"master": UPLINK},
    "macvlan": {"master": UPLINK, "hostAccess": True},
    "tap": {"multiQueue": True, "owner": 0},
    "vlan": {"master": UPLINK},
}


def create_objects(host: Namespace, devices: int) -> None:
    """Creates a master with the node's addresses, and `devices` devices, hd0 and so on, each up with addresses."""
    commands = [f"link add {UPLINK} address {_mac(0, 0)} type veth peer name up1 address {_mac(0, 1)}"]
    commands += [f"link set {name} up" for name in (UPLINK, "up1")]
    commands += [f"address add {NODE[0]}/24 dev {UPLINK}", f"address add {NODE[1]}/64 dev {UPLINK} nodad"]
    for number in range(devices):
        device, peer = f"{_DEVICE}{number}", f"hp{number}"
        commands += [f"link add {device} address {_mac(1, number)} type veth peer {peer} address {_mac(2, number)}"]
        commands += [f"link set {name} up" for name in (peer, device)]
        commands += [f"address add 192.0.2.{number}/32 dev {device}"]
        commands += [f"address add 2001:db8::{number:x}/128 dev {device} nodad"]
    output("ip", "-n", host.name, "-batch", "-", stdin="\n".join(commands))


def restore_device(host: Namespace) -> None:
    """Gives the first device its state again, as it was created."""
    device = f"{_DEVICE}0"
    commands = [f"link set {device} address {_mac(1, 0)} mtu 1500 up", f"address replace 192.0.2.0/32 dev {device}"]
    commands += [f"address replace 2001:db8::/128 dev {device} nodad"]
    output("ip", "-n", host.name, "-force", "-batch", "-", stdin="\n".join(commands), check=False)


def keys_of_pod(plugin: str, number: int) -> dict[str, Any]:
    """Returns the keys that differ between the pods of a network, whose `number` is unique."""
    keys: dict[str, dict[str, Any]] = {
        "host-device": {"device": f"{_DEVICE}{number}"},
        "vlan": {"vlanId": 100 + number},
    }
    return keys.get(plugin, {})


def options(plugin: str, number: int, store: Path) -> dict[str, Any]:
    """Returns all keys of a plugin for a pod; host-device's files are beside host-local's `store`."""
    files = {"dataDir": str(devices_directory(store))} if plugin == "host-device" else {}
    return {**KEYS[plugin], **keys_of_pod(plugin, number), **files}


def devices_directory(store: Path) -> Path:
    """Returns the directory of host-device's files, beside host-local's `store`."""
    return store.with_name(f"{store.name}-devices")


def device_files(store: Path) -> list[str]:
    """Returns the names of host-device's files, with drafts."""
    directory = devices_directory(store)
    return sorted(file.name for file in directory.iterdir()) if directory.is_dir() else []


def host_access(host_state: State) -> list[str]:
    """Returns the host links and the routes to pods in a host's state."""
    links = [name for name in host_state["links"] if name.startswith(_ACCESS)]
    routes = [route for routes in host_state["routes"].values() for route in routes]
    return links + [json.dumps(route) for route in routes if route.get("protocol") == _ACCESS_PROTOCOL]


def end_pod(pod: Namespace, host: str) -> None:
    """Deletes a pod's namespace; moves devices to `host`, name or PID, as the kernel does with physical devices.

    A device here is a veth, which the kernel would delete.
    """
    if pod.exists():
        for link in json.loads(pod.ip("-j", "link", "show", "type", "veth") or "[]"):
            # As in the kernel, the interface keeps the name that it had in the pod.
            pod.ip("link", "set", link["ifname"], "name", f"dev{link['ifindex']}", "netns", host)
    pod.delete()


def _mac(kind: int, number: int) -> str:
    return f"02:00:00:{kind + 16:02x}:{number >> 8:02x}:{number & 255:02x}"
