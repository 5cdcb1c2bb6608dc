"""A change of the addresses that a network gives to its pods, as `podwire install --conf` may make one.

One rule: a bridge has the gateway of the pods that run on it, and new pods with another gateway are refused; so the
change is refused while such pods run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from cni.conf import NetConf
from cni.errors import CniError, Code
from cni.fields import Fields
from ipam.host_local import conf as host_local
from podwire import attachments, networks
from podwire.networks import Network


@dataclass(frozen=True)
class Change:
    """The ranges of a network `before` and `after`; `pods` run on a bridge that both configurations name."""

    name: str
    before: str
    after: str
    bridges: frozenset[str]
    pods: int

    def __str__(self) -> str:
        return f'addresses of network "{self.name}": {self.before} -> {self.after}'

    def refuse_with_pods(self) -> None:
        """Raises CniError(7) while pods run that would keep new ones from the bridge."""
        if self.bridges and self.pods:
            pods = f"{self.pods} pod{' runs' if self.pods == 1 else 's run'}"
            bridge = ", ".join(sorted(self.bridges))
            raise CniError(
                Code.INVALID_NETWORK_CONFIG,
                f'{pods} in network "{self.name}" with addresses of {self.before}; the new file has {self.after}',
                f"bridge {bridge} has the gateway of these pods, and new pods would fail: remove the pods first (list "
                f'them: podwire show {quote(self.name)}), or set "bridge" to another name; --force writes the file '
                "all the same",
            )


def find(new: Network, conf_dir: str, cache_dir: str) -> Change | None:
    """Returns how the ranges of `new` differ from those in `conf_dir`, or without a file, from those of running pods.

    None when they do not differ, or nothing is there. Raises CniError(5).
    """
    configured = networks.by_name(networks.read_directory(conf_dir)).get(new.name)
    running = [one for one in attachments.list_cached(cache_dir, new.name) if one.may_be_running]
    old = configured or next((one.network for one in running if one.network), None)
    if old is None:
        return None
    before, after = _ranges(old), _ranges(new)
    shared = frozenset(_bridges(old)) & frozenset(_bridges(new))
    return Change(new.name, before, after, shared, len(running)) if before != after else None


def _ranges(network: Network) -> str:
    """Returns the subnets of host-local's ranges, and gateways that are not the first address of theirs."""
    texts = []
    for plugin in network.plugins:
        items = network.build_config(plugin)
        conf = NetConf(network.name, network.version, Fields(items), items)
        with suppress(CniError):  # `podwire lint` says what is wrong with ranges
            if conf.ipam_type == "host-local":
                for own in (item for one in host_local.range_sets(conf) for item in one.ranges):
                    usual = own.gateway == own.subnet.network_address + 1
                    texts.append(f"{own.subnet}" if usual else f"{own.subnet} (gateway {own.gateway})")
    return ", ".join(dict.fromkeys(texts)) or "none of host-local"


def _bridges(network: Network) -> Iterator[str]:
    for plugin in network.plugins:
        if plugin["type"] == "bridge":
            with suppress(CniError):
                yield Fields(plugin).string("bridge", "cni0")
