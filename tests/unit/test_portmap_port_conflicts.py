"""Who gets a host port that several want (plugins.portmap.port_conflicts, plugins.portmap.spec)."""

import json
import os
from ipaddress import ip_address, ip_interface

import pytest

from attachment.cache import ResultCache
from cni.errors import CniError
from plugins.portmap.port_conflicts import ForeignRule, conflicting_mapping, find_position, is_shadowed, shadowed_error
from plugins.portmap.spec import HostPorts, PortMapping

V4, V6 = ip_address("192.0.2.1"), ip_address("2001:db8::1")
HERE = f"/proc/{os.getpid()}/ns/net"


def wanted(*mappings, refuse=False):
    addresses = {4: ip_interface("10.1.2.5/24"), 6: ip_interface("fd00::5/64")}
    return HostPorts(
        "net", "own", "eth0", mappings or (PortMapping(8080, 80, "tcp"),), addresses, refuse_conflicts=refuse
    )


def foreign(container_id="a", port=8080, host_ip=None, network="net", protocol="tcp", conditional=False):
    return ForeignRule(protocol, port, host_ip, network, container_id, conditional)


@pytest.fixture
def cache(tmp_path):
    """Returns what reads a cache in which `alive` live and `gone` do not, and notes which networks were read."""

    def make(alive=(), gone=(), network="net"):
        for names, netns in ((alive, HERE), (gone, "/no/such")):
            for name in names:
                entry = {"kind": "cniCacheV1", "networkName": network, "containerId": name, "ifName": "eth0"}
                (tmp_path / f"{network}-{name}-eth0").write_text(json.dumps(entry | {"netns": netns}))
        read = []

        def reader(name):
            read.append(name)
            return ResultCache.read(name, str(tmp_path))

        return reader, read

    return make


@pytest.mark.parametrize(
    ("own", "other", "meets"),
    [
        (None, None, True),
        (None, V4, True),
        (V4, None, True),
        (V4, V4, True),
        (V4, ip_address("192.0.2.2"), False),
        (ip_address("0.0.0.0"), V4, True),
        (V6, None, True),
        (V6, V6, True),
    ],
)
def test_which_packets_two_mappings_can_both_be_for(own, other, meets):
    """Mappings meet at the same address of the host, and where one of them is for all its addresses."""
    assert PortMapping(8080, 80, "tcp", own).overlaps("tcp", 8080, other) is meets


@pytest.mark.parametrize(("protocol", "port"), [("udp", 8080), ("tcp", 8081), ("sctp", 80)])
def test_another_port_or_protocol_is_no_conflict(protocol, port):
    """The same number of another protocol is another port, and the pod's own port does not matter."""
    assert not PortMapping(8080, 80, "tcp").overlaps(protocol, port, None)


def test_a_claim_is_compared_with_the_mappings_of_its_family():
    """A mapping for an IPv4 address of the host meets no rule for IPv6."""
    only_v4 = wanted(PortMapping(8080, 80, "tcp", V4))
    assert conflicting_mapping(only_v4, 4, foreign()) == PortMapping(8080, 80, "tcp", V4)
    assert conflicting_mapping(only_v4, 6, foreign()) is None


def test_where_nobody_else_is_rules_go_to_the_end(cache):
    """Without contested foreign_rules there is no place to be found, and nobody's cache is read."""
    reader, read = cache(gone="a")
    assert find_position(wanted(), 4, [], reader) is None
    assert find_position(wanted(), 4, [foreign(port=1), foreign(protocol="udp")], reader) is None
    assert read == []


@pytest.mark.parametrize(
    ("owners", "index"),
    [
        ("a", None),
        ("x", 0),
        ("ab", None),
        ("xa", None),
        ("ax", 1),
        ("axy", 1),
        ("axb", None),
        ("xaby", 3),
        ("xy", 0),
    ],
)
def test_behind_the_living_and_in_front_of_the_gone(cache, owners, index):
    """Rules go behind the last of a living container (a, b) and in front of the first after it of a gone one (x, y)."""
    reader, read = cache(alive="ab", gone="xy")
    assert find_position(wanted(), 4, [foreign(owner) for owner in owners], reader) == index
    assert read == ["net"]


def test_claims_on_other_ports_do_not_move_the_place(cache):
    """Rules for other ports count as positions and not as foreign_rules."""
    reader, _ = cache(alive="a", gone="x")
    assert find_position(wanted(), 4, [foreign("a", port=1), foreign("x"), foreign("a", port=2)], reader) == 1


def test_who_is_not_known_lives(cache):
    """A container of which no cache tells keeps its place, and so does a rule that names no container."""
    reader, _ = cache()
    assert find_position(wanted(), 4, [foreign("a"), foreign("a", network="")], reader) is None
    reader, _ = cache(alive="b")
    assert find_position(wanted(), 4, [foreign("", network="")], reader) is None


def test_a_rule_without_network_is_judged_by_all_networks(cache):
    """Where the rule names only a container, its entry in any network's cache tells whether it lives."""
    reader, _ = cache(alive="a", gone="x", network="other")
    assert find_position(wanted(), 4, [foreign("a", network="")], reader) is None
    assert find_position(wanted(), 4, [foreign("x", network="")], reader) == 0


def test_each_networks_cache_is_read_once(cache):
    """Many rules of two networks cost two readings."""
    reader, read = cache(alive="a")
    find_position(wanted(), 4, [foreign("a", network=name) for name in ("net", "other", "net", "other")], reader)
    assert read == ["net", "other"]


def test_a_taken_port_can_be_refused(cache):
    """With onConflict "fail" a living container's port is code 11 and its owner named, a gone one's is not refused."""
    reader, _ = cache(alive="a", gone="x")
    asked = wanted(PortMapping(8080, 80, "tcp", V6), refuse=True)
    with pytest.raises(CniError) as caught:
        find_position(asked, 6, [foreign("x"), foreign("a")], reader)
    assert caught.value.code == 11
    assert caught.value.msg == "host port [2001:db8::1]:8080/tcp is in use by container a of network net"
    assert '"onConflict"' in caught.value.details
    assert find_position(asked, 6, [foreign("x")], reader) == 0
    assert find_position(asked, 6, [foreign("a", port=8081)], reader) is None


def test_a_claim_with_other_conditions_has_a_place_and_is_no_conflict(cache):
    """A living container with other conditions is not refused and shadows nothing; rules go behind it all the same."""
    reader, _ = cache(alive="a", gone="x")
    asked = wanted(refuse=True)
    assert find_position(asked, 4, [foreign("x"), foreign("a", conditional=True)], reader) is None
    assert find_position(asked, 4, [foreign("a", conditional=True), foreign("x", conditional=True)], reader) == 1
    (mapping,) = asked.mappings
    assert is_shadowed(foreign("a"), mapping)
    assert not is_shadowed(foreign("a", conditional=True), mapping)
    assert not is_shadowed(foreign("a", port=1), mapping)


def test_an_owner_is_named_as_far_as_it_is_known():
    """CHECK's error names container and network, the container alone, or that neither is known."""
    mapping = PortMapping(8080, 80, "tcp", V4)
    for owner, named in (
        (foreign("a"), "container a of network net"),
        (foreign("a", network=""), "container a"),
        (foreign("", network=""), "a rule that names no container"),
    ):
        failure = shadowed_error(mapping, owner)
        assert failure.code == 999
        assert failure.msg == f"host port 192.0.2.1:8080/tcp is forwarded to {named}, whose rule comes first"
