"""The owner of an ifb (plugins.bandwidth.ifb_owner)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.link import Link
from plugins.bandwidth.ifb_owner import IfbOwner, select_ifbs

OWNER = IfbOwner("net", "cid", "eth0")
IFB = Link(46, OWNER.names[0], "02:00:00:00:00:01", 1500, 1, "ifb", 0, 0, None, 0, OWNER.alias)
NAMELESS = IFB._replace(alias="")  # the reference plugin sets no alias
OTHER = IFB._replace(alias=IfbOwner("net", "cid", "net1").alias)
words = st.text("aZ0_.-", min_size=1, max_size=151)


def test_second_name_belongs_to_the_interface():
    """The second name is that of one interface, and both have the maximal length of a name."""
    names = [IfbOwner("net", "cid", ifname).names for ifname in ("eth0", "net1")]
    assert names[0][0] == names[1][0]
    assert len({name for pair in names for name in pair}) == 3
    assert all(len(name) == 15 for pair in names for name in pair)


@given(words, words, words, words)
def test_aliases_of_different_owners_differ(network, container_id, other_network, other_id):
    """The alias has at most 255 bytes, and differs between networks and containers."""
    first, second = IfbOwner(network, container_id, "e" * 15), IfbOwner(other_network, other_id, "e" * 15)
    assert len(first.alias.encode()) <= 255
    assert len(first.alias.split(" ")) == 4
    assert (first.alias == second.alias) == (first == second)


@pytest.mark.parametrize("length", [1, 100, 101, 115, 256])
def test_long_names_are_hashed_in_the_alias(length):
    """A name of more than 100 characters is a hash, which is no valid name, and the alias always fits."""
    alias = IfbOwner("n" * length, "c" * length, "e" * 15).alias
    assert len(alias) <= 255
    assert (alias == f"podwire {'n' * length} {'c' * length} {'e' * 15}") == (length <= 100)
    assert alias.count(" sha512:") == (2 if length > 100 else 0)
    assert alias != IfbOwner("n" * length, "c" * (length + 1), "e" * 15).alias


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([None, None], []),
        ([IFB, None], [IFB]),
        ([None, IFB], [IFB]),
        ([NAMELESS, None], [NAMELESS]),
        ([NAMELESS, IFB], [IFB]),  # the first belongs to the container's other interface
        ([NAMELESS, NAMELESS], [NAMELESS]),
        ([OTHER, None], []),
        ([OTHER, IFB], [IFB]),
        ([IFB._replace(kind="dummy"), None], []),
        ([NAMELESS._replace(kind=""), IFB], [IFB]),
    ],
)
def test_select_ifbs_prefers_the_owners_alias(links, expected):
    """Of the links with the owner's names those with its alias are selected, otherwise one without an alias."""
    assert select_ifbs(OWNER, links) == expected
