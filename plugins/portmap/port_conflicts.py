"""Port conflicts: the rules of running containers come first, those of containers that are no longer running last.

No rule of another container is deleted. libcni's cache shows which containers are running, but it lists a
container only after its last plugin has finished; so a wrong conclusion must affect nothing but the order of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attachment.cache import ResultCache
from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError, Code
from plugins.portmap.conf import HostPorts, PortMapping
from process.values import dataclass


@dataclass(frozen=True)
class ForeignRule:
    """A rule of another container that forwards a host port.

    `host_ip` None means every address of the host, or an unknown one. `network` and `container_id` are "" if the rule
    does not name them. `conditional`: the rule has conditions that the attachment's rules do not have. It is then
    unknown which packets match both, and the rule is no conflict.
    """

    protocol: str
    host_port: int
    host_ip: Address | None
    network: str
    container_id: str
    conditional: bool = False


class ShadowedError(CniError):
    """The rule of a mapping exists, but a rule of another container for the same port comes first."""


def overlapping_mapping(host_ports: HostPorts, version: int, foreign: ForeignRule) -> PortMapping | None:
    """Returns the first mapping of `host_ports` that can match the same packets as `foreign`, None if there is none."""
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
    """Returns the index of the foreign rule before which to insert the rules of `host_ports`, None for the end.

    `foreign_rules` are in the order of the chain. The position is after the last conflicting rule of a running
    container, and before the rules of containers that are no longer running. Reads libcni's cache.
    With `host_ports.refuse_conflicts`, raises CniError(11) for an unconditional rule of a running container.
    """
    caches: dict[str, ResultCache] = {}
    position = None
    for index, foreign in enumerate(foreign_rules):
        mapping = overlapping_mapping(host_ports, version, foreign)
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
    """Returns whether the foreign rule takes packets from the mapping if it comes first."""
    return not foreign.conditional and mapping.overlaps(foreign.protocol, foreign.host_port, foreign.host_ip)


def shadowed_error(mapping: PortMapping, foreign: ForeignRule) -> ShadowedError:
    """Returns the error for a mapping whose rule comes after the foreign rule."""
    if foreign.container_id:
        msg = f"host port {mapping} is forwarded to {_describe_owner(foreign)}, whose rule comes first"
        fix = "the first container keeps the port: remove one of the two containers; GC deletes stale rules"
    else:
        msg = f"host port {mapping} is used by an earlier rule that names no container"
        fix = 'use another "hostPort", or delete that rule if no program needs it'
    return ShadowedError(Code.INTERNAL, msg, fix)


def _conflict_error(mapping: PortMapping, foreign: ForeignRule) -> CniError:
    return CniError(
        Code.TRY_AGAIN_LATER,
        f"host port {mapping} is in use by {_describe_owner(foreign)}",
        'remove that container, use another "hostPort" or "hostIP", or remove "onConflict"',
    )


def _describe_owner(foreign: ForeignRule) -> str:
    network = f" of network {foreign.network}" if foreign.network else ""
    return f"container {foreign.container_id}{network}" if foreign.container_id else "a rule that names no container"
