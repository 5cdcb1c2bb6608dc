"""`podwire doctor` on a node before its first pod: what the kernel lacks for the networks of net.d."""

import pytest

from kernel import modules
from tests.support.doctor_node import DoctorNode, Finding
from tests.support.modules import withheld

pytestmark = pytest.mark.every_case

PORTS = {"type": "portmap", "capabilities": {"portMappings": True}}
LIMITS = {"type": "bandwidth", "capabilities": {"bandwidth": True}}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    """A node with an uplink, and no pod."""
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "far0")
    for name in ("up0", "far0"):
        host.ip("link", "set", name, "up")
    return DoctorNode(host, tmp_path)


def list_lacks(node: DoctorNode) -> list[Finding]:
    """Returns the findings about what the kernel lacks."""
    return [one for one in node.list_findings() if one["name"] in ("not-ready", "kernel-lacks")]


def add_child(node: DoctorNode, kind: str) -> None:
    """Adds a network of an interface on the uplink."""
    ipam = {"type": "static", "addresses": [{"address": "10.9.8.2/24"}]}
    plugin = {"type": kind, "master": "up0", "ipam": ipam, **({"vlanId": 5} if kind == "vlan" else {})}
    node.add_network({"cniVersion": "1.0.0", "name": kind, "plugins": [plugin]})


@pytest.mark.needs("ifb", "tbf", "iptables_nft_nat")
@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_a_healthy_node_has_no_finding(node, backend):
    """Doctor tries masquerading, host ports and limits in a namespace of its own: no finding, the same links."""
    node.add_bridge("pods", "10.9.0.0/24", {**PORTS, "backend": backend}, LIMITS, ipMasq=True, ipMasqBackend=backend)
    before = node.host.ip("link")
    assert node.list_findings() == []
    assert node.host.ip("link") == before


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize(
    "keys", [{"externalSetMarkChain": "MARKS"}, {"conditionsV4": ["-m", "set", "--match-set", "pods", "src"]}]
)
def test_objects_of_the_host_are_no_finding(node, keys):
    """A chain and a set that portmap's configuration names exist on the host only: a trial does not use them."""
    node.host.run("iptables-nft", "-t", "nat", "-N", "MARKS")
    node.add_bridge("pods", "10.9.0.0/24", {**PORTS, **keys})
    assert list_lacks(node) == []


@pytest.mark.needs("iptables_nft_nat")
def test_missing_privileges_are_no_finding(node):
    """Without CAP_NET_ADMIN neither STATUS nor a trial says anything about the node: they were not done."""
    node.add_bridge("pods", "10.9.0.0/24", PORTS, LIMITS, ipMasq=True)
    drop = "setpriv --bounding-set=-net_admin --inh-caps=-net_admin"
    names = {one["name"] for one in node.list_findings(wrapper=drop)}
    assert "not-seen" in names
    assert not names & {"not-ready", "kernel-lacks"}


@pytest.mark.needs("no vlan_device", "no ipvlan")
def test_a_kernel_without_the_interfaces_is_named(node):
    """Each network whose interfaces the kernel cannot create is a problem, with the fix for this kernel."""
    for kind in ("vlan", "ipvlan"):
        add_child(node, kind)
    fixes = {one["subject"]: one["cure"] for one in list_lacks(node)}
    expected = {"vlan: vlan": modules.explain_missing("8021q"), "ipvlan: ipvlan": modules.explain_missing("ipvlan")}
    assert fixes == expected


@pytest.mark.needs("private_kernel")
@pytest.mark.parametrize("kind", ["vlan", "ipvlan", "macvlan"])
def test_a_module_that_can_be_loaded_is_no_finding(node, kind):
    """The kernel loads a module for doctor as for the first pod; one that it cannot load is a problem."""
    add_child(node, kind)
    module = "8021q" if kind == "vlan" else kind
    with withheld([module]):
        assert [one["cure"] for one in list_lacks(node)] == [f"load the module: modprobe {module}"]
    assert list_lacks(node) == []


@pytest.mark.needs("private_kernel")
@pytest.mark.parametrize(
    ("module", "subject"),
    [("cls_u32", "pods: bandwidth"), ("xt_comment", "pods: bridge"), ("xt_multiport", "pods: portmap")],
)
def test_what_status_does_not_try_is_tried(node, module, subject):
    """A module of the rules or limits of pods, which STATUS does not use, is a problem if the kernel cannot load it."""
    node.add_bridge(
        "pods", "10.9.0.0/24", {**PORTS, "backend": "iptables"}, LIMITS, ipMasq=True, ipMasqBackend="iptables"
    )
    assert list_lacks(node) == []
    with withheld([module]):
        findings = list_lacks(node)
    assert subject in [one["subject"] for one in findings], findings
    assert {one["name"] for one in findings} == {"kernel-lacks"}


@pytest.mark.needs("br_netfilter", "iptables_nft_nat")
@pytest.mark.parametrize(("keys", "names"), [({}, ["bridged-frames-pass-by"]), ({"bridgeNetfilter": True}, [])])
def test_a_setting_that_add_writes_is_no_finding(node, keys, names):
    """If bridged frames bypass iptables beside kube-proxy, only a network whose ADD accepts that is reported."""
    node.add_bridge(**keys)
    node.host.run("iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES")
    node.host.run("sysctl", "-w", "net/bridge/bridge-nf-call-iptables=0")
    assert [one["name"] for one in node.list_findings()] == names
