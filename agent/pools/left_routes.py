"""Routes that plugins have left on this node for a block: bridge adds one to each subnet without its gateway.

One rule: a route is deleted only while the block is revoked and no pod has an address of it. It would win over the
route to the block's next owner, for packets of this node.
"""

from __future__ import annotations

from collections.abc import Callable

from cni.address import Network, with_prefix
from cni.result import Route
from kernel import link, protocol_route, route
from kernel.errors import KernelError
from kernel.rtnl import Socket

_BOOT = 3  # the protocol number of routes from CNI plugins
_ANY_METRIC = 1 << 32


class LeftRoutes:
    """Deletes them; a failure is logged."""

    def __init__(self, log: Callable[[str, str], None]) -> None:
        self._log = log

    def delete(self, block: Network) -> None:
        """Deletes the routes through bridges to exactly this block."""
        try:
            with Socket() as socket:
                self._delete(socket, block)
        except (KernelError, OSError) as error:
            self._log("warning", f"a route to block {block}, which this node gives back, may be left: {error}")

    def _delete(self, socket: Socket, block: Network) -> None:
        destination = frozenset((protocol_route.pack_network(block),))
        to_block = Route(with_prefix(block.network_address, block.prefixlen), scope=route.SCOPE_LINK)
        for each in protocol_route.list_shadowing(socket, destination, _ANY_METRIC):
            if each.protocol != _BOOT or each.hop.gateway or each.hop.ifindex <= 0:
                continue
            (device,) = link.get(socket, link.by_index_request(each.hop.ifindex))
            if device and device.kind == "bridge":
                socket.change(route.delete_request(device, to_block, None))
