"""The warm-up: runs the plugins' ADD, CHECK and DEL at build time, several times, against a fake kernel.

One rule: the warm-up writes only to a temporary directory, and leaves only specialised bytecode in the image.

CPython specialises bytecode after a few calls and caches attribute look-ups. A process that starts from a warm image
spends no time on that and copies no memory pages for it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from attachment.policy import table
from cni import gojson, skel
from ipam.host_local import grants
from kernel import boot, system
from pack import fake_dhcp
from pack.fake_kernel import FakeKernel
from pack.fake_links import CHILD_NAME, IN_SANDBOX, ON_HOST, VRF_NAME

_TIMES = 20
# A file of procfs, as old kernels have for namespaces, that only this process opens: sbr and vrf lock it, and a build
# that waited for a lock would have another layout.
_NETNS = "/proc/self/status"
_NETWORK = {
    "cniVersion": "1.1.0",
    "name": "warm-up",
    "type": "bridge",
    "bridge": "cni0",
    "isDefaultGateway": True,
}
_POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=warm-up;K8S_POD_NAME=pod;K8S_POD_UID=0"
_BACKENDS = ("nftables", "iptables")
_PORTS = [
    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
]
_LIMITS = {
    "runtimeConfig": {
        "bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}
    }
}
_VRF = {"vrfname": VRF_NAME}
_SINGLE_LINKS: dict[str, dict[str, Any]] = {  # plugins whose interface is a single link in the container
    "dummy": {},
    "host-device": {"device": ON_HOST},
    "ipvlan": {"master": "cni0"},
    "macvlan": {"master": "cni0"},
    "tap": {"mtu": 1500, "bridge": ""},
    "vlan": {"master": "cni0", "vlanId": 5},
}
_IPAM = {
    "type": "host-local",
    "ranges": [
        [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.2"}],
        [{"subnet": "fd00:1:2::/64", "rangeStart": "fd00:1:2::2", "rangeEnd": "fd00:1:2::2"}],
    ],
}

# With prefix lengths that podwire uses at import: ipaddress stores each new one.
_BLOCKS = {
    "10.1.2.0/24": ("10.1.2.1", "10.1.2.254", "10.1.2.1"),
    "10.1.3.0/24": ("10.1.3.1", "10.1.3.254", "10.1.2.1"),
    "fd00:1:2::/64": ("fd00:1:2::", "fd00:1:2::ffff:ffff:ffff:ffff", "fd00:1:2::"),
}


def warm_up(plugins: Mapping[str, Any]) -> None:
    """Runs all scenarios several times; raises RuntimeError when a verb fails."""
    for _ in range(_TIMES):
        list(scenarios(plugins))


def scenarios(plugins: Mapping[str, Any]) -> Iterator[str]:
    """Runs the verbs of a pod once and yields the name of each scenario before it; raises RuntimeError."""
    with _fake_kernel() as data_dir:
        network = {**_NETWORK, "ipam": {**_IPAM, "dataDir": data_dir}}
        for name in ("loopback", "bridge"):
            yield f"{name} ADD"
            result = _run_verb(plugins, name, "ADD", network, data_dir)
            for verb in ("CHECK", "DEL"):
                yield f"{name} {verb}"
                _run_verb(plugins, name, verb, {**network, "prevResult": result}, data_dir)
        for backend in _BACKENDS:
            yield f"masquerade, {backend}"
            network |= {"ipMasq": True, "ipMasqBackend": backend}
            result = _run_verb(plugins, "bridge", "ADD", network, data_dir)
            for verb in ("CHECK", "DEL"):
                _run_verb(plugins, "bridge", verb, {**network, "prevResult": result}, data_dir)
            yield f"portmap, {backend}"
            ports = {"backend": backend, "runtimeConfig": {"portMappings": _PORTS}, "prevResult": result}
            # Twice: the second container finds the shared chains, as most containers do.
            for verb in ("ADD", "CHECK", "DEL") * 2:
                _run_verb(plugins, "portmap", verb, {**_NETWORK, "type": "portmap", **ports}, data_dir)
            yield f"firewall, {backend}"
            firewall_conf = {**_NETWORK, "type": "firewall", "backend": backend, "prevResult": result}
            for verb in ("ADD", "CHECK", "DEL") * 2:
                _run_verb(plugins, "firewall", verb, firewall_conf, data_dir)
            yield f"ptp, {backend}"
            result = _run_verb(plugins, "ptp", "ADD", {**network, "type": "ptp"}, data_dir)
            _run_verb(plugins, "ptp", "DEL", {**network, "type": "ptp", "prevResult": result}, data_dir)
        for name, keys in _SINGLE_LINKS.items():
            yield name
            conf = {**network, "type": name, "dataDir": f"{data_dir}/devices", **keys}
            _run_single_link_verbs(plugins, conf, data_dir)
        tuning_conf = {"mtu": 1500, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "dataDir": f"{data_dir}/tuning"}
        chained: Any = ("bandwidth", _LIMITS), ("sbr", {}), ("tuning", {}), ("tuning", tuning_conf), ("vrf", _VRF)
        for name, keys in chained:
            yield name
            for verb in ("ADD", "CHECK", "DEL"):
                _run_verb(plugins, name, verb, {**_NETWORK, "type": name, **keys, "prevResult": result}, data_dir)
        for name, run in (("dhcp", _run_dhcp), ("pool", _run_pool), ("network policies", _run_policies)):
            yield name
            run(plugins, data_dir)


def _run_dhcp(plugins: Mapping[str, Any], data_dir: str) -> None:
    """Runs the verbs of dhcp with a daemon in this process."""
    network = {**_NETWORK, "type": "dhcp", "ipam": {"type": "dhcp", "dataDir": f"{data_dir}/dhcp", **fake_dhcp.KEYS}}
    for verb in ("ADD", "CHECK", "DEL"):
        _run_verb(plugins, "dhcp", verb, network, data_dir)


def _run_pool(plugins: Mapping[str, Any], data_dir: str) -> None:
    """Runs the verbs of host-local with a pool, whose blocks are in a grants file as the agent writes it."""
    network = {**_NETWORK, "name": "pool", "ipam": {"type": "host-local", "pool": "default", "dataDir": data_dir}}
    _write_grants(data_dir, "pool")
    for verb in ("ADD", "CHECK", "DEL"):
        _run_verb(plugins, "host-local", verb, network, data_dir)


def _run_policies(plugins: Mapping[str, Any], data_dir: str) -> None:
    """Runs the verbs of pods with networkPolicy: with an agent that answers, and in a namespace without policies."""
    ipam = {**_IPAM, "dataDir": data_dir}
    document = {"boot": boot.get_boot_id(), "generation": 1, "namespaces": ["other"]}
    for plugin, verbs in (("bridge", ("CHECK", "DEL")), ("ptp", ("DEL",))):
        network = {**_NETWORK, "type": plugin, "ipam": ipam, "networkPolicy": True, "bridgeNetfilter": True}
        for is_listed in (True, False):
            path = system.current.state_path(table.NAMESPACES_FILE)
            if is_listed:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                with open(path, "wb") as file:
                    file.write(json.dumps(document).encode())
            result = _run_verb(plugins, plugin, "ADD", network, data_dir, cni_args=_POD)
            for verb in verbs:
                _run_verb(plugins, plugin, verb, {**network, "prevResult": result}, data_dir)


def _write_grants(data_dir: str, network: str) -> None:
    """Writes the grants of a network, as podwire-agent does; this boot may use them."""
    blocks = [
        {"subnet": subnet, "first": first, "last": last, "gateway": gateway, "state": grants.GRANTED}
        for subnet, (first, last, gateway) in _BLOCKS.items()
    ]
    document = {
        "version": 1,
        "boot": boot.get_boot_id(),
        "contact": 1,
        "pools": [{"name": "default", "versions": [4, 6], "namespaces": [], "blocks": blocks}],
    }
    path = grants.path_of(data_dir, network)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(json.dumps(document).encode())


def _run_single_link_verbs(plugins: Mapping[str, Any], network: Mapping[str, Any], data_dir: str) -> None:
    """Runs the verbs of a plugin in `_SINGLE_LINKS`."""
    ifname = IN_SANDBOX if network["type"] == "host-device" else CHILD_NAME
    result = _run_verb(plugins, network["type"], "ADD", network, data_dir, ifname)
    for verb in ("CHECK", "DEL"):
        _run_verb(plugins, network["type"], verb, {**network, "prevResult": result}, data_dir, ifname)


def _run_verb(
    plugins: Mapping[str, Any],
    name: str,
    command: str,
    network: Mapping[str, Any],
    data_dir: str,
    ifname: str = "eth0",
    cni_args: str = "",
) -> Any:
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "warm-up",
        "CNI_IFNAME": ifname,
        "CNI_NETNS": _NETNS,
        "CNI_PATH": data_dir,
        "CNI_ARGS": cni_args,
    }
    stdout = io.BytesIO()
    reading_end, writing_end = os.pipe()
    with open(writing_end, "wb") as runtime:
        runtime.write(gojson.dumps(network).encode())
    with open(reading_end, "rb", buffering=0) as stdin:
        failed = skel.run(plugins[name], env, stdin, stdout, about="", delegates=plugins)
    with suppress(ChildProcessError):  # a verb's background process ends before the next verb begins
        while os.waitpid(-1, 0):
            pass
    if failed:
        raise RuntimeError(f"warm-up: {command} of {name}: {stdout.getvalue().decode()}")
    return gojson.loads(stdout.getvalue()) if stdout.getvalue() else None


@contextmanager
def _fake_kernel() -> Iterator[str]:
    """Replaces the kernel while the context is active; yields a directory for leases."""
    # The directory is addressed by a descriptor: its name differs in every build, and Python would intern it.
    temporary = f"/tmp/podwire-{os.urandom(8).hex()}"
    os.mkdir(temporary, 0o700)
    descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    directory = f"/proc/self/fd/{descriptor}/leases"
    os.mkdir(directory, 0o700)
    os.symlink("/proc/self/exe", f"{directory}/host-local")
    try:
        with system.replaced(FakeKernel(directory)):
            yield directory
    finally:
        os.close(descriptor)
        shutil.rmtree(temporary)
