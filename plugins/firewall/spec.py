"""What the firewall is to do for an attachment, whatever the backend.

One rule: nothing here touches the kernel.
"""

from __future__ import annotations

from cni.address import Address
from process.values import dataclass

OPEN, SAME_BRIDGE, ISOLATED = "open", "same-bridge", "isolated"
POLICIES = (OPEN, SAME_BRIDGE, ISOLATED)


@dataclass(frozen=True)
class FirewallSpec:
    """One attachment: what its `addresses` send passes, and what answers them.

    `policy` says who of other networks and of its own may reach it by `bridge`, "" for an open one; `ports` are
    the host's other interfaces that are the attachment's, such as the bridge's port.
    `admin_chain` is for rules of the administrator's, in front of ours; `zone` is firewalld's. With `accepts` off only
    the policy is wanted, since something else lets the addresses through.
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
