"""Conflicts over a host port: a running container keeps it, one that is no longer running loses it.

One rule: no rule of another container is deleted here. libcni's cache shows which containers are running, but it knows
a container only after its last plugin has finished; so a wrong conclusion may only change the order of two rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attachment.cache import ResultCache
from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError, Code
from plugins.portmap.spec import HostPorts, PortMapping
from process.values import dataclass


@dataclass(frozen=True)
class ForeignRule:
    """A rule of another container that forwards a host port.

    `network` and `container_id` are "" if the rule does not name them. `host_ip` None means every address of the host,
    or that the address was not looked up. `conditional`: the rule has conditions that ours lacks. Which packets match
    both is then unknown, so the rule counts as little of a conflict as one for another address of the host.
    """

    protocol: str
    host_port: int
    host_ip: Address | None
    network: str
    container_id: str
    conditional: bool = False


class ShadowedError(CniError):
    """A mapping's rule exists, but another container's rule for the same port comes first."""


def conflicting_mapping(host_ports: HostPorts, version: int, foreign: ForeignRule) -> PortMapping | None:
    """Returns the first mapping of `host_ports` that shares packets with `foreign`, None if there is none."""
    for mapping in host_ports.mappings_for(version):
        if mapping.overlaps(foreign.protocol, foreign.host_port, foreign.host_ip):
            return mapping
    return None


def find_position(
    host_ports: HostPorts,
    version: int,
    foreign_rules: Sequence[ForeignRule],
    read_cache: Callable[[str], ResultCache] = ResultCache.read,
) -> int | None:
    """Returns the index of the foreign rule before which the rules of `host_ports` belong, None for the end.

    `foreign_rules` are in the order of the chain; those without a conflict are ignored. Rules go after those of running
    containers and before those of containers that are no longer running. Reads libcni's cache.
    Raises CniError(11) with `host_ports.refuse_conflicts` if a running container's unconditional rule has the port.
    """
    caches: dict[str, ResultCache] = {}
    position = None
    for index, foreign in enumerate(foreign_rules):
        mapping = conflicting_mapping(host_ports, version, foreign)
        if mapping is None:
            continue
        if foreign.network not in caches:
            caches[foreign.network] = read_cache(foreign.network)
        if foreign.container_id and caches[foreign.network].is_gone(Attachment(foreign.container_id, "")):
            position = index if position is None else position
            continue
        if host_ports.refuse_conflicts and not foreign.conditional:
            raise _conflict_error(mapping, foreign)
        position = None
    return position


def is_shadowed(foreign: ForeignRule, mapping: PortMapping) -> bool:
    """Returns whether the mapping gets no packets if the foreign rule comes first."""
    return not foreign.conditional and mapping.overlaps(foreign.protocol, foreign.host_port, foreign.host_ip)


def shadowed_error(mapping: PortMapping, foreign: ForeignRule) -> ShadowedError:
    """Returns the error of a mapping whose rule comes after another container's."""
    return ShadowedError(
        Code.INTERNAL,
        f"host port {mapping} is forwarded to {_owner(foreign)}, whose rule comes first",
        "the container that was first keeps a host port; remove one of the two, or GC if that one is gone",
    )


def _conflict_error(mapping: PortMapping, foreign: ForeignRule) -> CniError:
    return CniError(
        Code.TRY_AGAIN_LATER,
        f"host port {mapping} is taken by {_owner(foreign)}",
        'remove that container, use another "hostPort" or "hostIP", or leave out "onConflict"',
    )


def _owner(foreign: ForeignRule) -> str:
    network = f" of network {foreign.network}" if foreign.network else ""
    return f"container {foreign.container_id}{network}" if foreign.container_id else "a rule that names no container"
