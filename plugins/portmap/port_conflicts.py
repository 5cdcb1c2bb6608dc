"""Who else has a host port, and who gets it: a container that lives keeps it, one that is gone loses it.

One rule: no rule of another container is deleted here. That a container is gone is concluded from libcni's cache, which
knows one only when its last plugin is done; so a wrong conclusion must cost nothing but the order of two rules.
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
class Claim:
    """A rule of another container that takes a host port; `network`, `container_id` "" where the rule does not tell.

    `host_ip` None stands for every address of the host, and for one that was not looked up. With `conditional` the rule
    has conditions that ours has not: which packets both are for is not known, so they are in each other's way no more
    than two addresses of the host are.
    """

    protocol: str
    host_port: int
    host_ip: Address | None
    network: str
    container_id: str
    conditional: bool = False


class ShadowedError(CniError):
    """A mapping is there, but behind another container's."""


def contested(wanted: HostPorts, version: int, claim: Claim) -> PortMapping | None:
    """Returns the mapping of `wanted` that a packet for `claim` can be for as well, None when there is none."""
    for mapping in wanted.of(version):
        if mapping.overlaps(claim.protocol, claim.host_port, claim.host_ip):
            return mapping
    return None


def place(
    wanted: HostPorts,
    version: int,
    claims: Sequence[Claim],
    read_cache: Callable[[str], ResultCache] = ResultCache.read,
) -> int | None:
    """Returns the index of the claim in front of which the rules of `wanted` belong, None when they go to the end.

    `claims` stand in the order of their rules; those that are not contested do not count. Rules go behind those of
    containers that live and in front of those of containers that are gone.
    Raises CniError(11) for a port that a living container has, if `wanted.refuse_taken`, unless conditionally.
    """
    caches: dict[str, ResultCache] = {}
    found = None
    for index, claim in enumerate(claims):
        mapping = contested(wanted, version, claim)
        if mapping is None:
            continue
        if claim.network not in caches:
            caches[claim.network] = read_cache(claim.network)
        if claim.container_id and caches[claim.network].is_gone(Attachment(claim.container_id, "")):
            found = index if found is None else found
            continue
        if wanted.refuse_taken and not claim.conditional:
            raise _taken(mapping, claim)
        found = None
    return found


def shadows(claim: Claim, mapping: PortMapping) -> bool:
    """Tells whether the mapping does not get its port when the claim's rule stands first."""
    return not claim.conditional and mapping.overlaps(claim.protocol, claim.host_port, claim.host_ip)


def shadowed(mapping: PortMapping, claim: Claim) -> ShadowedError:
    """Returns (does not raise) the error of a mapping that is there, but behind another container's."""
    return ShadowedError(
        Code.INTERNAL,
        f"host port {mapping} leads to {_owner(claim)}, whose rule stands first",
        "the container that was first keeps a host port; remove one of the two, or GC if that one is gone",
    )


def _taken(mapping: PortMapping, claim: Claim) -> CniError:
    return CniError(
        Code.TRY_AGAIN_LATER,
        f"host port {mapping} is taken by {_owner(claim)}",
        'remove that container, use another "hostPort" or "hostIP", or leave out "onConflict"',
    )


def _owner(claim: Claim) -> str:
    network = f" of network {claim.network}" if claim.network else ""
    return f"container {claim.container_id}{network}" if claim.container_id else "a rule that names no container"
