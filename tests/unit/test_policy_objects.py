"""Selectors, pods, namespaces and policies, parsed from the API's documents."""

import re
from ipaddress import ip_network
from typing import Any

import pytest

from agent.policy.objects import (
    IpBlock,
    deny_all_policy,
    parse_namespace,
    parse_pod,
    parse_policy,
)
from agent.policy.selector import Selector, parse_selector

ALL = Selector()


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def select(document):
    return parse_selector(document, "spec.podSelector")


@pytest.mark.parametrize(
    ("document", "requirements"),
    [
        ({}, set()),
        ({"matchLabels": {"app": "a"}}, {("app", "In", ("a",))}),
        (expression("app", "In", "b", "a"), {("app", "In", ("a", "b"))}),
        (expression("app", "NotIn", "a"), {("app", "NotIn", ("a",))}),
        (expression("app", "Exists"), {("app", "Exists", ())}),
        (
            {"matchLabels": {"app": "a"}, **expression("tier", "DoesNotExist")},
            {("app", "In", ("a",)), ("tier", "DoesNotExist", ())},
        ),
    ],
)
def test_selector(document, requirements):
    """A selector has the requirements of its labels and expressions, with sorted values."""
    assert {*select(document).requirements} == requirements


def test_equal_selectors_are_equal_values():
    """Two documents that mean the same give the same value, so that they share a set."""
    one = select({"matchLabels": {"a": "1", "b": "2"}})
    other = select(
        {"matchLabels": {"b": "2"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "1"]}]}
    )
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "spec.podSelector is not an object"),
        ({"matchLabels": {"a": 1}}, "spec.podSelector.matchLabels is not an object with string values"),
        ({"matchExpressions": "a"}, "spec.podSelector.matchExpressions is not a list"),
        (expression("a", "Is"), "spec.podSelector.matchExpressions[0].operator 'Is' is none of"),
        (expression("a", "In"), "spec.podSelector.matchExpressions[0].values must be set"),
        (expression("a", "Exists", "b"), "spec.podSelector.matchExpressions[0].values must not be set"),
        (expression("", "Exists"), "spec.podSelector.matchExpressions[0].key is not a label key"),
    ],
)
def test_invalid_selector(document, message):
    """A selector that no server accepts is refused with the field."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        select(document)


def pod(**keys):
    """Returns a pod of a document; keys of `metadata`, `spec` and `status` replace those of an ordinary one."""
    document: Any = {
        "metadata": {"namespace": "shop", "name": "web-0", "uid": "u-1", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    for key, value in keys.items():
        document[key].update(value)
    return parse_pod(document)


def test_precedence_of_a_pod():
    """A pod's precedence is its creation time, and 0 while it is terminating; it then still has policies."""
    created = {"creationTimestamp": "1970-01-01T00:00:07Z"}
    leaving = pod(metadata={**created, "deletionTimestamp": "1970-01-01T00:00:09Z"})
    assert (pod(metadata=created).precedence, pod().precedence, leaving.precedence) == (7, 0, 0)
    assert leaving.can_have_policies


def test_static_pod_has_the_uid_of_its_manifest():
    """The runtime knows a static pod by the UID that the kubelet computes, which its object has as an annotation."""
    assert pod(metadata={"annotations": {"kubernetes.io/config.mirror": "4c2a"}}).uid == "4c2a"


def test_equal_pods_share_their_labels():
    """Equal labels and ports of two pods are one object."""
    ports = {"containers": [{"ports": [{"name": "http", "containerPort": 80}]}]}
    one, other = pod(spec=ports), pod(spec=ports)
    assert one.labels is other.labels
    assert one.ports is other.ports


@pytest.mark.parametrize(
    ("parse", "document", "message"),
    [
        (parse_pod, {"metadata": {"namespace": "a"}}, "an object has no name"),
        (parse_pod, {"metadata": {"name": "a", "namespace": "b"}}, "Pod b/a: metadata.uid or spec.nodeName is not"),
        (parse_pod, {"metadata": {"name": "a", "namespace": "b", "uid": "c", "labels": 1}}, "Pod b/a: metadata.labels"),
        (parse_namespace, {}, "an object has no name"),
        (parse_namespace, {"metadata": {"name": "a", "labels": "b"}}, "Namespace a: metadata.labels is not an object"),
        (parse_policy, {"metadata": {"name": 5}}, "an object has no name"),
    ],
)
def test_invalid_objects(parse, document, message):
    """An object without names, or with labels that are not strings, is refused."""
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        parse(document)


def policy(**spec):
    parsed: Any = parse_policy({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec})
    return parsed


@pytest.mark.parametrize(("text", "network"), [("010.08.0.0/08", "10.8.0.0/8"), ("0.0.0.0/0", "0.0.0.0/0")])
def test_leading_zeros_of_a_block(text, network):
    """Numbers of an IPv4 block are decimal whatever zeros precede them, as servers without strict validation accept."""
    (rule,) = policy(ingress=[{"from": [{"ipBlock": {"cidr": text}}]}]).ingress
    assert rule.peers == (IpBlock(ip_network(network, strict=False)),)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"policyTypes": ["ingress"]}, "spec.policyTypes has a value other than Ingress and Egress"),
        ({"policyTypes": "Ingress"}, "spec.policyTypes is not a list"),
        ({"podSelector": "a"}, "spec.podSelector is not an object"),
        ({"ingress": {}}, "spec.ingress is not a list"),
        ({"ingress": ["a"]}, "spec.ingress[0] is not an object"),
        ({"ingress": [{}, {"from": [{}]}]}, "spec.ingress[1].from[0] has no selector and no ipBlock"),
        ({"ingress": [{"from": [{"ipBlock": {"cidr": "::/0"}, "podSelector": {}}]}]}, "spec.ingress[0].from[0] has an"),
        ({"ingress": [{"from": [{"ipBlock": {}}]}]}, "spec.ingress[0].from[0].ipBlock.cidr is not a string"),
        ({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.1"}}]}]}, "spec.egress[0].to[0].ipBlock.cidr '10.0.0.1' is"),
        (
            {"egress": [{"to": [{"ipBlock": {"cidr": "::/0", "except": ["a"]}}]}]},
            "spec.egress[0].to[0].ipBlock.except[",
        ),
        ({"ingress": [{"ports": [{"port": 0}]}]}, "spec.ingress[0].ports[0]: 0 to 0 is not a range of ports"),
        ({"ingress": [{"ports": [{"port": 65536}]}]}, "spec.ingress[0].ports[0]: 65536 to 65536 is not a range"),
        ({"ingress": [{"ports": [{"port": 80, "endPort": 79}]}]}, "spec.ingress[0].ports[0]: 80 to 79 is not a range"),
        ({"ingress": [{"ports": [{"port": True}]}]}, "spec.ingress[0].ports[0]: True to True is not a range of ports"),
        ({"ingress": [{"ports": [{"port": "a", "endPort": 80}]}]}, "spec.ingress[0].ports[0] has an endPort without"),
        ({"ingress": [{"ports": [{"endPort": 80}]}]}, "spec.ingress[0].ports[0] has an endPort without a number"),
        ({"ingress": [{"ports": [{"protocol": "ICMP"}]}]}, "spec.ingress[0].ports[0].protocol 'ICMP' is none of TCP"),
    ],
)
def test_invalid_policy_is_closed(spec, message):
    """A policy that no server accepts is refused with name and field, and its substitute allows nothing at all."""
    with pytest.raises(ValueError, match="^" + re.escape(f"NetworkPolicy shop/web: {message}")):
        policy(**spec)
    closed = deny_all_policy({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec})
    assert (closed.pods, closed.ingress, closed.egress) == (ALL, (), ())


def test_deny_all_policy_selects_the_same_pods():
    """The substitute of an invalid policy selects the policy's pods, or all of its namespace if these are unclear."""
    spec = {"podSelector": {"matchLabels": {"app": "a"}}, "ingress": 5}
    metadata = {"namespace": "shop", "name": "web"}
    assert deny_all_policy({"metadata": metadata, "spec": spec}).pods == select({"matchLabels": {"app": "a"}})
    assert deny_all_policy({"metadata": metadata}).pods == ALL
