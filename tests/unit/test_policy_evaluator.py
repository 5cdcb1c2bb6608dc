"""The sentences of the evaluator; test_policy_oracle.py has its decisions."""

from ipaddress import ip_address

import pytest

from agent.policy.evaluator import ClusterState, PodConnection
from agent.policy.objects import ClusterPod, parse_policy
from tests.support.policy_world import decide, pods_by_address

NODES = {"n1": frozenset({ip_address("192.0.2.1")})}
PODS = [
    ClusterPod("shop", "web", "1", {"app": "web"}, (ip_address("10.0.0.1"),), "n1"),
    ClusterPod("shop", "db", "2", {"app": "db"}, (ip_address("10.0.0.2"),), "n2"),
    ClusterPod("other", "web", "3", {"app": "web"}, (ip_address("10.0.1.1"),), "n1"),
]
WEB, DB, OTHER, NODE, FAR = "10.0.0.1", "10.0.0.2", "10.0.1.1", "192.0.2.1", "198.51.100.1"
DENY, DENY_EGRESS = {"policyTypes": ["Ingress"]}, {"policyTypes": ["Egress"]}
FROM_WEB = {"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]}


@pytest.mark.parametrize(
    ("specs", "source", "destination", "sentence"),
    [
        ([DENY], DB, WEB, "policy p0 of namespace shop isolates it (ingress): no policy allows tcp 80 from db"),
        (
            [DENY] * 5,
            OTHER,
            WEB,
            "policies p0, p1, p2 and 2 more of namespace shop isolate it (ingress): "
            "no policy allows tcp 80 from web of namespace other",
        ),
        (
            [DENY_EGRESS],
            WEB,
            FAR,
            f"policy p0 of namespace shop isolates it (egress): no policy allows tcp 80 to {FAR}",
        ),
        ([DENY, FROM_WEB], WEB, DB, "policy p1 of namespace shop allows it (ingress, rule 1)"),
        ([{**DENY_EGRESS, "egress": [{}]}], WEB, OTHER, "policy p0 of namespace shop allows it (egress, rule 1)"),
        ([], WEB, DB, "no policy isolates web (egress)"),
        ([], FAR, WEB, "no policy isolates web (ingress)"),
        ([], FAR, FAR, f"{FAR} is not the address of a pod that policies can select (egress)"),
        ([DENY], NODE, WEB, "a pod always reaches its node, and its node the pod"),
        ([DENY], WEB, WEB, "a pod always reaches itself"),
    ],
)
def test_sentences(specs, source, destination, sentence):
    """A decision names direction, policy, rule and peer."""
    policies = [
        parse_policy({"metadata": {"namespace": "shop", "name": f"p{n}"}, "spec": s}) for n, s in enumerate(specs)
    ]
    connection = PodConnection(ip_address(source), ip_address(destination), "tcp", 80)
    assert decide(ClusterState(pods_by_address(PODS), {}, policies, NODES), connection).describe() == sentence
