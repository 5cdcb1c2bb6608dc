"""Makes the first cases of every target: real configurations, and what a real kernel answered to them.

    python -m tests.fuzz.record     # as root; only what is not there yet is written

One rule: what is kept is what a runtime would send; the changes come later. What fails here is told, and kept too.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import process.child
from cni import gojson
from podwire.main import PLUGINS
from tests.fuzz import world
from tests.fuzz.cases import Case, add_to_corpus
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
_ARGS = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.1.2.7/24;GATEWAY=10.1.2.1"}
_VALID = {"cni.dev/valid-attachments": [{"containerID": "other", "ifname": "eth0"}]}


def networks() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns plugin and configuration by name: every option somewhere, every version."""
    previous = prev_result("1.1.0", "10.1.2.5/24", "fd00:1:2::5/64", host_interfaces=["h0"])
    previous["routes"] = [{"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1400}]
    previous["dns"] = {"nameservers": ["10.1.2.1"], "domain": "x", "search": ["y"], "options": ["z"]}
    behind = {**previous, "interfaces": [{"name": "br0"}, *previous["interfaces"]]}
    behind["ips"] = [{**item, "interface": 1} for item in previous["ips"]]
    full = {
        "bridge": "cni0", "isDefaultGateway": True, "forceAddress": False, "ipMasq": True, "ipMasqBackend": "nftables",
        "nonMasqueradeCIDRs": ["10.0.0.0/8"], "mtu": 1400, "hairpinMode": True, "portIsolation": False,
        "macspoofchk": True, "enabledad": False, "dns": {"nameservers": ["10.1.2.1"]},
        "args": {"cni": {"ips": ["10.1.2.9"], "mac": "02:00:00:00:00:09"}}, "ipam": _IPAM,
        "runtimeConfig": {"mac": "02:00:00:00:00:08", "ips": ["10.1.2.9/24"]},
    }  # fmt: skip
    ranges = {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}
    own = {
        "bridge-full": ("bridge", full),
        "bridge-iptables": ("bridge", {"ipMasq": True, "ipMasqBackend": "iptables", "ipam": _IPAM}),
        "bridge-layer2": ("bridge", {"bridge": "cni1", "promiscMode": True, "disableContainerInterface": True}),
        "bridge-vlans": ("bridge", {
            "bridge": "cni2", "vlan": 5, "vlanTrunk": [{"id": 7}, {"minID": 8, "maxID": 9}], "ipam": _IPAM,
        }),
        "bridge-auto": ("bridge", {
            "mtu": "auto", "bridgeNetfilter": False, "ipam": {**_IPAM, "ranges": [], "subnet": "10.1.2.0/24"},
        }),
        "host-local": ("host-local", {"ipam": {**_IPAM, "resolvConf": "/etc/resolv.conf"}, "runtimeConfig": ranges}),
        "static": ("static", {
            "ipam": _STATIC, "args": {"cni": {"ips": []}}, "capabilities": {"ips": True}, "runtimeConfig": {"ips": []},
        }),
        "static-runtime": ("static", {
            "ipam": _STATIC, "args": {"cni": {"ips": ["10.1.2.6/24"]}}, "runtimeConfig": {"ips": ["10.1.2.7/24"]},
        }),
        "bridge-static": ("bridge", {"bridge": "cni3", "isGateway": True, "ipam": _STATIC}),
        "ptp-full": ("ptp", {
            "ipMasq": True, "ipMasqBackend": "nftables", "mtu": 1400, "dns": {"search": ["y"]}, "ipam": _IPAM,
        }),
        "ptp-iptables": ("ptp", {"ipMasq": True, "ipMasqBackend": "iptables", "ipam": _IPAM}),
        "ptp-layer2": ("ptp", {"mtu": 1400}),
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
        "firewall-policy": ("firewall", {"backend": "nftables", "ingressPolicy": "same-bridge", "prevResult": behind}),
        "firewall-isolated": ("firewall", {"backend": "iptables", "ingressPolicy": "isolated", "prevResult": behind}),
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
        "bandwidth": ("bandwidth", {**_LIMITS, "maxBurst": 1_000_000, "unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]}),
        "bandwidth-runtime": ("bandwidth", {
            "runtimeConfig": {"bandwidth": {**_LIMITS, "shapedSubnets": ["10.3.0.0/16"]}},
        }),
    }  # fmt: skip
    whole = {}
    for name, (plugin, keys) in own.items():
        chained = {"prevResult": previous} if plugin in (*configs.CHAINED, "loopback") else {}
        whole[name] = plugin, {"cniVersion": "1.1.0", "name": "net", "type": plugin, **chained, **keys}
    for version in configs.VERSIONS:
        for plugin in PLUGINS:
            if version in configs.versions(plugin):
                small = configs.config(plugin, version, world.LEASES, "h0")
                small |= {"backend": "nftables"} if plugin in ("portmap", "firewall") else {}
                if plugin == "static":  # beside the one in CNI_ARGS old versions have room for one of the other family
                    small["ipam"] = configs.static("fd00:1:2::7/64")
                whole[f"{plugin}-{version}"] = plugin, small
    return whole


def environment(plugin: str, command: str) -> dict[str, str]:
    """Returns the variables of an invocation: a chained plugin works on the pod that has an interface."""
    pod = "/run/netns/chained" if plugin in configs.CHAINED else "/run/netns/pod"
    args = _ARGS if plugin in configs.READS_CNI_ARGS else {}
    return {**ENV, "CNI_COMMAND": command, "CNI_NETNS": pod, **args}


class Recorder:
    """Notes what the kernel and programs answer to this process."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        recorder = self
        run = process.child.run

        class Noting(socket.socket):
            """A socket that notes what it receives."""

            def recv(self, size: int, flags: int = 0) -> bytes:  # type: ignore[override]
                """Returns what the kernel says."""
                data = super().recv(size, flags)
                recorder.replies.append(data.decode("latin-1"))
                return data

        def noting(*commands: Any, **how: Any) -> Any:
            outcomes = run(*commands, **how)
            recorder.replies += [[outcome.status, outcome.stdout.decode("latin-1")] for outcome in outcomes]
            return outcomes

        socket.socket = Noting  # type: ignore[misc]
        process.child.run = noting


def main() -> None:
    """Records what is not there yet; prints a line for each case that could not succeed here."""
    found: list[tuple[str, str, Case]] = []
    world.enter()
    recorder = Recorder()
    for name, (plugin, config) in networks().items():
        previous = config.get("prevResult")
        for command in ("ADD", "CHECK", "STATUS", "DEL", "GC"):
            if (command in ("STATUS", "GC") and config["cniVersion"] != "1.1.0") or (
                command == "CHECK" and config["cniVersion"] < "0.4.0"
            ):
                continue
            own = {**config, **({"prevResult": previous} if previous else {}), **(_VALID if command == "GC" else {})}
            case = Case(plugin, environment(plugin, command), gojson.dumps(own).encode().decode("latin-1"))
            recorder.replies = []
            verdict, stdout = world.invoke(case)
            if verdict != "done":
                print(f"{name} {command}: {stdout.decode()}", file=sys.stderr)
            elif command == "ADD":
                previous = json.loads(stdout)
            small = name.endswith(tuple(configs.VERSIONS))
            found.append(("stdin", f"{name}-{command}", case))
            if not small:
                found.append(("environment", f"{name}-{command}", case))
            if "prevResult" in own:
                found.append(("previous", f"{name}-{command}", case))
            if recorder.replies and not small:
                told = Case(
                    plugin, {**case.env, "CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "1"}, case.stdin
                )
                told.replies = recorder.replies
                found.append(("replies", f"{name}-{command}", told))
    found += files()
    for target, name, case in found:
        if len(sys.argv) > 1:  # the repository is read-only here
            print(json.dumps([target, name, case.__dict__]))
        else:
            add_to_corpus(target, name, case)


def files() -> list[tuple[str, str, Case]]:
    """Returns cases of host-local's store and of libcni's cache."""
    names = {
        "10.1.2.3": "cid\r\neth0", "10.1.2.4": "other\r\neth0", "fd00:1:2::2": "cid\r\neth0", "10.1.2.5": "old",
        "last_reserved_ip.0": "10.1.2.4", "last_reserved_ip.1": "fd00:1:2::2", "lock": "",
    }  # fmt: skip
    store = {f"{world.LEASES}/net/{name}": content for name, content in names.items()}
    store[f"{world.LEASES}.podwire/net"] = "\0" * 1024 + ("\x08" + "10.1.2.3" + "\0" * 55) * 16
    entry = {"kind": "cniCacheV1", "containerId": "cid", "config": "e30=", "ifName": "eth0", "networkName": "net"}
    results = {}
    for container in ("cid", "other", "third"):
        body = {**entry, "containerID": container, "netns": "/run/netns/gone", "result": prev_result("1.0.0")}
        results[f"{world.RESULTS}/net-{container}-eth0"] = json.dumps(body)
    ipam = {
        "ipam": {**_IPAM, "ranges": [[{"subnet": "10.1.2.0/29", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.5"}]]}
    }
    found = []
    for command in ("ADD", "CHECK", "DEL", "GC", "STATUS"):
        config = {"cniVersion": "1.1.0", "name": "net", "type": "host-local", **ipam, **_VALID}
        config["prevResult"] = prev_result("1.1.0")
        own = dict(store)
        if command == "ADD":
            own = {path: "third\r\neth0" if content.startswith("cid") else content for path, content in store.items()}
        case = Case("host-local", {**ENV, "CNI_COMMAND": command}, json.dumps(config), own)
        found.append(("store", f"host-local-{command}", case))
        if command in ("ADD", "STATUS"):
            found.append(("cache", f"host-local-{command}", Case(case.plugin, case.env, case.stdin, own | results)))
    for plugin in ("portmap", "bridge"):
        config = networks()[f"{plugin}-1.1.0"][1] | {"ipMasq": True, "ipMasqBackend": "nftables"}
        case = Case(plugin, environment(plugin, "DEL"), json.dumps(config), dict(results))
        found.append(("cache", f"{plugin}-DEL", case))
    return found


if __name__ == "__main__":
    main()
