"""The attachment: a veth pair from the bridge to the sandbox.

One rule: the pair is born in place, in one request; nothing is moved or renamed.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import partial

from cni.address import format_mac
from cni.errors import CniError, Code
from cni.undo import Undo
from kernel import link, sysctl
from kernel.codec import LinkMessage
from kernel.configure import Sandbox
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.netns import Netns
from kernel.rtnl import Deadline, Socket
from kernel.vlan import Filtering
from plugins.bridge import vlan
from plugins.bridge.conf import BridgeConf

_NAME_TRIES = 10  # a random name is taken once in millions of times
_CARRIER_TIMEOUT_S = 5.0  # the reference gives up after 2.55 s of sleeping in between


class BridgeVanishedError(CniError):
    """The bridge that was there a moment ago is gone: a failing ADD takes away a bridge it made."""

    def __init__(self, bridge: Link) -> None:
        super().__init__(Code.TRY_AGAIN_LATER, f'bridge "{bridge.name}" vanished again', "something else deleted it")


@dataclass(frozen=True)
class Joined:
    """A host end `outside`, an up port of the `bridge` as it is now; `filtering` is None unless VLANs are asked for."""

    bridge: Link
    outside: Link
    filtering: Filtering | None


def attach(host: Socket, sandbox: Netns, ifname: str, bridge: Link, conf: BridgeConf, undo: Undo) -> Joined:
    """Makes the pair, its host end a port of the bridge with all its settings.

    Raises CniError(999) when the sandbox has an interface of the name already, BridgeVanishedError, KernelError.
    """
    try:
        filtering = vlan.filtering(host, bridge, conf.vlans)
        outside = _make(host, sandbox, ifname, bridge, conf, undo)
    except CniError as error:
        if link.get(host, link.by_index(bridge.index)) == [None]:
            raise BridgeVanishedError(bridge) from error
        raise
    sysctl.attempt(f"ipv6/conf/{outside.name}/accept_ra", "0")
    port, joined = link.get(host, link.by_name(outside.name), link.by_index(bridge.index))
    if port is None or joined is None or port.master != joined.index:
        _delete(host, outside)
        raise BridgeVanishedError(bridge)
    requests = vlan.settings(port, conf.vlans, filtering)
    if conf.hairpin or conf.isolated:
        requests.append(link.port_settings(port, hairpin=conf.hairpin, isolated=conf.isolated))
    if requests:
        host.change(*requests)
    return Joined(joined, port, filtering)


def find(host: Socket, name: str) -> Link:
    """Returns the host end; raises CniError(999) when it is gone, KernelError."""
    (port,) = link.get(host, link.by_name(name))
    if port is None:
        raise CniError(Code.INTERNAL, f'failed to lookup "{name}": Link not found', "something else deleted it")
    return port


def wait_forwarding(host: Socket, port: Link) -> None:
    """Waits until the port passes frames; raises CniError(999) when it does not come to that.

    The kernel notices the carrier in the background. Since Linux 6.8 asking for the link brings that up to date, so
    that mostly nothing is waited for; before, its announcement is.
    """
    if find(host, port.name).operstate == link.OPERSTATE_UP:
        return
    deadline = Deadline(_CARRIER_TIMEOUT_S)
    with Socket() as news:
        news.subscribe(link.RTNLGRP_LINK)
        while (port := find(host, port.name)).operstate != link.OPERSTATE_UP:
            if news.notifications(LinkMessage, deadline.left_s()) is None:
                state = link.OPERSTATES[port.operstate] if port.operstate < len(link.OPERSTATES) else "?"
                raise CniError(Code.INTERNAL, f"bridge port in error state: {state}", f'host interface "{port.name}"')


def _make(host: Socket, sandbox: Netns, ifname: str, bridge: Link, conf: BridgeConf, undo: Undo) -> VethEnd:
    inside = VethEnd(ifname, conf.mac or link.random_mac())
    for attempt in range(_NAME_TRIES):
        outside = VethEnd("veth" + os.urandom(4).hex(), link.random_mac())
        # Whatever becomes of the answer: the address tells our pair from another's of the same name.
        undo.push(f'delete "{outside.name}"', partial(_delete, host, outside))
        try:
            host.change(link.veth(outside, inside, sandbox, master=bridge.index, mtu=conf.mtu))
        except KernelError as error:
            if error.errno != errno.EEXIST:
                raise CniError(
                    Code.INTERNAL, f"failed to make veth pair: {error}", error.details or f'for bridge "{bridge.name}"'
                ) from error
            with Sandbox(sandbox, ifname) as inner:
                if inner.find() or attempt == _NAME_TRIES - 1:
                    raise CniError(
                        Code.INTERNAL,
                        f'container veth name ("{ifname}") peer provided ("{outside.name}") already exists',
                        f"{sandbox.path} has an interface of this name: the container is attached already; "
                        "run DEL first, or set CNI_IFNAME to another name",
                    ) from error
        else:
            return outside
    raise AssertionError("unreachable")


def _delete(host: Socket, outside: VethEnd) -> None:
    (port,) = link.get(host, link.by_name(outside.name))
    if port is not None and port.mac == format_mac(outside.mac):
        host.change(link.deletion(port))
