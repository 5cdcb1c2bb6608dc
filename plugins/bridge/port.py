"""The port: the host's end of an attachment's veth pair.

One rule: the port has all its settings before the container's end comes up.
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


class BridgeVanishedError(CniError):
    """The bridge was deleted while a port was being added: a failing ADD deletes the bridge that it created."""

    def __init__(self, bridge: Link) -> None:
        super().__init__(Code.TRY_AGAIN_LATER, f'bridge "{bridge.name}" vanished again', "something else deleted it")


@dataclass(frozen=True)
class Port:
    """A veth pair whose host end is an up port of `bridge`, with the bridge's state after the port was added.

    `container_veth` is None if it still has to be looked up, `filtering` is None if no VLANs are configured.
    """

    bridge: Link
    host_veth: Link
    container_veth: Link | None
    filtering: Filtering | None


def create(host: Socket, sandbox: Netns, ifname: str, bridge: Link, conf: BridgeConf, undo: Undo) -> Port:
    """Creates the veth pair and makes its host end a port of the bridge, with all its settings.

    Raises CniError(999) when the container already has an interface `ifname`, BridgeVanishedError, KernelError.
    """
    try:
        filtering = vlan.get_filtering(host, bridge, conf.vlans)
        created = veth.create(host, sandbox, ifname, undo, mac=conf.mac, mtu=conf.mtu, master=bridge)
    except CniError as error:
        if link.get(host, link.by_index_request(bridge.index)) == [None]:
            raise BridgeVanishedError(bridge) from error
        raise
    sysctl.try_write(f"ipv6/conf/{created.host_end.name}/accept_ra", "0")
    host_veth, current_bridge = created.host_veth, created.master
    if host_veth is None or current_bridge is None or host_veth.master != current_bridge.index:
        veth.delete(host, created.host_end)
        raise BridgeVanishedError(bridge)
    requests = vlan.port_requests(host_veth, conf.vlans, filtering)
    if conf.hairpin or conf.isolated:
        requests.append(link.set_port_request(host_veth, hairpin=conf.hairpin, isolated=conf.isolated))
    if requests:
        host.change(*requests)
    return Port(current_bridge, host_veth, created.container_veth, filtering)
