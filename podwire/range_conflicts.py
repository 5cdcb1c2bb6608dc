"""Finds networks of this machine, other than a given one, that allocate the same addresses: of net.d, and of podman.

podman's own networks are not in net.d: its default network is built in, and netavark has a directory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_network

from cni.address import Network as Subnet
from cni.errors import CniError
from podwire import networks, renumbering, runtimes
from podwire.networks import Network


def find(new: Network, conf_dir: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each subnet of another network that overlaps with one of `new`; raises CniError(5)."""
    ours = [item.subnet for item in renumbering.list_ranges(new)]
    others = networks.by_name(networks.read_directory(conf_dir))
    for name, other in others.items():
        for item in renumbering.list_ranges(other) if name != new.name else ():
            yield from _compare(ours, item.subnet, f'network "{name}" ({other.path})')
    with suppress(CniError, ValueError):  # podman's settings, and podman's problem
        for name, source, text in runtimes.list_podman_subnets(env):
            if name not in others:
                yield from _compare(ours, ip_network(text), f'podman\'s network "{name}" ({source})')


def _compare(ours: list[Subnet], subnet: Subnet, owner: str) -> Iterator[str]:
    for one in ours:
        if one.overlaps(subnet):
            yield f"{one} overlaps with {subnet} of {owner}: two containers can get one address; use another subnet"
