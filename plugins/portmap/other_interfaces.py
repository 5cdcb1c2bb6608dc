"""The other interfaces of a container on the same network, which share the container's chain of iptables.

Their addresses are read from the container's namespace, and from libcni's cache if that namespace cannot be opened.
"""

from __future__ import annotations

from attachment.cache import ResultCache
from attachment.sandbox import Sandbox
from attachment.veth import list_other_addresses as list_addresses_in_sandbox
from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError
from kernel.netns import Netns
from plugins.portmap.conf import HostPorts


def list_other_addresses(host_ports: HostPorts) -> frozenset[Address]:
    """Returns the addresses of the container's other interfaces; costs about ten netlink messages.

    Returns an empty set if this interface cannot be distinguished from the others: it is missing, and no address of it
    is known.
    """
    addresses = {item.ip for item in host_ports.addresses.values()}
    try:
        with Netns(host_ports.netns) as namespace, Sandbox(namespace, host_ports.ifname) as sandbox:
            container_link = sandbox.find_link()
            is_known = container_link is not None or addresses
            others = {item.ip for item in list_addresses_in_sandbox(sandbox, container_link)} if is_known else set()
    except CniError:
        attachment = Attachment(host_ports.container_id, host_ports.ifname)
        return ResultCache.read(host_ports.network).list_other_addresses(attachment) - addresses
    return frozenset(others - addresses)
