"""The networks of the cluster (attachment.masquerade.cluster): their collapse, and the requests for intervals."""

from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from attachment.masquerade.collapsed import Collapsed
from attachment.masquerade.nftables import CLUSTER_SETS
from cni.address import Network
from cni.prefix_set import number_of
from kernel.netfilter.iptables_accept import accept_request, accept_rule, parse_accepted
from kernel.netfilter.nft import Chain, NftRule, Table
from kernel.netfilter.nft_interval import Interval, add_interval_requests, delete_interval_requests, interval_of

# Few bits, so that networks are often adjacent or overlap.
_FIRST = st.integers(0, 63)
NETWORKS = st.one_of(
    st.builds(
        lambda first, prefix: IPv4Network((first << 26, prefix), strict=False), _FIRST, st.integers(0, 7) | st.just(32)
    ),
    st.builds(
        lambda first, prefix: IPv6Network((first << 122, prefix), strict=False),
        _FIRST,
        st.integers(0, 7) | st.just(128),
    ),
)
CHAIN = Chain(Table(2, "nat"), "PODWIRE-CLUSTER")


@given(st.lists(st.tuples(st.lists(NETWORKS, max_size=4), st.lists(st.integers(0, 40), max_size=3)), max_size=12))
def test_networks_are_collapsed_as_by_ipaddress(changes):
    """After each change the collapsed networks equal those of ipaddress.collapse_addresses, as do the differences."""
    collapsed = {version: Collapsed(version) for version in (4, 6)}
    present: list[Network] = []
    known: dict[int, set[int]] = {4: set(), 6: set()}
    for added, positions in changes:
        removed = [present.pop(position) for position in positions if position < len(present)]
        present += added
        for version, each in collapsed.items():
            more, less = ([number_of(one) for one in part if one.version == version] for part in (added, removed))
            new, gone = each.change(more, less)
            same: Any = [one for one in present if one.version == version]
            expected = set(map(number_of, collapse_addresses(same)))
            assert set(each.networks) == expected
            assert (new, gone) == (expected - known[version], known[version] - expected)
            known[version] = expected


@given(NETWORKS)
def test_a_rule_accepts_the_network_that_it_was_built_for(network):
    """The rule of iptables for a network is parsed as that network, a rule with another verdict as none."""
    request = accept_request(CHAIN, network)
    expressions = dict(request.attributes)["NFTA_RULE_EXPRESSIONS"]
    assert isinstance(expressions, bytes)
    assert parse_accepted(network.version, NftRule(1, expressions, b"")) == network
    accepting = expressions[-20:]
    assert parse_accepted(network.version, NftRule(1, expressions + accepting, b"")) is None
    assert parse_accepted(network.version, NftRule(1, expressions[:-4], b"")) is None


def test_a_rule_for_all_addresses():
    """The network of all addresses has a rule without a destination."""
    assert str(accept_rule("A", ip_network("0.0.0.0/0"))) == "-A A -j ACCEPT"
    assert str(accept_rule("A", ip_network("10.1.0.0/16"))) == "-A A -d 10.1.0.0/16 -j ACCEPT"


def test_log_entries_name_the_addresses():
    """The log entry of a change lists the first and last address of each interval, also the very last address."""
    intervals = [interval_of(ip_network(item)) for item in ("10.1.0.0/24", "255.255.255.255/32")]
    assert intervals[1] == Interval(2**32 - 1, 2**32)
    (added,) = add_interval_requests(CLUSTER_SETS[4], intervals)
    text = "set cni_plugins_masquerade podwire_cluster_4 { 10.1.0.0-10.1.0.255, 255.255.255.255-255.255.255.255 }"
    assert added.describe() == f"add to {text}"
    (deleted,) = delete_interval_requests(CLUSTER_SETS[4], intervals)
    assert deleted.describe() == f"delete from {text}"
