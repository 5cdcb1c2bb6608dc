"""Subnets that are exempt from the limits, or the only ones that are limited.

One rule: a configuration without subnets gets plain token buckets, as from the reference plugin.
"""

from __future__ import annotations

from cni.address import Network
from kernel import htb, traffic
from kernel.rtnl import Request
from kernel.traffic import LIMITED, PASSED, AddressFilter, Bucket
from process.values import dataclass


@dataclass(frozen=True)
class Subnets:
    """Networks that are exempt from the limits, or, with `only`, the only limited ones; () limits all traffic."""

    networks: tuple[Network, ...] = ()
    only: bool = False

    @property
    def default(self) -> int:
        """The minor number of the class for packets to the pod from all other networks, 0 for none."""
        return 0 if self.only else LIMITED & 0xFFFF

    @property
    def ingress_filters(self) -> list[AddressFilter]:
        """The filters for packets to the pod."""
        return self._filters(LIMITED if self.only else PASSED, source=True)

    def egress_filters(self, ifb: int) -> list[AddressFilter]:
        """Returns the filters for packets from the pod, which are limited on the ifb with that index."""
        return self._filters(LIMITED if self.only else PASSED, ifb if self.only else None, source=False)

    def _filters(self, classid: int, target: int | None = None, *, source: bool) -> list[AddressFilter]:
        return [AddressFilter(htb.selector(item, source=source), classid, target) for item in self.networks]


EVERYWHERE = Subnets()


def ingress_requests(index: int, bucket: Bucket, subnets: Subnets) -> list[Request]:
    """Returns the requests that limit packets to the pod on its host veth; `index` is an ifindex."""
    if not subnets.networks:
        return [traffic.create_tbf_request(index, bucket)]
    filters = traffic.add_filter_requests(index, traffic.HTB_HANDLE, subnets.ingress_filters)
    return [*htb.create_requests(index, bucket, subnets.default), *filters]


def egress_requests(index: int, ifb: int, subnets: Subnets) -> list[Request]:
    """Returns the requests that redirect packets from the pod (host veth `index`) to the ifb; both are ifindexes."""
    everything = [] if subnets.only else [traffic.add_redirect_request(index, ifb)]
    return [*traffic.add_filter_requests(index, traffic.RECEIVED, subnets.egress_filters(ifb)), *everything]
