"""A node of the cluster, read from its Kubernetes object."""

from ipaddress import ip_address, ip_network

import pytest

from agent.node import Node, format_networks, parse_node

DOCUMENT = {
    "metadata": {"name": "node-1", "uid": "8a7e"},
    "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"]},
    "status": {
        "addresses": [
            {"type": "Hostname", "address": "node-1"},
            {"type": "InternalIP", "address": "192.0.2.11"},
            {"type": "ExternalIP", "address": "198.51.100.1"},
            {"type": "InternalIP", "address": "2001:db8::11"},
        ],
        "images": [{"names": ["x"]}],
    },
}


def test_a_node_has_its_networks_and_internal_addresses():
    """A node has its podCIDRs and its InternalIPs."""
    networks = (ip_network("10.244.1.0/24"), ip_network("fd00:1::/64"))
    addresses = (ip_address("192.0.2.11"), ip_address("2001:db8::11"))
    node = parse_node(DOCUMENT)
    assert node == Node("node-1", "8a7e", networks, addresses)
    assert [str(node.address_of(version)) for version in (4, 6)] == ["192.0.2.11", "2001:db8::11"]
    assert format_networks(networks) == "10.244.1.0/24, fd00:1::/64"


def test_an_old_node_has_only_podcidr():
    """`spec.podCIDR` counts when `podCIDRs` is missing."""
    document = {**DOCUMENT, "spec": {"podCIDR": "10.244.1.0/24"}}
    assert parse_node(document).pod_cidrs == (ip_network("10.244.1.0/24"),)


WRONG = ("10.244.1.7/24", "10.244.1.0", "10.244.0.0/33", "::/129", "x/8", 7, None, "")
SPECIAL = (
    *("0.0.0.0/0", "0.0.0.0/32", "10.0.0.0/7", "127.0.0.0/8", "169.254.1.0/24", "224.0.0.0/4"),
    *("::/0", "::1/128", "fc00::/7", "fe80::/64", "ff00::/16"),
)


@pytest.mark.parametrize(
    ("cidr", "problem"),
    [
        *((cidr, "is not a network such as 10.244.1.0/24") for cidr in WRONG),
        *((cidr, "is not a network of pods: it is too large or has special addresses") for cidr in SPECIAL),
    ],
)
def test_a_wrong_pod_cidr_is_a_problem_of_its_node(cidr, problem):
    """A podCIDR that is wrong, takes the node's packets or has special addresses is a problem; valid ones remain."""
    node = parse_node({**DOCUMENT, "spec": {"podCIDRs": [cidr, "fd00:1::/64"]}})
    assert node.pod_cidrs == (ip_network("fd00:1::/64"),)
    assert node.problems == (f"podCIDR {cidr!r} {problem}",)


SPECIAL_ADDRESSES = (
    *("0.0.0.0", "127.0.0.1", "255.255.255.255", "169.254.1.1", "224.0.0.1"),
    *("::", "::1", "fe80::1", "ff02::1"),
)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        *((address, "is not an address") for address in ("192.0.2", "2001:db8::1%eth0", "", None, 4)),
        *((address, "is a special address, and not one of a node") for address in SPECIAL_ADDRESSES),
    ],
)
def test_a_wrong_address_is_a_problem_of_its_node(address, problem):
    """A wrong or special InternalIP is a problem of its node."""
    node = parse_node({**DOCUMENT, "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    assert (node.addresses, node.problems) == ((), (f"InternalIP {address!r} {problem}",))


@pytest.mark.parametrize("spec", [None, [], "x", {"podCIDRs": {}}, {"podCIDRs": None}])
def test_a_node_without_networks_is_a_node(spec):
    """A node whose spec is missing or of a wrong type has no networks."""
    assert parse_node({**DOCUMENT, "spec": spec}).pod_cidrs == ()


@pytest.mark.parametrize(
    "metadata", [None, {}, {"name": "a"}, {"uid": "b"}, {"name": "", "uid": "b"}, {"name": 1, "uid": 2}]
)
def test_an_object_without_name_or_uid_is_no_node(metadata):
    """An object without name or UID is refused."""
    with pytest.raises(ValueError, match="no name or no UID"):
        parse_node({**DOCUMENT, "metadata": metadata})


def test_the_taint_out_of_service_is_a_statement_about_the_machine():
    """A Node with the taint out-of-service is one whose machine is off, as the administrator states."""
    for names, expected in ((["unreachable"], False), (["unreachable", "out-of-service"], True)):
        taints = [{"key": f"node.kubernetes.io/{name}", "effect": "NoExecute"} for name in names]
        assert parse_node({**DOCUMENT, "spec": {"taints": taints}}).is_out_of_service is expected
