"""Creates an attachment's veth with its host end as a port of the bridge.

The port has its VLANs, hairpin mode and isolation before the container's end comes up, so no frame passes without them.
"""

from __future__ import annotations

from attachment import veth
from cni.errors import CniError, Code
from kernel import link, sysctl
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from kernel.vlan import Filtering
from plugins.bridge import vlan
from plugins.bridge.conf import BridgeConf
from process.undo import Undo
from process.values import dataclass


class BridgeDeletedError(CniError):
    """The bridge was deleted before the veth was attached to it, perhaps by the rollback of the ADD that created it."""

    def __init__(self, bridge: Link) -> None:
        super().__init__(
            Code.TRY_AGAIN_LATER,
            f'bridge "{bridge.name}" was deleted during this ADD',
            "another ADD that failed, or another program, deleted it; try again",
        )


@dataclass(frozen=True)
class AttachedVeth:
    """A veth whose host end is a port of `bridge` and up; `bridge` is the bridge's state after the veth was attached.

    `container_veth` is None if the caller has to look it up, `filtering` is None if no VLANs are configured.
    """

    bridge: Link
    host_veth: Link
    container_veth: Link | None
    filtering: Filtering | None


def create(host: Socket, namespace: Netns, ifname: str, bridge: Link, conf: BridgeConf, undo: Undo) -> AttachedVeth:
    """Creates the veth, attaches its host end to the bridge and configures the port.

    Raises KernelError, BridgeDeletedError, and CniError(999) when the container already has an interface `ifname`.
    """
    try:
        filtering = vlan.get_required_filtering(host, bridge, conf.vlans)
        created = veth.create(host, namespace, ifname, undo, mac=conf.mac, mtu=conf.mtu, master=bridge)
    except CniError as error:
        if link.get(host, link.by_index_request(bridge.index)) == [None]:
            raise BridgeDeletedError(bridge) from error
        raise
    sysctl.try_write(f"ipv6/conf/{created.host_end.name}/accept_ra", "0")
    host_veth, current_bridge = created.host_veth, created.master
    if host_veth is None or current_bridge is None or host_veth.master != current_bridge.index:
        veth.delete(host, created.host_end)
        raise BridgeDeletedError(bridge)
    requests = vlan.port_requests(host_veth, conf.vlans, filtering)
    if conf.hairpin or conf.isolated:
        requests.append(link.set_port_request(host_veth, hairpin=conf.hairpin, isolated=conf.isolated))
    if requests:
        host.change(*requests)
    return AttachedVeth(current_bridge, host_veth, created.container_veth, filtering)
