"""The host's end of an attachment: a port of the bridge.

One rule: it is a port with all its settings before the pod's end comes up.
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
    """The bridge that was there a moment ago is gone: a failing ADD takes away a bridge it made."""

    def __init__(self, bridge: Link) -> None:
        super().__init__(Code.TRY_AGAIN_LATER, f'bridge "{bridge.name}" vanished again', "something else deleted it")


@dataclass(frozen=True)
class Joined:
    """A host end `outside`, an up port of the `bridge` as it is now; `filtering` is None unless VLANs are asked for.

    `inside` is None where it must be looked up.
    """

    bridge: Link
    outside: Link
    inside: Link | None
    filtering: Filtering | None


def attach(host: Socket, sandbox: Netns, ifname: str, bridge: Link, conf: BridgeConf, undo: Undo) -> Joined:
    """Makes the pair, its host end a port of the bridge with all its settings.

    Raises CniError(999) when the sandbox has an interface of the name already, BridgeVanishedError, KernelError.
    """
    try:
        filtering = vlan.filtering(host, bridge, conf.vlans)
        made = veth.create(host, sandbox, ifname, undo, mac=conf.mac, mtu=conf.mtu, master=bridge)
    except CniError as error:
        if link.get(host, link.by_index_request(bridge.index)) == [None]:
            raise BridgeVanishedError(bridge) from error
        raise
    sysctl.try_write(f"ipv6/conf/{made.host_end.name}/accept_ra", "0")
    port, joined = made.host_veth, made.master
    if port is None or joined is None or port.master != joined.index:
        veth.delete(host, made.host_end)
        raise BridgeVanishedError(bridge)
    requests = vlan.settings(port, conf.vlans, filtering)
    if conf.hairpin or conf.isolated:
        requests.append(link.set_port_request(port, hairpin=conf.hairpin, isolated=conf.isolated))
    if requests:
        host.change(*requests)
    return Joined(joined, port, made.container_veth, filtering)
