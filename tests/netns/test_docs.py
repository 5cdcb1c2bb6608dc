"""The plugins print the results in the documents, and create the documented names in the kernel."""

import hashlib
import json
import re
import runpy
import subprocess
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.spec import configs
from tests.support.invocation import Config, environment, run_plugin
from tests.support.markdown import DOCS, Document
from tests.support.namespaces import Namespace
from tests.support.netstate import links

# Values that differ between attachments.
CHANGING = (("veth[0-9a-f]{8}", "veth"), ("(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", "mac"), ('/run/netns/[^"]+', "netns"))
SOLE = ("bridge", "dummy", "ptp", "loopback", "host-local", "ipvlan", "macvlan", "vlan", "static", "tap")


def needing(name: str) -> Any:
    """Returns a plugin as a parameter, with the kernel feature that it needs."""
    return pytest.param(name, marks=pytest.mark.needs(configs.NEEDS[name]) if name in configs.NEEDS else ())


def documented_result(plugin: str) -> dict[str, Any]:
    (result,) = (value for value in map(json.loads, blocks(plugin)) if "interfaces" in value or "ips" in value)
    assert isinstance(result, dict)
    return result


def documented_config(plugin: str) -> dict[str, Any]:
    """Returns the configuration in a plugin's page, of the version of its result."""
    config = json.loads(blocks(plugin)[0])
    conf = next(item for item in config.get("plugins", [config]) if plugin in (item["type"], "host-local", "static"))
    return {**conf, "cniVersion": "1.1.0", "name": config.get("name", "podwire")}


def blocks(plugin: str) -> list[str]:
    return Document(DOCS / f"{plugin}.md").blocks("json")


def with_placeholders(result: dict[str, Any]) -> Any:
    """Returns a result with placeholders for values that differ between attachments."""
    text = json.dumps(result)
    for pattern, word in CHANGING:
        text = re.sub(pattern, word, text)
    return json.loads(text)


@pytest.fixture
def add(host: Namespace, sandbox: Namespace, store: Path, bin_dir: Path) -> Callable[[str, Config], dict[str, Any]]:
    """Runs ADD in a fresh namespace, with a separate store of reservations."""

    def run(plugin: str, config: Any) -> dict[str, Any]:
        if "master" in config:
            host.ip("link", "add", config["master"], "type", "veth", "peer", "name", "wire")
            for end in (config["master"], "wire"):
                host.ip("link", "set", end, "up")
        if config.get("ipam", {}).get("type") == "host-local":
            config = {**config, "ipam": {**config["ipam"], "dataDir": str(store)}}
        return run_plugin(plugin, "ADD", config, netns=sandbox, container_id="web-0-id", host=host).result()

    return run


@pytest.mark.parametrize("name", list(map(needing, SOLE)))
def test_result_in_a_page_is_the_printed_one(add, name):
    """The example configuration in the page of an interface or IPAM plugin has the result below it."""
    assert with_placeholders(add(name, documented_config(name))) == with_placeholders(documented_result(name))


@pytest.mark.needs("ifb", "tbf")
def test_result_of_bandwidth_is_the_printed_one(add):
    """An egress limit adds the interface in the page to the result, with the documented name."""
    limits = {"ingressRate": 10**7, "ingressBurst": 10**6, "egressRate": 10**7, "egressBurst": 10**6}
    config = {"cniVersion": "1.1.0", "name": "podwire", "type": "bandwidth", "runtimeConfig": {"bandwidth": limits}}
    result = add("bandwidth", {**config, "prevResult": add("bridge", documented_config("bridge"))})
    assert with_placeholders(result) == with_placeholders(documented_result("bandwidth"))
    assert result["interfaces"][-1]["name"] == "bwp" + hashlib.sha512(b"podwireweb-0-id").hexdigest()[:12]


def test_result_of_tuning_is_the_printed_one(add, sandbox, tmp_path):
    """MTU and MAC address change the result as in the page, and the interface."""
    config = {"cniVersion": "1.1.0", "name": "podwire", "type": "tuning", "dataDir": str(tmp_path / "tuning")}
    options = {"mtu": 1400, "mac": "02:00:00:00:00:05"}
    result = add("tuning", {**config, **options, "prevResult": add("bridge", documented_config("bridge"))})
    assert with_placeholders(result) == with_placeholders(documented_result("tuning"))
    assert result["interfaces"][2] == {**documented_result("tuning")["interfaces"][2], "sandbox": sandbox.path}
    assert links(sandbox)["eth0"]["mtu"] == 1400


@pytest.mark.needs("nft_nat")
def test_names_in_nftables_are_as_documented(add, host):
    """The comment of a masquerade rule begins with hashes of network, and of interface and container."""
    add("bridge", {**documented_config("bridge"), "ipMasq": True, "ipMasqBackend": "nftables"})
    start = "-".join(hashlib.sha512(text).hexdigest()[:16] for text in (b"podwire", b"eth0:web-0-id"))
    assert f'comment "{start}, net: podwire, if: eth0, id: web-0-id"' in host.run("nft", "list", "ruleset")


def list_lanes(trace: str) -> list[str]:
    """Returns the figure's lanes that a process used, from its system calls; repetitions in a row count once."""
    sockets: dict[str, str] = {}
    targets_in_order, in_host_namespace = [], True
    for line in trace.splitlines():
        if match := re.match(r"socket\(AF_NETLINK, .*?, (\w+)\) = (\d+)", line):
            route = "kernel: host" if in_host_namespace else "kernel: pod"
            sockets[match[2]] = "nf_tables" if match[1] == "NETLINK_NETFILTER" else route
        elif line.startswith("setns("):
            in_host_namespace = not in_host_namespace
        elif match := re.match(r"sendto\((\d+),", line):
            targets_in_order.append(sockets[match[1]])
        elif line.startswith("flock("):
            targets_in_order.append("files")
        elif line.startswith("write(1,"):
            targets_in_order.append("runtime")
    return [lane for lane, _ in groupby(targets_in_order)]


@pytest.mark.needs("nft_nat")
def test_add_uses_the_lanes_of_the_figure(bin_dir, host, new_sandbox, store, tmp_path):
    """The second pod's ADD uses kernel, files and packet filter in the figure's order, in one process."""
    config = {**documented_config("bridge"), "ipMasq": True, "ipMasqBackend": "nftables"}
    config = {**config, "ipam": {**config["ipam"], "dataDir": str(store)}}
    run_plugin("bridge", "ADD", config, netns=new_sandbox(), container_id="first", host=host).result()
    calls, pod = tmp_path / "calls", new_sandbox()
    env = environment("ADD", CNI_CONTAINERID="b", CNI_NETNS=pod.path, CNI_IFNAME="eth0", CNI_PATH=str(bin_dir))
    strace = ["strace", "-f", "-qq", "-e", "trace=setns,socket,sendto,flock,write,clone,vfork", "-o", str(calls)]
    with host.entered():
        subprocess.run([*strace, str(bin_dir / "bridge")], env=env, input=json.dumps(config).encode(), check=True)
    lines = [line.partition(" ")[2].lstrip() for line in calls.read_text().splitlines()]
    assert [line for line in lines if line.startswith(("clone", "vfork"))] == []
    drawn = runpy.run_path(str(DOCS / "figures.py"))
    # The host's socket creates the veth pair, although one end of it is created in the pod.
    targets = ["kernel: host" if "veth pair" in text else drawn["_LANES"][end] for _, end, text in drawn["_STEPS"][1:]]
    assert list_lanes("\n".join(lines)) == [lane for lane, _ in groupby(targets)]
