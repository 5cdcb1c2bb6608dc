"""Real packets of a pod with two interfaces: with sbr, replies leave by the interface that the request came in by."""

import json

import pytest

from tests.support import publishing
from tests.support.attaching import address, reaches
from tests.support.markdown import DOCS, Document
from tests.support.netlist import NetworkList, runner
from tests.support.sbr_network import captured, connect, rules, state
from tests.support.tcp import serving, source_address

CLIENTS = {4: publishing.CLIENT, 6: publishing.CLIENT6}
PODS = {4: "10.2.0.2", 6: "fd00:2::2"}


def prepare(*nodes):
    """Disables duplicate address detection and enables forwarding."""
    for namespace in nodes:
        publishing.disable_dad(namespace)
        namespace.ip("link", "set", "lo", "up")
        for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            namespace.set_sysctl(key, "1")


def add_client(router, client):
    """Connects a client to a router; it sends everything through it."""
    publishing.connect(router, client)
    client.ip("route", "add", "default", "via", publishing.NODE)
    client.ip("-6", "route", "add", "default", "via", publishing.NODE6)


@pytest.fixture
def client(host, new_sandbox):
    """A host behind the router of the second network, unknown to the first network."""
    return new_sandbox()


@pytest.fixture
def router(new_sandbox, client):
    """The router of the second network, with the client behind it."""
    namespace = new_sandbox()
    prepare(namespace, client)
    add_client(namespace, client)
    return namespace


@pytest.fixture
def pod(host, router, sandbox):
    """A pod with eth0, which has its default routes, and net1 on the router's network."""
    prepare(host, sandbox)
    connect(host, sandbox, "10.1.0.2/24", "fd00:1::2/64", gateways=["10.1.0.1", "fd00:1::1"])
    sandbox.ip("route", "add", "default", "via", "10.1.0.1")
    sandbox.ip("-6", "route", "add", "default", "via", "fd00:1::1")
    return sandbox


@pytest.fixture
def prev_result(router, pod):
    """The result of net1."""
    addresses, gateways = [f"{PODS[4]}/24", f"{PODS[6]}/64"], ["10.2.0.1", "fd00:2::1"]
    return connect(router, pod, *addresses, ifname="net1", peer_name="pods", gateways=gateways)


@pytest.mark.parametrize("version", [4, 6])
def test_replies_leave_by_the_right_interface(sbr, host, client, pod, prev_result, version):
    """Without sbr replies to a client leave by eth0 and are lost; with it they leave by net1 and arrive."""
    ip, source = PODS[version], CLIENTS[version]
    for verb, interface in ((None, "eth0"), (sbr.add, "net1"), (sbr.delete, "eth0")):
        if verb:
            verb(pod, prev_result, ifname="net1")
        arrives = interface == "net1"
        with captured(pod, "eth0", "net1", source=ip, destination=source) as interfaces:
            assert reaches(client, ip, within_s=20 if arrives else 1) == arrives
        assert interfaces == {interface}
        if arrives:
            with serving(pod, ip):
                assert source_address(client, ip) == source
            assert reaches(host, {4: "10.1.0.2", 6: "fd00:1::2"}[version])


def test_the_pod_uses_its_first_interface_by_default(sbr, host, router, pod, prev_result):
    """Packets without a bound source address keep leaving by eth0, and bound ones leave by net1."""
    sbr.add(pod, prev_result, ifname="net1")
    host.ip("address", "add", "198.51.100.1/32", "dev", "lo")
    router.ip("address", "add", "198.51.100.1/32", "dev", "lo")
    for options, interface, source in (((), "eth0", "10.1.0.2"), (("-I", PODS[4]), "net1", PODS[4])):
        with captured(pod, "eth0", "net1", source=source, destination="198.51.100.1") as interfaces:
            assert reaches(pod, "198.51.100.1", options=options)
        assert interfaces == {interface}


def definition():
    """Returns the list of docs/multus.md with sbr."""
    lists = [json.loads(block) for block in Document(DOCS / "multus.md").blocks("json")]
    (body,) = [item for item in lists if any(plugin["type"] == "sbr" for plugin in item.get("plugins", ()))]
    return NetworkList(body["name"], body["cniVersion"], tuple(body["plugins"]))


def test_list_of_the_manual(network, host, router, client, sandbox, store):
    """The list of docs/multus.md attaches net1 beside eth0, and a client reaches it."""
    prepare(host, sandbox)
    second = definition()
    second.plugins[0]["ipam"]["dataDir"] = str(store)
    run = runner(host, sandbox, ifname="net1")
    eth0 = network.add(sandbox)
    before = state(sandbox)
    result = second.add(run)
    host.ip("link", "add", "storage", "type", "veth", "peer", "name", "pods", "netns", router.name)
    host.ip("link", "set", "storage", "up", "master", "br-storage")
    router.ip("link", "set", "pods", "up")
    router.ip("address", "add", "10.56.0.1/24", "dev", "pods")
    with captured(sandbox, "eth0", "net1", source=address(result), destination=CLIENTS[4]) as interfaces:
        assert reaches(client, address(result))
    assert interfaces == {"net1"}
    second.check(run, result)
    network.check(sandbox, eth0)
    second.delete(run, result)
    assert (state(sandbox), rules(sandbox)) == (before, [])
