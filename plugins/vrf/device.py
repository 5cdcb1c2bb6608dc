"""The VRF device of a pod: finds or creates it, and deletes it with its last port.

One rule: only a device whose alias says that podwire created it is deleted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from cni.errors import CniError, internal
from kernel import link, modules, rule, vrf
from kernel.errors import KernelError, reason
from kernel.link import Link
from kernel.route_copy import TableRoute
from kernel.rtnl import Request, Socket
from kernel.vrf import Vrf
from plugins.vrf import tables
from plugins.vrf.conf import VrfConf
from process.stderr import one_line
from process.undo import Undo

ALIAS = "podwire"  # of each device that podwire created


def get(socket: Socket, ifname: str, name: str) -> tuple[Link | None, Vrf | None]:
    """Returns the pod's interface and the link called `name`, None for missing ones; raises KernelError."""
    interface, device = socket.get(link.by_name_request(ifname), vrf.get_request(name))
    return interface and link.from_message(interface), device and vrf.from_message(device)


def create(socket: Socket, conf: VrfConf, routes: Sequence[TableRoute], undo: Undo) -> Vrf:
    """Creates the VRF device with its alias, and returns it; without a configured table, with a free one.

    The caller holds the lock of the namespace, so that no other verb chooses the same table. `routes` are those of the
    namespace. Raises KernelError, CniError(999).
    """
    vrfs, rules, with_routes = vrf.list_all(socket), rule.list_all(socket), {item.table for item in routes}
    table = conf.table or tables.choose(vrfs, rules, with_routes)
    if conf.table and (others := tables.uses(table, conf.name, vrfs, rules, with_routes)):
        text = f"vrf: table {table} of VRF {conf.name} is also used by {', '.join(others)}"
        print(one_line(f"{text}: their routes are not separate"), file=sys.stderr)
    # Pushed before the requests, whose answers may be lost.
    undo.push(f"delete VRF {conf.name}", partial(socket.change, vrf.delete_request(conf.name)))
    request, lookup = vrf.create_request(conf.name, table), vrf.get_request(conf.name)
    try:
        with failing_as(request, f"could not add VRF {conf.name}"):
            (message,) = socket.change(request, vrf.set_alias_request(conf.name, ALIAS), then=[lookup])
    except CniError as error:
        if isinstance(error.__cause__, KernelError) and error.__cause__.errno == errno.EEXIST:
            undo.clear()  # another program has created the device meanwhile, and this verb nothing
        raise
    if message is None:
        raise internal(f"could not add VRF {conf.name}: link not found", "something deleted it meanwhile")
    return vrf.from_message(message)


def ensure_rules(socket: Socket) -> None:
    """Adds the l3mdev rules that are missing: the kernel adds them once in the life of a namespace."""
    if missing := versions_without_rule(socket):
        socket.change(*map(rule.add_l3mdev_request, missing))


def versions_without_rule(socket: Socket) -> list[int]:
    """Returns the IP versions whose l3mdev rule is missing; raises KernelError."""
    with_rule = {item.version for item in rule.list_all(socket) if item.is_l3mdev}
    return [version for version in (4, 6) if version not in with_rule]


def delete_if_unused(socket: Socket, device: Vrf, leaving: Link | None) -> bool:
    """Deletes a VRF device that podwire created if it has no other port than `leaving`; returns whether it did.

    Deleting it releases the port. Raises KernelError.
    """
    if device.alias != ALIAS:
        return False
    if any(leaving is None or port.index != leaving.index for port in link.list_ports(socket, device.index)):
        return False
    socket.change(vrf.delete_request(device.name))
    return True


@contextmanager
def failing_as(request: Request, text: str) -> Iterator[None]:
    """Runs a block; the refusal of `request` in it becomes a CniError(999) with the reference plugin's `text`."""
    try:
        yield
    except KernelError as error:
        if error.description != request.description:
            raise
        details = modules.explain_missing("vrf") if error.errno == errno.EOPNOTSUPP else error.details
        raise internal(f"{text}: {reason(error.errno)}", details) from error
