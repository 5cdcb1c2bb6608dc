"""Networks to and from which nothing is limited, or to and from which alone something is.

One rule: without any, all is as if this file did not exist.
"""

from __future__ import annotations

from cni.address import Network
from kernel import htb, traffic
from kernel.rtnl import Request
from kernel.traffic import LIMITED, PASSED, Bucket, Rule
from process.values import dataclass


@dataclass(frozen=True)
class Subnets:
    """Networks that are exempt from the limits, or, if `only`, that alone are limited; () for no difference."""

    networks: tuple[Network, ...] = ()
    only: bool = False

    @property
    def default(self) -> int:
        """The number of the class for what the pod receives from elsewhere, 0 for none."""
        return 0 if self.only else LIMITED & 0xFFFF

    @property
    def incoming(self) -> list[Rule]:
        """The rules for what the pod receives."""
        return self._rules(LIMITED if self.only else PASSED, source=True)

    def outgoing(self, ifb: int) -> list[Rule]:
        """Returns the rules for what the pod sends, which is limited on the ifb of that index."""
        return self._rules(LIMITED if self.only else PASSED, ifb if self.only else None, source=False)

    def _rules(self, classid: int, target: int | None = None, *, source: bool) -> list[Rule]:
        return [Rule(htb.selector(item, source=source), classid, target) for item in self.networks]


EVERYWHERE = Subnets()


def receiving(index: int, bucket: Bucket, subnets: Subnets) -> list[Request]:
    """Limits what the host's end of that index sends to the pod."""
    if not subnets.networks:
        return [traffic.create_tbf_request(index, bucket)]
    filters = traffic.add_rule_requests(index, traffic.HTB_HANDLE, subnets.incoming)
    return [*htb.create_requests(index, bucket, subnets.default), *filters]


def sending(index: int, ifb: int, subnets: Subnets) -> list[Request]:
    """Leads what the pod sends to the ifb."""
    everything = [] if subnets.only else [traffic.add_redirect_request(index, ifb)]
    return [*traffic.add_rule_requests(index, traffic.RECEIVED, subnets.outgoing(ifb)), *everything]
