"""The host's routes through a device, which the kernel deletes when the device is moved.

A failed ADD adds them again. Routes of the kernel and of router advertisements are not among them: they follow the
addresses, or come again.
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
