"""What the specification's tests must know of single plugins: a small valid configuration, and who does what.

One rule: everything here is an exception to a default; a plugin without an entry is tested with its bare type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.results import prev_result

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_FIRST_VERSION = {"bandwidth": "0.3.0", "vrf": "0.3.1", "firewall": "0.4.0"}

# Who reads CNI_ARGS, or whose IPAM does, and therefore refuses rubbish in it.
READS_CNI_ARGS = {"bridge", "host-local", "static", "macvlan", "ptp", "tuning", "tap"}
# A chained plugin needs the result of the plugin before it.
KINDS = {
    "bandwidth": "chained",
    "bridge": "interface",
    "firewall": "chained",
    "host-local": "ipam",
    "loopback": "interface",
    "portmap": "chained",
    "ptp": "interface",
    "static": "ipam",
    "tuning": "chained",
}
CHAINED = {name for name, kind in KINDS.items() if kind == "chained"}
# Who hands on an earlier plugin's result unchanged when there is nothing to do.
PASSES_ON = CHAINED | {"loopback"}
# Who enters the sandbox on ADD, and therefore refuses one that is none.
ENTERS_SANDBOX = {"bridge", "loopback", "macvlan", "ipvlan", "ptp", "tap", "vlan", "dummy", "host-device", "tuning"}

SUBNET = "10.1.2.0/24"

_BANDWIDTH = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_TUNING = {"mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}


def host_local(store: Path, *subnets: str) -> dict[str, Any]:
    """Returns an `ipam` object that gives an address of each of `subnets`."""
    return {
        "type": "host-local",
        "ranges": [[{"subnet": subnet}] for subnet in subnets or (SUBNET,)],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(store),
    }


def static(*addresses: str) -> dict[str, Any]:
    """Returns an `ipam` object that gives `addresses`."""
    own = [{"address": address} for address in addresses]
    return {"type": "static", "addresses": own, "routes": [{"dst": "0.0.0.0/0"}]}


def versions(plugin: str) -> tuple[str, ...]:
    """Returns the versions that `plugin` speaks."""
    return VERSIONS[VERSIONS.index(_FIRST_VERSION.get(plugin, VERSIONS[0])) :]


def config(plugin: str, version: str, store: Path, *host_interfaces: str) -> dict[str, Any]:
    """Returns a small valid configuration of `plugin` that keeps its leases in `store`.

    A chained one is told of `host_interfaces`, interfaces of the host that lead to sandboxes.
    """
    own: dict[str, dict[str, Any]] = {
        "bridge": {"bridge": "cni0", "isGateway": True, "ipam": host_local(store)},
        "host-local": {"ipam": host_local(store)},
        "portmap": {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}},
        "bandwidth": dict.fromkeys(_BANDWIDTH, 1_000_000),
        "static": {"ipam": static("10.1.2.7/24", "fd00:1::7/64")},
        "ptp": {"ipam": host_local(store)},
        "tuning": {**_TUNING, "dataDir": str(store.with_name("tuning"))},
        "firewall": {"backend": "iptables"},  # not firewalld, which is the tester's own
    }
    chained = {"prevResult": prev_result(version, host_interfaces=host_interfaces)} if plugin in CHAINED else {}
    return {"cniVersion": version, "name": "net", "type": plugin, **chained, **own.get(plugin, {})}


def idle(plugin: str, version: str, store: Path) -> dict[str, Any]:
    """Returns a configuration under which `plugin`, one of PASSES_ON, changes nothing of a pod that has an eth0."""
    wanted = ("runtimeConfig", *_BANDWIDTH, *_TUNING)
    return {key: value for key, value in config(plugin, version, store).items() if key not in wanted}
