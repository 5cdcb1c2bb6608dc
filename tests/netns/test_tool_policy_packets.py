"""`podwire trace` and `doctor` on a node whose pods have network policies: named by the one, no fault for the other."""

from ipaddress import ip_address

import pytest

from agent.policy.filter import PolicyFilter
from agent.policy.filter_table import AcceptRule, ChainContent, FilterTable, Verdict
from attachment.policy.table import ChainSubject
from tests.support.packet_node import BRIDGE, PacketNode

pytestmark = pytest.mark.needs("nft_inet", "br_netfilter", "nft_nat")

FIRST = tuple(map(ip_address, ("10.22.0.2", "fd00:22::2")))
SECOND = tuple(map(ip_address, ("10.22.0.3", "fd00:22::3")))
OPEN = Verdict()
CLOSED = ChainContent(
    ChainSubject("ingress", "shop", ("default-deny", "web")), (AcceptRule(protocol="tcp", ports=(81, 81)),)
)
DENIED = ChainContent(ChainSubject("egress", "shop", ("no-way-out",)), ())
UNKNOWN = ChainContent(ChainSubject("ingress", "shop"), ())


@pytest.fixture
def web(new_sandbox):
    """The first pod, which has a host port."""
    return new_sandbox()


@pytest.fixture
def client(new_sandbox):
    """The second pod."""
    return new_sandbox()


@pytest.fixture
def node(host, new_sandbox, tmp_path, web, client):
    """A node with an uplink and the two pods, guarded, on a bridge."""
    node = PacketNode(host, tmp_path, new_sandbox())
    for key in ("iptables", "ip6tables"):
        host.set_sysctl(f"net/bridge/bridge-nf-call-{key}", "1")
    node.attach_pod(web, ports=True, networkPolicy=True)
    node.attach_pod(client, networkPolicy=True)
    return node


@pytest.fixture
def apply(node):
    """A function that lets the node's filter have chains for the addresses of its two pods."""
    with node.host.entered():
        policy_filter = PolicyFilter()

    def apply(first=OPEN, second=OPEN, **chains):
        verdicts = {**dict.fromkeys(FIRST, first), **dict.fromkeys(SECOND, second)}
        named = {name.replace("_", "-"): content for name, content in chains.items()}
        policy_filter.apply(FilterTable({key: one for key, one in verdicts.items() if any(one)}, named, {}))

    yield apply
    policy_filter.close()


@pytest.mark.parametrize("version", ["-4", "-6"])
def test_trace_names_the_policies(node, web, client, apply, version):
    """The suspect has the policies, their namespace, the direction and the pod, and the command that says why."""
    address = FIRST[version == "-6"]
    apply(first=Verdict("", "i-1"), second=Verdict("e-1", ""), i_1=CLOSED, e_1=DENIED)
    words = (client.name, f"[{address}]:80" if version == "-6" else f"{address}:80")
    suspect = node.trace(*words)["suspect"]
    expected = f"network policy no-way-out of namespace shop drops it (egress of {client.name})"
    assert (suspect["name"], suspect["text"], suspect["owner"]) == ("network-policy", expected, "podwire-agent")
    apply(first=Verdict("", "i-1"), i_1=CLOSED)
    suspect = node.trace(*words)["suspect"]
    assert suspect["text"] == f"network policies default-deny, web of namespace shop drop it (ingress of {web.name})"
    source = SECOND[version == "-6"]
    assert suspect["look"] == f"podwire policy why {source} {words[1]}"
    assert 'counter name "d-i-1"' in suspect["object"]
    trace = node.trace(client.name, words[1].replace(":80", ":81") if version == "-4" else f"[{address}]:81")
    assert trace["suspect"] is None, trace


def test_trace_of_a_published_port(node, apply):
    """A packet from outside to a host port is dropped after its translation; the question names the pod's port."""
    apply(first=Verdict("", "i-1"), i_1=UNKNOWN)
    suspect = node.trace("outside", ":8080")["suspect"]
    assert suspect["text"].startswith("podwire-agent isolates the pod until the API server sends its object (ingress")
    assert suspect["look"].endswith(f" {FIRST[0]}:80"), suspect


def test_what_policies_drop_is_no_finding(node, apply):
    """What policies and the guard of ports drop is no finding of doctor, and hides no rule that drops packets later."""

    def findings():
        return [(one["name"], one["severity"]) for one in node.list_findings()]

    before = findings()
    assert before == [("policies-unserved", "problem")]  # no agent runs here
    apply(first=Verdict("e-1", "i-1"), second=Verdict("e-1", "i-1"), i_1=UNKNOWN, e_1=DENIED)
    assert findings() == before
    node.host.run("nft", "add table inet o; add chain inet o f { type filter hook forward priority 0; }")
    node.host.run("nft", f'add rule inet o f iifname "{BRIDGE}" drop')
    assert [name for name, _ in findings()] == ["rule-drops", "policies-unserved"]
