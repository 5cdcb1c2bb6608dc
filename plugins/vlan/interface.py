"""The VLAN interface of a container: its attributes in the kernel, and why the kernel refuses to create it."""

from __future__ import annotations

import errno

from attachment.prev_result import RECREATE_HINT
from attachment.sandbox import Sandbox
from cni.errors import internal
from kernel import child_link
from kernel.errors import KernelError
from kernel.link import Link
from kernel.wire import Attributes
from plugins.vlan.conf import PROTOCOLS, PriorityMap, VlanConf

_PROTOCOL_NAMES = {number: name for name, number in PROTOCOLS.items()}


def get_attributes(conf: VlanConf) -> Attributes:
    """Returns the attributes of the interface (IFLA_VLAN_*, linux/if_link.h)."""
    data: Attributes = [("IFLA_VLAN_ID", conf.vlan_id), ("IFLA_VLAN_PROTOCOL", PROTOCOLS[conf.protocol])]
    if conf.ingress:
        data.append(("IFLA_VLAN_INGRESS_QOS", _mappings(conf.ingress)))
    if conf.egress:
        data.append(("IFLA_VLAN_EGRESS_QOS", _mappings(conf.egress)))
    return data


def explain(parent: Link, conf: VlanConf, error: KernelError) -> str:
    """Returns why the kernel refused to create the interface, and the fix, "" if unknown."""
    if error.errno == errno.EEXIST:
        return (
            f'VLAN {conf.vlan_id} of "{parent.name}" is in use, by a pod or by the host: it can be in one network '
            "namespace only. For several pods, keep one VLAN interface on the host and use the plugin macvlan with "
            f'"master" set to its name. To create it: ip link add link "{parent.name}" name NAME type vlan id '
            f"{conf.vlan_id}"
        )
    return ""


def check(sandbox: Sandbox, container_link: Link, conf: VlanConf) -> None:
    """Checks the VLAN ID and the protocol; raises CniError(999), KernelError."""
    data = child_link.get_data(sandbox.socket, container_link)
    vlan_id = data and data.get_attr("IFLA_VLAN_ID")
    if vlan_id != conf.vlan_id:
        msg = f"VLAN ID of {container_link.name} is {vlan_id}, the configuration has {conf.vlan_id}"
        raise internal(f"Error: {msg}", RECREATE_HINT)
    number = data and data.get_attr("IFLA_VLAN_PROTOCOL")
    if number and number != PROTOCOLS[conf.protocol]:
        protocol = _PROTOCOL_NAMES.get(number, "unknown")
        msg = f"VLAN protocol of {container_link.name} is {protocol}, the configuration has {conf.protocol}"
        raise internal(f"Error: {msg}", RECREATE_HINT)


def _mappings(priorities: PriorityMap) -> dict[str, Attributes]:
    return {"attrs": [("IFLA_VLAN_QOS_MAPPING", {"from": first, "to": second}) for first, second in priorities]}
