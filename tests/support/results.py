"""prevResult, as a runtime passes it to a chained plugin.

One rule: the result has the form of the requested CNI version.
"""

from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any


def prev_result(
    version: str, *addresses: str, ifname: str = "eth0", host_interfaces: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns a result of `version` for a pod with `addresses`, by default 10.1.2.5/24.

    Each gateway is the first address of the subnet; `host_interfaces` are names of interfaces of the host.
    """
    interfaces = [ip_interface(address) for address in addresses or ("10.1.2.5/24",)]
    if version in ("0.1.0", "0.2.0"):
        families = {f"ip{item.version}": {"ip": str(item), "gateway": _gateway(item)} for item in interfaces}
        return {"cniVersion": version, **families, "dns": {}}
    old = version.startswith("0.")
    ips = [
        {**({"version": str(item.version)} if old else {}), "interface": 0, "address": str(item)}
        | {"gateway": _gateway(item)}
        for item in interfaces
    ]
    return {
        "cniVersion": version,
        "interfaces": [
            {"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"},
            *({"name": name, "mac": "02:00:00:00:00:02"} for name in host_interfaces),
        ],
        "ips": ips,
        **({"dns": {}} if old else {}),
    }


def _gateway(item: IPv4Interface | IPv6Interface) -> str:
    return str(item.network[1])
