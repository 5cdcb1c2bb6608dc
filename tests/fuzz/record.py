"""Records the initial cases of every target: real configurations, and a real kernel's replies to them.

    python -m tests.fuzz.record     # as root; it writes missing cases only

One rule: a recorded case is an invocation that a runtime would make; fuzzing changes it later. A failing case is
printed, and recorded all the same.
"""

import json
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from cni import gojson
from kernel import system
from podwire.main import PLUGINS
from process.child import ChildCommand, Notice, Outcome
from tests.fuzz import world
from tests.fuzz.cases import Case, add_to_corpus
from tests.fuzz.world import HostSystem
from tests.spec import configs
from tests.support.results import prev_result

ENV = {
    "CNI_CONTAINERID": "cid",
    "CNI_IFNAME": "eth0",
    "CNI_NETNS": "/run/netns/pod",
    "CNI_PATH": str(world.HOME / "bin"),
}
_IPAM = {
    "type": "host-local",
    "dataDir": str(world.LEASES),
    "ranges": [
        [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.20", "gateway": "10.1.2.1"}],
        [{"subnet": "fd00:1:2::/64"}],
    ],
    "routes": [{"dst": "0.0.0.0/0", "mtu": 1400, "priority": 5}, {"dst": "::/0"}],
}
_STATIC = {
    "type": "static",
    "addresses": [{"address": "10.1.2.5/24", "gateway": "10.1.2.1"}, {"address": "fd00:1:2::5/64"}],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1400, "advmss": 1300, "priority": 5}, {"dst": "::/0"}],
    "dns": {"nameservers": ["10.1.2.1"], "domain": "x", "search": ["y"], "options": ["z"]},
}
_PORTS = [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
    {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
    {"hostPort": 99, "containerPort": 9, "protocol": "sctp", "hostIP": "127.0.0.1"},
]
_LIMITS = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000}
_RANGES = {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}
_ARGS = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.1.2.7/24;GATEWAY=10.1.2.1"}
_VALID = {"cni.dev/valid-attachments": [{"containerID": "other", "ifname": "eth0"}]}


# Every option of each plugin is in one of these configurations.
_FULL_BRIDGE = {
    "bridge": "cni0", "isDefaultGateway": True, "forceAddress": False, "ipMasq": True, "ipMasqBackend": "nftables",
    "nonMasqueradeCIDRs": ["10.0.0.0/8"], "nonMasqueradeCluster": True, "mtu": 1400, "hairpinMode": True,
    "portIsolation": False,
    "macspoofchk": True, "enabledad": False, "dns": {"nameservers": ["10.1.2.1"]},
    "args": {"cni": {"ips": ["10.1.2.9"], "mac": "02:00:00:00:00:09"}}, "ipam": _IPAM,
    "runtimeConfig": {"mac": "02:00:00:00:00:08", "ips": ["10.1.2.9/24"]},
}  # fmt: skip
_INTERFACE_AND_IPAM: dict[str, tuple[str, dict[str, Any]]] = {
    "bridge-full": ("bridge", _FULL_BRIDGE),
    "bridge-iptables": ("bridge", {"ipMasq": True, "ipMasqBackend": "iptables", "ipam": _IPAM}),
    "bridge-layer2": ("bridge", {"bridge": "cni1", "promiscMode": True, "disableContainerInterface": True}),
    "bridge-vlans": ("bridge", {
        "bridge": "cni2", "vlan": 5, "vlanTrunk": [{"id": 7}, {"minID": 8, "maxID": 9}], "ipam": _IPAM,
    }),
    "bridge-auto": ("bridge", {
        "mtu": "auto", "bridgeNetfilter": False, "ipam": {**_IPAM, "ranges": [], "subnet": "10.1.2.0/24"},
    }),
    "host-local": ("host-local", {"ipam": {**_IPAM, "resolvConf": "/etc/resolv.conf"}, "runtimeConfig": _RANGES}),
    "static": ("static", {
        "ipam": _STATIC, "args": {"cni": {"ips": []}}, "capabilities": {"ips": True}, "runtimeConfig": {"ips": []},
    }),
    "static-runtime": ("static", {
        "ipam": _STATIC, "args": {"cni": {"ips": ["10.1.2.6/24"]}}, "runtimeConfig": {"ips": ["10.1.2.7/24"]},
    }),
    "bridge-policy": ("bridge", {"networkPolicy": True, "bridgeNetfilter": True, "ipam": _IPAM}),
    "bridge-static": ("bridge", {"bridge": "cni3", "isGateway": True, "ipam": _STATIC}),
    "ptp-full": ("ptp", {
        "ipMasq": True, "ipMasqBackend": "nftables", "mtu": 1400, "dns": {"search": ["y"]}, "ipam": _IPAM,
    }),
    "ptp-iptables": ("ptp", {"ipMasq": True, "ipMasqBackend": "iptables", "ipam": _IPAM}),
    "ptp-policy": ("ptp", {"networkPolicy": True, "ipam": _IPAM}),
    "ptp-layer2": ("ptp", {"mtu": 1400}),
    "macvlan-access": ("macvlan", {
        "master": configs.MASTER, "mode": "bridge", "mtu": 1400, "bcqueuelen": 500, "hostAccess": True, "ipam": _IPAM,
        "dns": {"search": ["y"]}, "runtimeConfig": {"mac": "02:00:00:00:00:08"},
    }),
    "macvlan-private": ("macvlan", {"master": configs.MASTER, "mode": "private", "mac": "02:00:00:00:00:09"}),
    "ipvlan-l3": ("ipvlan", {"master": configs.MASTER, "mode": "l3", "mtu": 1400, "ipam": _IPAM}),
    "vlan-full": ("vlan", {
        "master": configs.MASTER, "vlanId": 7, "mtu": 1400, "protocol": "802.1ad", "ingressQosMap": ["1:5"],
        "egressQosMap": ["5:1"], "ipam": _IPAM,
    }),
    "tap-full": ("tap", {"multiQueue": True, "owner": 0, "group": 0, "mtu": 1400, "mac": "02:00:00:00:00:09",
                         "ipam": _IPAM}),
    "host-device-hwaddr": ("host-device", {
        "hwaddr": "02:00:00:11:00:00", "dataDir": str(world.DEVICES), "ipam": _IPAM,
    }),
    "host-device-layer2": ("host-device", {"device": "hd0", "dataDir": str(world.DEVICES)}),
    "host-device-pci": ("host-device", {
        "pciBusID": "0000:00:03.0", "runtimeConfig": {"deviceID": "0000:00:04.0"}, "dataDir": str(world.DEVICES),
    }),
    "host-device-path": ("host-device", {
        "kernelpath": "/sys/devices/pci0000:00/0000:00:03.0", "dataDir": str(world.DEVICES),
    }),
    "dummy-full": ("dummy", {"ipam": _IPAM, "dns": {"search": ["y"]}}),
}  # fmt: skip
_PREV_RESULT = prev_result("1.1.0", "10.1.2.5/24", "fd00:1:2::5/64", host_interfaces=["h0"]) | {
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1400}],
    "dns": {"nameservers": ["10.1.2.1"], "domain": "x", "search": ["y"], "options": ["z"]},
}
_BRIDGE_RESULT = {
    **_PREV_RESULT,
    "interfaces": [{"name": "br0"}, *_PREV_RESULT["interfaces"]],
    "ips": [{**item, "interface": 1} for item in _PREV_RESULT["ips"]],
}
_CHAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "tuning": ("tuning", {
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/core/somaxconn": "500"}, "mac": "02:00:00:00:00:09",
        "promisc": True, "mtu": 1400, "allmulti": True, "txQLen": 500, "dataDir": str(world.TUNING),
    }),
    "tuning-runtime": ("tuning", {
        "args": {"cni": {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "0"}, "promisc": False, "allmulti": False}},
        "mtu": 1300, "mtuBothEnds": True, "runtimeConfig": {"mac": "02-00-00-00-00-08"},
        "dataDir": str(world.TUNING),
    }),
    "firewall-nftables": ("firewall", {"backend": "nftables", "ingressPolicy": "open"}),
    "firewall-iptables": ("firewall", {"backend": "iptables", "iptablesAdminChainName": "CNI-ADMIN"}),
    "firewall-policy": ("firewall", {
        "backend": "nftables", "ingressPolicy": "same-bridge", "prevResult": _BRIDGE_RESULT,
    }),
    "firewall-isolated": ("firewall", {
        "backend": "iptables", "ingressPolicy": "isolated", "prevResult": _BRIDGE_RESULT,
    }),
    "loopback": ("loopback", {}),
    "portmap-nftables": ("portmap", {
        "backend": "nftables", "snat": True, "masqAll": True, "markMasqBit": 12, "onConflict": "fail",
        "conditionsV4": ["ip", "saddr", "10.0.0.0/8"], "conditionsV6": [],
        "runtimeConfig": {"portMappings": _PORTS},
    }),
    "portmap-iptables": ("portmap", {
        "backend": "iptables", "conditionsV4": ["!", "-s", "10.9.0.0/16"],
        "runtimeConfig": {"portMappings": _PORTS[:2]},
    }),
    "sbr": ("sbr", {"gateways": ["10.1.2.1", "fd00:1:2::1"]}),
    "sbr-hints": ("sbr", {"addSourceHints": True}),
    "sbr-table": ("sbr", {"table": 5000, "gateways": []}),
    "vrf": ("vrf", {"vrfname": "blue", "table": 1001}),
    "bandwidth": ("bandwidth", {**_LIMITS, "maxBurst": 1_000_000, "unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]}),
    "bandwidth-runtime": ("bandwidth", {
        "runtimeConfig": {"bandwidth": {**_LIMITS, "shapedSubnets": ["10.3.0.0/16"]}},
    }),
}  # fmt: skip


def networks() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns plugin and configuration by name: together they have every option and every version."""
    configs_by_name = {}
    for name, (plugin, keys) in (_INTERFACE_AND_IPAM | _CHAINED).items():
        chained = {"prevResult": _PREV_RESULT} if plugin in (*configs.CHAINED, "loopback") else {}
        configs_by_name[name] = plugin, {"cniVersion": "1.1.0", "name": "net", "type": plugin, **chained, **keys}
    for version in configs.VERSIONS:
        for plugin in PLUGINS:
            if version in configs.versions(plugin):
                configs_by_name[f"{plugin}-{version}"] = plugin, _minimal_config(plugin, version)
    return configs_by_name


def _minimal_config(plugin: str, version: str) -> dict[str, Any]:
    config = configs.config(plugin, version, world.LEASES, "h0")
    config |= {"backend": "nftables"} if plugin in ("portmap", "firewall") else {}
    if plugin == "host-device":
        config |= {"device": "hd0", "dataDir": str(world.DEVICES)}
    if plugin == "static":  # besides CNI_ARGS, old versions allow one address, of the other family
        config["ipam"] = configs.static("fd00:1:2::7/64")
    return config


def environment(plugin: str, command: str) -> dict[str, str]:
    """Returns the variables of an invocation; a chained plugin gets the pod that has an interface."""
    pod = "/run/netns/chained" if plugin in configs.CHAINED else "/run/netns/pod"
    args = _ARGS if plugin in configs.READS_CNI_ARGS else {}
    return {**ENV, "CNI_COMMAND": command, "CNI_NETNS": pod, **args}


class Recorder(HostSystem):
    """Records the replies of the kernel and of programs to this process."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Opens a socket whose received data are recorded."""
        return _RecordingSocket(self.replies.append, family, kind, protocol)

    def run_programs(self, *commands: ChildCommand, limit_s: float, notice: Notice) -> list[Outcome]:
        """Runs programs, and records their outcomes."""
        outcomes = super().run_programs(*commands, limit_s=limit_s, notice=notice)
        self.replies += [[outcome.status, outcome.stdout.decode("latin-1")] for outcome in outcomes]
        return outcomes


class _RecordingSocket(socket.socket):
    def __init__(self, record: Callable[[str], None], family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._record = record

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receives data and records them."""
        data = super().recv(size, flags)
        self._record(data.decode("latin-1"))
        return data


Entry = tuple[str, str, Case]  # target, name, case


def main() -> None:
    """Records the missing cases; prints a line for each case that fails here."""
    world.enter()
    recorder = Recorder()
    entries = [entry for name in networks() for entry in _record(recorder, name)]
    for target, name, case in entries + files():
        if len(sys.argv) > 1:  # the repository is read-only here
            print(json.dumps([target, name, case.__dict__]))
        else:
            add_to_corpus(target, name, case)


def _record(recorder: Recorder, name: str) -> Iterator[Entry]:
    """Runs the verbs of a configuration, and yields the cases for each target."""
    plugin, config = networks()[name]
    is_minimal = name.endswith(tuple(configs.VERSIONS))
    previous = config.get("prevResult")
    for command in _verbs(config["cniVersion"]):
        request = {**config, **({"prevResult": previous} if previous else {}), **(_VALID if command == "GC" else {})}
        case = Case(plugin, environment(plugin, command), gojson.dumps(request).encode().decode("latin-1"))
        recorder.replies.clear()
        with system.replaced(recorder):
            verdict, stdout = world.invoke(case)
        if verdict != "done":
            print(f"{name} {command}: {stdout.decode()}", file=sys.stderr)
        elif command == "ADD":
            previous = json.loads(stdout)
        yield "stdin", f"{name}-{command}", case
        if not is_minimal:
            yield "environment", f"{name}-{command}", case
        if "prevResult" in request:
            yield "previous", f"{name}-{command}", case
        # tap creates its device by ioctls, which are not replayed.
        if recorder.replies and not is_minimal and plugin != "tap":
            env = {**case.env, "CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "1"}
            yield "replies", f"{name}-{command}", Case(plugin, env, case.stdin, replies=list(recorder.replies))


def _verbs(version: str) -> list[str]:
    added = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"}
    return [verb for verb in ("ADD", "CHECK", "STATUS", "DEL", "GC") if version >= added.get(verb, "")]


def files() -> list[Entry]:
    """Returns the cases of host-local's store and of libcni's cache."""
    names = {
        "10.1.2.3": "cid\r\neth0", "10.1.2.4": "other\r\neth0", "fd00:1:2::2": "cid\r\neth0", "10.1.2.5": "old",
        "last_reserved_ip.0": "10.1.2.4", "last_reserved_ip.1": "fd00:1:2::2", "lock": "",
    }  # fmt: skip
    store = {f"{world.LEASES}/net/{name}": content for name, content in names.items()}
    store[f"{world.LEASES}.podwire/net"] = "\0" * 1024 + ("\x08" + "10.1.2.3" + "\0" * 55) * 16
    entry = {"kind": "cniCacheV1", "containerId": "cid", "config": "e30=", "ifName": "eth0", "networkName": "net"}
    results: dict[str, str | None] = {}
    for container in ("cid", "other", "third"):
        body = {**entry, "containerID": container, "netns": "/run/netns/gone", "result": prev_result("1.0.0")}
        results[f"{world.RESULTS}/net-{container}-eth0"] = json.dumps(body)
    ipam = {
        "ipam": {**_IPAM, "ranges": [[{"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.5"}]]}
    }
    entries: list[Entry] = []
    for command in ("ADD", "CHECK", "DEL", "GC", "STATUS"):
        config = {"cniVersion": "1.1.0", "name": "net", "type": "host-local", **ipam, **_VALID}
        config["prevResult"] = prev_result("1.1.0")
        files: dict[str, str | None] = dict(store)
        if command == "ADD":
            files = {path: "third\r\neth0" if content.startswith("cid") else content for path, content in store.items()}
        case = Case("host-local", {**ENV, "CNI_COMMAND": command}, json.dumps(config), files)
        entries.append(("store", f"host-local-{command}", case))
        if command in ("ADD", "STATUS"):
            entries.append(("cache", f"host-local-{command}", Case(case.plugin, case.env, case.stdin, files | results)))
    for plugin in ("portmap", "bridge"):
        config = networks()[f"{plugin}-1.1.0"][1] | {"ipMasq": True, "ipMasqBackend": "nftables"}
        case = Case(plugin, environment(plugin, "DEL"), json.dumps(config), dict(results))
        entries.append(("cache", f"{plugin}-DEL", case))
    return entries


if __name__ == "__main__":
    main()
