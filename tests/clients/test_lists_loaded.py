"""The lists that runtimes put on nodes, loaded unchanged by runtimes: a pod starts, answers, and ends completely.

One rule: the unchanged file is copied to net.d under its name, and is the only one there.
"""

from __future__ import annotations

import json

import pytest

from tests.clients import podman as podman_client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE, WEB_SERVER
from tests.clients.test_lists_runtimes import DNSNAME, NETD
from tests.support import netstate
from tests.support.machine import ADDRESS, BIN_DIR, CONF_DIR, eventually

BY_CONTAINERD = ["containerd/10-containerd-net.conflist", "crio/11-crio-ipv4-bridge.conflist"]
BY_CONTAINERD += ["crio-dual-stack/100-crio-bridge.conf", "kubenet/10-containerd-net.conflist"]
BY_CONTAINERD += ["nerdctl/nerdctl-bridge.conflist"]  # its name, "bridge", has another meaning for podman
BY_PODMAN = ["podman/87-podman-bridge.conflist", "podman-network/web.conflist"]


@pytest.fixture(scope="module", autouse=True)
def kube_proxy(empty_machine):
    """Creates kube-proxy's chain."""
    for rule in ("-N KUBE-MARK-MASQ", "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000"):
        empty_machine.run("iptables", "-t", "nat", *rule.split())


@pytest.fixture
def loaded(request, empty_machine):
    """The name and bridge of a list, and whether it has portmap; net.d contains only that list during the test."""
    path = NETD / request.param
    empty_machine.run(
        "sh", "-ec", f"rm -f {CONF_DIR}/*; cp {path} {CONF_DIR}/.new; mv {CONF_DIR}/.new {CONF_DIR}/{path.name}"
    )
    body = json.loads(path.read_text())
    bridge = body.get("plugins", [body])[0]["bridge"]
    yield body["name"], bridge, "portmap" in path.read_text()
    assert empty_machine.leftovers(links=[bridge]) == []
    empty_machine.run("ip", "link", "del", bridge, check=bridge in netstate.links(empty_machine.network))


@pytest.mark.parametrize("loaded", BY_CONTAINERD, indirect=True)
def test_containerd_loads_the_list(cri, loaded):
    """Containerd attaches pods with the file, whatever its name and version."""
    name, bridge, has_ports = loaded
    assert eventually(lambda: cri.network() == name), cri.not_ready()
    pod = cri.run("web", ((8080, 80, pb.TCP, ""),))
    assert bridge in netstate.links(cri.machine.network)
    assert eventually(lambda: page(cri.machine.network, pod.ips[0]) == PAGE)
    assert page(cri.machine.peer, ADDRESS, 8080) == (PAGE if has_ports else "")
    cri.remove(pod)


@pytest.mark.parametrize("loaded", BY_PODMAN, indirect=True)
def test_podman_loads_the_list(needs_programs, bin_dir, empty_machine, loaded):
    """Podman knows the network by its name, accepts its labels and options, and runs a container on it."""
    needs_programs(*podman_client.PROGRAMS)
    empty_machine.install(bin_dir)
    empty_machine.write(BIN_DIR / "dnsname", DNSNAME)
    empty_machine.run("chmod", "755", str(BIN_DIR / "dnsname"))
    podman, (name, bridge, _) = podman_client.configure_with_image(empty_machine), loaded
    assert name in podman("network", "ls", "--format", "{{.Name}}").split()
    podman.start("web", "--publish=8080:80", network=name, command=WEB_SERVER)
    assert bridge in netstate.links(empty_machine.network)
    assert eventually(lambda: page(empty_machine.peer, ADDRESS, 8080) == PAGE)
    podman.remove()
