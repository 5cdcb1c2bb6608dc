"""The unchanged lists that runtimes and network providers put on nodes work with podwire's files.

One rule: neither the files are changed nor the directories that they leave to the plugins' defaults. Stand-ins replace
plugins of other projects, and do the same as far as podwire's plugins notice.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.attaching import run_on
from tests.support import flannel, netstate
from tests.support.bandwidth_network import BOTH
from tests.support.binaries import ROOT
from tests.support.hostports import ports
from tests.support.machine import ADDRESS, BIN_DIR, PEER_ADDRESS, eventually
from tests.support.netlist import NetworkList
from tests.support.tcp import PORT, serving, source_address

NETD = ROOT / "tests" / "data" / "netd"
OTHERS = {"broken": "is for the linter", "cilium": "names no plugin of podwire", "multus": "runs the list of flannel"}
SAMPLES = [path for path in sorted(NETD.rglob("*.conf*")) if path.suffix and path.parent.name not in OTHERS]
HOST_PORT = 8000
IP, MAC = "10.89.0.77", "02:00:00:00:00:77"  # what a container of podman requests
KUBE_PROXY = (
    "-N KUBE-MARK-MASQ",
    "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
    "-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE",
)

# projectcalico/calico: a routed veth pair; its result has only the host veth, and the address has no interface.
CALICO = """#!/bin/sh
set -e
cat > /dev/null
case $CNI_COMMAND in
ADD)
    ip link add calitest up type veth peer name "$CNI_IFNAME" netns "${CNI_NETNS##*/}"
    ip -n "${CNI_NETNS##*/}" address add 10.65.0.2/32 dev "$CNI_IFNAME"
    ip -n "${CNI_NETNS##*/}" link set "$CNI_IFNAME" up
    ip -n "${CNI_NETNS##*/}" route add 169.254.1.1 dev "$CNI_IFNAME" scope link
    ip -n "${CNI_NETNS##*/}" route add default via 169.254.1.1 dev "$CNI_IFNAME"
    ip route add 10.65.0.2 dev calitest scope link
    echo 1 > /proc/sys/net/ipv4/conf/calitest/proxy_arp
    echo 1 > /proc/sys/net/ipv4/ip_forward
    echo '{"cniVersion": "0.3.1", "interfaces": [{"name": "calitest"}],
           "ips": [{"version": "4", "address": "10.65.0.2/32"}]}' ;;
DEL) ip link del calitest ;;
esac
"""
# containers/dnsname: registers the pod with a name server, and returns prevResult.
DNSNAME = """#!/usr/bin/python3
import json, os, sys
if os.environ["CNI_COMMAND"] == "VERSION":
    print('{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}')
if os.environ["CNI_COMMAND"] == "ADD":
    json.dump(json.load(sys.stdin)["prevResult"], sys.stdout)
"""
STAND_INS = {"flannel": flannel.PLUGIN, "calico": CALICO, "dnsname": DNSNAME}


@pytest.fixture(scope="module")
def node(empty_machine, bin_dir):
    """A machine with podwire's plugins, the stand-ins, and kube-proxy's rules."""
    empty_machine.run(str(bin_dir / "podwire"), "install")
    for name, text in STAND_INS.items():
        empty_machine.write(BIN_DIR / name, text)
        empty_machine.run("chmod", "755", str(BIN_DIR / name))
    empty_machine.write(Path("/run/flannel/subnet.env"), flannel.subnet_env("10.42.1.1/24"))
    for rule in KUBE_PROXY:
        empty_machine.run("iptables", "-t", "nat", *rule.split())
    return empty_machine


def load(path: Path) -> NetworkList:
    """Reads a list, or a network of one plugin, as a runtime does; its pod requests all capabilities."""
    body = json.loads(path.read_text())
    plugins = tuple(body.get("plugins", [body]))
    capability_args: dict[str, Any] = {"portMappings": ports(f"{HOST_PORT}:{PORT}"), "bandwidth": BOTH, "aliases": {}}
    if path.parent.name == "podman-network":
        capability_args |= {"mac": MAC, "ips": [f"{IP}/24"]}
    return NetworkList(body["name"], body["cniVersion"], plugins).with_capabilities(**capability_args)


@pytest.fixture
def pod(node):
    """A pod's namespace; its deletion also deletes the bridges that the test created."""
    before = set(netstate.links(node.network))
    node.run("ip", "netns", "add", "pod")
    yield node.namespace("/run/netns/pod")
    node.run("ip", "netns", "del", "pod")
    for name in set(netstate.links(node.network)) - before:
        node.run("ip", "link", "del", name, check=False)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_unchanged_list_serves_a_pod(node, pod, path):
    """A pod of each list has what it requests, answers at its host port, passes CHECK, and leaves nothing."""
    network = load(path)
    ifname = "lo" if path.stem == "99-loopback" else "eth0"
    run = run_on(node, "pod", "/run/netns/pod", ifname)
    network.delete(run, network.add(run))  # leaves what stays by design: the bridge, shared chains
    assert eventually(lambda: "bridge" not in node.picture()["processes"])  # the background process of DEL
    with node.unchanged():
        result = network.add(run)
        assert result["cniVersion"] == network.cni_version
        if network.cni_version != "0.3.1":
            network.check(run, result)
        address = result["ips"][0]["address"].partition("/")[0]
        if any(plugin["type"] == "portmap" for plugin in network.plugins):
            with serving(pod, address):
                assert source_address(node.peer, ADDRESS, HOST_PORT) == PEER_ADDRESS
        if "mac" in network.capability_args:
            assert address == IP
            assert MAC in pod.run("ip", "link", "show", "eth0")
        network.delete(run, result)
