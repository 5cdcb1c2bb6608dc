"""A minimal valid configuration of each plugin, and the properties in which plugins differ.

One rule: an entry is an exception to a default; a plugin without an entry is tested with its type only.
"""

from pathlib import Path
from typing import Any

import pytest

from podwire.lint import known
from tests.support import dhcp
from tests.support.results import prev_result

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_FIRST_VERSION = {"bandwidth": "0.3.0", "vrf": "0.3.1", "firewall": "0.4.0"}

# Plugins that read CNI_ARGS, or whose IPAM plugin reads it, and therefore reject invalid values.
READS_CNI_ARGS = {*known.INTERFACES, "host-local", "static", "tuning"}
# A chained plugin needs prevResult.
KINDS = {**dict.fromkeys((*known.INTERFACES, "loopback"), "interface"), **dict.fromkeys(known.CHAINED, "chained")}
KINDS |= dict.fromkeys(known.IPAMS, "ipam")
# Plugins whose interface is on top of an interface of the host, MASTER.
ON_MASTER = {"ipvlan", "macvlan", "vlan"}
MASTER = "up0"
WIRE = "wire0"  # the host's bridge to the DHCP server
CHAINED = {name for name, kind in KINDS.items() if kind == "chained"}
# Plugins that return prevResult unchanged when there is nothing to do.
RETURNS_PREV_RESULT = CHAINED | {"loopback"}
# Plugins that enter the sandbox at ADD, and therefore reject an invalid path.
ENTERS_SANDBOX = {*known.INTERFACES, "loopback", "sbr", "tuning", "vrf"}
# Features of the kernel (tests.support.kernels.FEATURES) without which ADD and STATUS fail.
NEEDS = {"dummy": "dummy", "ipvlan": "ipvlan", "vlan": "vlan_device", "vrf": "vrf"}

SUBNET = "10.1.2.0/24"

_BANDWIDTH = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_TUNING = {"mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}


def on_its_kernel(plugin: str, *values: Any, **how: Any) -> Any:
    """Returns the parameters of a test that runs on kernels with the features that `plugin` needs."""
    return pytest.param(*values, marks=pytest.mark.needs(NEEDS[plugin]) if plugin in NEEDS else (), **how)


def host_local(store: Path, *subnets: str) -> dict[str, Any]:
    """Returns an `ipam` object that allocates an address in each of `subnets`."""
    return {
        "type": "host-local",
        "ranges": [[{"subnet": subnet}] for subnet in subnets or (SUBNET,)],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(store),
    }


def static(*addresses: str) -> dict[str, Any]:
    """Returns an `ipam` object that allocates `addresses`."""
    objects = [{"address": address} for address in addresses]
    return {"type": "static", "addresses": objects, "routes": [{"dst": "0.0.0.0/0"}]}


def dhcp_directory(store: Path) -> Path:
    """Returns the directory of dhcp's daemon and server, beside a lease directory."""
    return store.with_name("dhcp")


def versions(plugin: str) -> tuple[str, ...]:
    """Returns the CNI versions that `plugin` supports."""
    return VERSIONS[VERSIONS.index(_FIRST_VERSION.get(plugin, VERSIONS[0])) :]


def config(plugin: str, version: str, store: Path, *host_interfaces: str) -> dict[str, Any]:
    """Returns a minimal valid configuration of `plugin`, with its leases in `store`.

    The prevResult of a chained plugin contains `host_interfaces`, the host's ends of veths. The first one is the
    device of host-device.
    """
    plugin_keys: dict[str, dict[str, Any]] = {
        "bridge": {"bridge": "cni0", "isGateway": True, "ipam": host_local(store)},
        "dhcp": {"ipam": {"type": "dhcp", **dhcp.ipam_keys(dhcp_directory(store))}},
        "host-device": {
            "device": next(iter(host_interfaces), "eth7"),
            "dataDir": str(store.with_name("devices")),
            "ipam": host_local(store),
        },
        "host-local": {"ipam": host_local(store)},
        "portmap": {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}},
        "bandwidth": dict.fromkeys(_BANDWIDTH, 1_000_000),
        "dummy": {"ipam": host_local(store)},
        "ipvlan": {"master": MASTER, "ipam": host_local(store)},
        "macvlan": {"master": MASTER, "ipam": host_local(store)},
        "sbr": {"table": 5000},  # without tables of its own, for which the interface would have to be up
        "static": {"ipam": static("10.1.2.7/24", "fd00:1::7/64")},
        "ptp": {"ipam": host_local(store)},
        "tap": {"ipam": host_local(store)},
        "tuning": {**_TUNING, "dataDir": str(store.with_name("tuning"))},
        "vlan": {"master": MASTER, "vlanId": 100, "ipam": host_local(store)},
        "vrf": {"vrfname": "blue"},
        "firewall": {"backend": "iptables"},  # not firewalld, which is the machine's
    }
    chained = {"prevResult": prev_result(version, host_interfaces=host_interfaces)} if plugin in CHAINED else {}
    return {"cniVersion": version, "name": "net", "type": plugin, **chained, **plugin_keys.get(plugin, {})}


def idle(plugin: str, version: str, store: Path) -> dict[str, Any]:
    """Returns a configuration with which `plugin`, one of RETURNS_PREV_RESULT, changes nothing of an attached pod."""
    changes = ("runtimeConfig", *_BANDWIDTH, *_TUNING)
    return {key: value for key, value in config(plugin, version, store).items() if key not in changes}
