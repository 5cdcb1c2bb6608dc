"""The host ports of an attachment, as the runtime's cache has them: what portmap was asked to publish."""

from __future__ import annotations

from collections.abc import Iterator

from cni.args import CmdArgs
from plugins.portmap import conf as portmap
from podwire.attachments import CachedAttachment
from podwire.node.model import HostPort


def list_host_ports(item: CachedAttachment) -> Iterator[HostPort]:
    """Yields the valid host ports of an attachment; none without portmap in its list."""
    for plugin in item.network.plugins if item.network else ():
        if item.network and plugin.get("type") == "portmap":
            net_conf = item.network.net_conf(plugin, capability_args=item.capability_args)
            args = CmdArgs("DEL", item.attachment.container_id, item.netns, item.attachment.ifname, "", (), {})
            for mapping in portmap.parse_leniently(args, net_conf).mappings:
                host_ip = str(mapping.bound_ip or "")
                yield HostPort(mapping.host_port, mapping.container_port, mapping.protocol, host_ip)
