"""host-local's allocator with a store in a temporary directory, called without the plugin."""

import json
import os
from ipaddress import ip_address, ip_network
from pathlib import Path

from attachment.cache import ResultCache
from cni.conf import Attachment
from cni.errors import CniError
from ipam.host_local import allocator
from ipam.host_local.ranges import Range, RangeSet
from ipam.host_local.store import ReservationStore
from tests.support.errors import error_of


def pool(*subnets, first=1, last=None):
    ranges = []
    for subnet in subnets:
        network = ip_network(subnet)
        base = int(network.network_address)
        end = base + last if last else int(network.broadcast_address) - 1
        ranges.append(Range(network, base + first, end, network[1]))
    return RangeSet(tuple(ranges))


class Net:
    """A network's store and ranges; its result cache is missing until a test writes an entry."""

    def __init__(self, tmp_path, *pools):
        self.store = ReservationStore(str(tmp_path / "leases"), "net")
        self.results = tmp_path / "results"
        self.pools = pools

    def cache(self):
        return ResultCache.read("net", str(self.results))

    def add(self, container_id, *requested, ifname="eth0"):
        addresses = tuple(map(ip_address, requested))
        with self.store.locked() as held:
            ips = allocator.allocate(held, Attachment(container_id, ifname), self.pools, addresses, self.cache)
        return [str(ip.address) for ip in ips]

    def refusal(self, container_id, *requested):
        return error_of(lambda: self.add(container_id, *requested), CniError)

    def list_owners(self):
        return self.store.list_owners()

    def file(self, name, content=""):
        os.makedirs(self.store.directory, exist_ok=True)
        Path(self.store.directory, name).write_text(content, newline="")

    def cached(self, container_id, netns, network="net"):
        self.results.mkdir(exist_ok=True)
        entry = {"kind": "cniCacheV1", "networkName": network, "containerId": container_id, "ifName": "eth0"}
        (self.results / f"{network}-{container_id}-eth0").write_text(json.dumps({**entry, "netns": netns}))

    def status(self, number=0):
        return allocator.exhaustion_error(self.store, number, self.pools[number], self.cache)
