"""Other interfaces of a container on the same network: in iptables they share its chain, which names no interface.

One rule: an address is another interface's if the container's namespace says so; libcni's cache counts only where that
namespace cannot be opened.
"""

from __future__ import annotations

from attachment.cache import ResultCache
from attachment.sandbox import Sandbox
from attachment.veth import list_other_addresses
from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError
from kernel.netns import Netns
from plugins.portmap.spec import HostPorts


def addresses(ports: HostPorts) -> frozenset[Address]:
    """Returns the addresses of the container's other interfaces; costs some ten netlink messages.

    Returns none if neither the interface nor its addresses are known: each address may then be the interface's own.
    """
    own = {item.ip for item in ports.addresses.values()}
    try:
        with Netns(ports.netns) as namespace, Sandbox(namespace, ports.ifname) as sandbox:
            inside = sandbox.find_link()
            known = inside is not None or own
            found = {item.ip for item in list_other_addresses(sandbox, inside)} if known else set()
    except CniError:
        attachment = Attachment(ports.container_id, ports.ifname)
        return ResultCache.read(ports.network).list_other_addresses(attachment) - own
    return frozenset(found - own)
