"""The specification of an attachment's masquerading, independent of the backend.

This module is pure.
"""

from __future__ import annotations

from cni.address import Cidr, Network
from process.values import dataclass


@dataclass(frozen=True)
class Masquerade:
    """An attachment whose traffic is masqueraded, except to its own subnets, to multicast and to `exempt`.

    `addresses` are the attachment's, with the prefix of their subnet (10.22.0.2/16). With `cluster` the cluster's
    networks are exempt, too, which podwire-agent keeps in sets and chains of their own (attachment.masquerade.cluster).
    """

    network: str
    container_id: str
    ifname: str
    addresses: tuple[Cidr, ...] = ()
    exempt: tuple[Network, ...] = ()
    cluster: bool = False
