"""A network of host-device, whose device is an end of a veth on the host."""

import os
from pathlib import Path

from tests.support.attaching import Network
from tests.support.namespaces import Namespace

MAC = "02:00:00:00:00:d0"
DEVICE, PEER = "hd0", "hp0"


def create_device(host: Namespace) -> None:
    """Creates hd0 on the host: up, with addresses, an MTU and an alias; its peer is hp0."""
    host.ip("link", "add", DEVICE, "address", MAC, "mtu", "1400", "type", "veth", "peer", "name", PEER)
    host.ip("link", "set", DEVICE, "alias", "card of the lab")
    for name in (PEER, DEVICE):
        host.ip("link", "set", name, "up")
    host.ip("address", "add", "192.0.2.7/24", "dev", DEVICE)
    host.ip("address", "add", "2001:db8::7/64", "dev", DEVICE, "nodad")


def dual_stack(host: Namespace, directory: Path, store: Path) -> Network:
    """Returns a dual-stack network with the device; the files of moved devices are below `directory`."""
    ranges = [[{"subnet": "10.26.0.0/24"}], [{"subnet": "fd00:26::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "dataDir": str(store)}
    keys = {"device": DEVICE, "dataDir": str(directory / "devices"), "ipam": ipam}
    return Network(host, {"cniVersion": "1.1.0", "name": "net", "type": "host-device", **keys})


def files(net: Network) -> list[str]:
    """Returns the names of the files of moved devices."""
    directory = Path(net.config["dataDir"])
    return sorted(os.listdir(directory)) if directory.is_dir() else []
