"""The specification of an attachment's firewall rules, independent of the backend.

Nothing here touches the kernel.
"""

from __future__ import annotations

from cni.address import Address
from process.values import dataclass

OPEN, SAME_BRIDGE, ISOLATED = "open", "same-bridge", "isolated"
POLICIES = (OPEN, SAME_BRIDGE, ISOLATED)


@dataclass(frozen=True)
class FirewallSpec:
    """An attachment: packets from its `addresses` are accepted, and replies to them.

    `policy` limits which pods may reach it through `bridge`, "" for policy open; `ports` are the attachment's other
    host interfaces, such as the bridge port. `admin_chain` has the administrator's rules, before the
    plugin's; `zone` is firewalld's. With `accepts` False only the policy applies, and firewalld accepts the addresses.
    """

    network: str
    container_id: str
    ifname: str
    addresses: tuple[Address, ...] = ()
    policy: str = OPEN
    bridge: str = ""
    ports: tuple[str, ...] = ()
    admin_chain: str = "CNI-ADMIN"
    zone: str = "trusted"
    accepts: bool = True

    @property
    def versions(self) -> list[int]:
        """The IP versions (4, 6) of the addresses, in order."""
        return sorted({address.version for address in self.addresses})
