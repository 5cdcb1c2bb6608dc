"""`podwire doctor` and `podwire show` for networks with macvlan, ipvlan and vlan: masters, modes, and host links."""

import json
from typing import Any

import pytest

from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.netlist import NetworkList
from tests.support.netstate import links
from tests.support.samples import create_interfaces

SAMPLE = "90-macvlan.conflist"


@pytest.fixture
def network(node) -> NetworkList:
    """A macvlan network on `eth0`."""
    return add(node, SAMPLE)


def add(node: DoctorNode, sample: str) -> NetworkList:
    network = node.add_sample(sample)
    create_interfaces(node.host, network)
    return network


def show(node: DoctorNode) -> dict[str, Any]:
    done = node.podwire("show", f"--data-dir={node.directory}/leases", "--json")
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


KINDS = {  # kind, master and mode of the pod's interface, and the feature that it needs
    SAMPLE: (("macvlan", "eth0", "bridge"), ["macvlan"]),
    "91-ipvlan.conflist": (("ipvlan", "eth2", "l3"), ["ipvlan"]),
    "92-vlan.conflist": (("vlan", "eth0", "100"), ["vlan_device"]),
    "94-dummy.conflist": (("dummy", "", ""), ["dummy"]),
    "95-tap.conflist": (("tun", "", ""), []),
}


@pytest.mark.parametrize(
    ("sample", "expected"),
    [pytest.param(name, kind, marks=pytest.mark.needs(*needs), id=name) for name, (kind, needs) in KINDS.items()],
)
def test_show_describes_interfaces_without_a_host_veth(node, sandbox, sample, expected):
    """The kind of the pod's interface, its master and its mode are shown."""
    node.attach(add(node, sample), sandbox)
    (pod,) = show(node)["attachments"]
    kind, master, mode = pod["kind"], pod["master"], pod["mode"]
    assert (kind, master, mode) == expected
    assert (pod["state"], pod["hostInterface"], pod["bridge"]) == ("ok", "", "")
    column = f"{master} ({kind} {mode})".replace(" )", ")").lstrip()
    assert column in node.podwire("show", f"--data-dir={node.directory}/leases").stdout


@pytest.mark.needs("macvlan")
def test_master_that_is_down(node, network, sandbox):
    """A master that is down, or without a carrier, is one problem; the printed fix brings it up."""
    node.attach(network, sandbox)
    assert list_problems(node.list_findings()) == []
    node.host.ip("link", "set", "eth0", "down")
    finding = node.find("master-down")
    assert "eth0" in finding["text"]
    node.run_fix(finding)
    node.host.ip("link", "set", "eth0-peer", "down")
    assert "no carrier" in node.find("master-without-carrier")["text"]
    node.host.ip("link", "set", "eth0-peer", "up")
    assert not any(one["name"].startswith("master") for one in node.list_findings())


@pytest.mark.long
@pytest.mark.needs("macvlan")
def test_deleted_master(node, network, sandbox):
    """A deleted master is a problem; when it is back, the printed command restores the pod's interface."""
    node.attach(network, sandbox)
    node.host.ip("link", "delete", "eth0")
    finding = node.find("master-missing")
    before, _, command = finding["cure"].partition(": ")
    assert before == "create eth0 again, then"
    create_interfaces(node.host, network)
    node.run_fix({**finding, "cure": command})
    assert list_problems(node.list_findings()) == []


@pytest.mark.needs("vlan_device")
def test_deleted_master_of_vlans(node, sandbox):
    """`podwire repair` cannot restore a VLAN interface, so the advice is to create the pods again."""
    network = add(node, "92-vlan.conflist")
    node.attach(network, sandbox)
    node.host.ip("link", "delete", "eth0")
    advice = node.find("master-missing")["cure"]
    assert advice.startswith("create eth0 again, then remove the pods and create them again")


def load_changed(node: DoctorNode, version: str, **keys: Any) -> NetworkList:
    """Changes keys of the macvlan plugin in net.d, and the list's version; `None` removes a key."""
    body = json.loads((node.conf / SAMPLE).read_text())
    body["cniVersion"] = version
    body["plugins"][0] = {key: value for key, value in {**body["plugins"][0], **keys}.items() if value is not None}
    return NetworkList.load(node.configure(SAMPLE, body))


@pytest.mark.needs("macvlan")
def test_master_of_the_default_route(node, network, sandbox):
    """Without the key `master`, the interface of the default route is checked."""
    node.host.run("sh", "-ec", "ip address add 192.0.2.1/24 dev eth0; ip route add default via 192.0.2.2")
    node.attach(load_changed(node, "1.0.0", master=None), sandbox)
    node.host.ip("link", "set", "eth0-peer", "down")
    assert "eth0" in node.find("master-without-carrier")["text"]


@pytest.mark.needs("macvlan")
@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_routes_to_deleted_pods_are_leaked(node, network, sandbox, new_sandbox, version):
    """Routes to a deleted pod are leaked, those to running pods are not; the printed command removes them."""
    node.host.run("sh", "-ec", "ip address add 192.0.2.1/24 dev eth0")
    network, other = load_changed(node, version, hostAccess=True), new_sandbox()
    node.attach(network, sandbox)
    node.attach(network, other)
    (host_link,) = [name for name in links(node.host) if name.startswith("pwha")]
    assert show(node)["leaks"] == []
    sandbox.delete()
    leaks = {leak["kind"]: leak for leak in show(node)["leaks"]}
    assert host_link in leaks["host route"]["what"]
    for leak in leaks.values():
        node.run_fix(leak)
    assert show(node)["leaks"] == []
    assert host_link in links(node.host)


@pytest.mark.needs("macvlan")
def test_host_link_without_routes_is_leaked(node, network):
    """A host link that no route uses is leaked; the printed command deletes it."""
    node.host.ip("link", "add", "pwha7", "link", "eth0", "type", "macvlan")
    (leak,) = show(node)["leaks"]
    assert (leak["kind"], "pwha7" in leak["what"]) == ("host link", True)
    node.run_fix(leak)
    assert show(node)["leaks"] == []
