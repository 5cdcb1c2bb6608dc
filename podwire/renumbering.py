"""Finds a change of a network's address ranges, which `podwire install --conf` may cause.

The bridge keeps the gateway of its running pods, and ADD refuses pods with another gateway; so the change is
refused while such pods run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from cni.errors import CniError, invalid_conf
from cni.fields import Fields
from ipam.host_local.ranges import Range
from podwire import attachments, networks
from podwire.layers import Layer
from podwire.networks import Network
from podwire.node.records import host_local_pools


@dataclass(frozen=True)
class RangeChange:
    """A network's ranges `before` and `after`, the `bridges` of both configurations, and the number of running pods."""

    name: str
    before: str
    after: str
    bridges: frozenset[str]
    pods: int

    def __str__(self) -> str:
        return f'addresses of network "{self.name}": {self.before} -> {self.after}'

    def refuse_with_pods(self) -> None:
        """Raises CniError(7) while pods run whose gateway would keep new pods from the bridge."""
        if self.bridges and self.pods:
            pods = f"{self.pods} pod{' runs' if self.pods == 1 else 's run'}"
            bridge = ", ".join(sorted(self.bridges))
            raise invalid_conf(
                f'{pods} in network "{self.name}" with addresses of {self.before}; the new file has {self.after}',
                f"bridge {bridge} has the gateway of these pods, and new pods would fail: remove the pods first (list "
                f'them: podwire show {quote(self.name)}), or set "bridge" to another name; --force writes the file '
                "all the same",
            )


def find(new: Network, conf_dir: str, layers: Sequence[Layer]) -> RangeChange | None:
    """Returns how the ranges of `new` differ from those in `conf_dir`, or else from running pods' ranges.

    None if they are the same or there is nothing to compare. Raises CniError(5).
    """
    configured = networks.by_name(networks.read_directory(conf_dir)).get(new.name)
    running = [one for one in attachments.list_cached(layers, new.name) if one.may_be_running]
    old = configured or next((one.network for one in running if one.network), None)
    if old is None:
        return None
    before, after = _ranges(old), _ranges(new)
    shared = frozenset(_bridges(old)) & frozenset(_bridges(new))
    return RangeChange(new.name, before, after, shared, len(running)) if before != after else None


def list_ranges(network: Network) -> Iterator[Range]:
    """Yields the ranges of addresses that host-local allocates in a network."""
    for _, range_sets in host_local_pools(network):
        yield from (item for one in range_sets for item in one.ranges)


def _ranges(network: Network) -> str:
    """Returns host-local's subnets as text, each with its gateway unless that is the first address."""
    texts = []
    for address_range in list_ranges(network):
        usual = address_range.gateway == address_range.subnet.network_address + 1
        gateway = "" if usual else f" (gateway {address_range.gateway})"
        texts.append(f"{address_range.subnet}{gateway}")
    return ", ".join(dict.fromkeys(texts)) or "none of host-local"


def _bridges(network: Network) -> Iterator[str]:
    for plugin in network.plugins:
        if plugin["type"] == "bridge":
            with suppress(CniError):
                yield Fields(plugin).string("bridge", "cni0")
