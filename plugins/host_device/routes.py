"""Lists the host's routes through a device, which a move deletes, and restores them after a failed ADD.

Routes that the kernel or router advertisements add are not listed: they return with the addresses, or are advertised
again.
"""

from __future__ import annotations

from kernel import link, route_copy
from kernel.errors import KernelError
from kernel.link import Link
from kernel.route_copy import TableRoute
from kernel.rtnl import Socket

_AUTOMATIC = (1, 2, 9)  # RTPROT_REDIRECT, RTPROT_KERNEL (linux/rtnetlink.h), RTPROT_RA


def list_through(host: Socket, item: Link) -> tuple[TableRoute, ...]:
    """Returns the routes whose next hops are all on a link, those without a gateway first; raises KernelError."""
    if not item.is_up:
        return ()
    routes = map(route_copy.from_message, host.dump(route_copy.list_request()))
    through = [each for each in routes if each.is_through(item) and each.values["proto"] not in _AUTOMATIC]
    return tuple(sorted(through, key=lambda each: any(each.gateways)))


def restore(host: Socket, name: str, routes: tuple[TableRoute, ...]) -> None:
    """Adds the routes again through the link called `name`, whose index may be another; raises KernelError."""
    (item,) = link.get(host, link.by_name_request(name))
    if item is None:
        return
    failure = None
    for each in routes:
        attributes = tuple((key, item.index if key == "RTA_OIF" else value) for key, value in each.attributes)
        try:
            host.change(route_copy.add_request(each._replace(attributes=attributes), each.table))
        except KernelError as error:
            failure = error
    if failure:
        raise failure
