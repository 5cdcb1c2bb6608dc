"""Containers that request the same host port (plugins.portmap.port_conflicts, plugins.portmap.conf)."""

import json
import os
from ipaddress import ip_address, ip_interface

import pytest

from attachment.cache import ResultCache
from plugins.portmap.conf import HostPorts, PortMapping
from plugins.portmap.port_conflicts import ForeignRule, find_position, is_shadowed, overlapping_mapping, shadowed_error

V4, V6 = ip_address("192.0.2.1"), ip_address("2001:db8::1")
HERE = f"/proc/{os.getpid()}/ns/net"


def host_ports(*mappings, refuse=False):
    addresses = {4: ip_interface("10.1.2.5/24"), 6: ip_interface("fd00::5/64")}
    return HostPorts(
        "net", "own", "eth0", mappings or (PortMapping(8080, 80, "tcp"),), addresses, refuse_conflicts=refuse
    )


def foreign(container_id="a", port=8080, host_ip=None, network="net", protocol="tcp", conditional=False):
    return ForeignRule(protocol, port, host_ip, network, container_id, conditional)


@pytest.fixture
def cache(tmp_path):
    """A function that writes a cache of containers; it returns a reader of that cache, and the networks read."""

    def write_cache(running=(), stopped=(), network="net"):
        for names, netns in ((running, HERE), (stopped, "/no/such")):
            for name in names:
                content = {"kind": "cniCacheV1", "networkName": network, "containerId": name, "ifName": "eth0"}
                (tmp_path / f"{network}-{name}-eth0").write_text(json.dumps(content | {"netns": netns}))
        networks_read = []

        def read_cache(name):
            networks_read.append(name)
            return ResultCache.read(name, str(tmp_path))

        return read_cache, networks_read

    return write_cache


@pytest.mark.parametrize(
    ("bound_ip", "foreign_ip", "expected"),
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
def test_mappings_overlap_at_a_common_host_address(bound_ip, foreign_ip, expected):
    """Mappings overlap if they have the same host address, or if one of them is for all host addresses."""
    assert PortMapping(8080, 80, "tcp", bound_ip).overlaps("tcp", 8080, foreign_ip) is expected


@pytest.mark.parametrize(("protocol", "port"), [("udp", 8080), ("tcp", 8081), ("sctp", 80)])
def test_another_port_or_protocol_is_no_conflict(protocol, port):
    """Mappings of different protocols or host ports do not overlap, whatever the container port."""
    assert not PortMapping(8080, 80, "tcp").overlaps(protocol, port, None)


def test_foreign_rule_is_compared_with_mappings_of_its_ip_version():
    """A mapping with an IPv4 host address does not conflict with a rule for IPv6."""
    only_v4 = host_ports(PortMapping(8080, 80, "tcp", V4))
    assert overlapping_mapping(only_v4, 4, foreign()) == PortMapping(8080, 80, "tcp", V4)
    assert overlapping_mapping(only_v4, 6, foreign()) is None


def test_without_conflict_rules_go_to_the_end(cache):
    """Without a conflict, rules go to the end and no cache is read."""
    read_cache, networks_read = cache(stopped="a")
    assert find_position(host_ports(), 4, [], read_cache) is None
    assert find_position(host_ports(), 4, [foreign(port=1), foreign(protocol="udp")], read_cache) is None
    assert networks_read == []


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
def test_position_is_after_running_and_before_stopped_containers(cache, owners, index):
    """Rules go after the last rule of a running container (a, b), and before the next rule of a stopped one (x, y)."""
    read_cache, networks_read = cache(running="ab", stopped="xy")
    assert find_position(host_ports(), 4, [foreign(owner) for owner in owners], read_cache) == index
    assert networks_read == ["net"]


def test_rules_of_other_ports_do_not_change_the_position(cache):
    """Rules for other ports count in the index of the position but do not conflict."""
    read_cache, _ = cache(running="a", stopped="x")
    assert find_position(host_ports(), 4, [foreign("a", port=1), foreign("x"), foreign("a", port=2)], read_cache) == 1


def test_unknown_container_counts_as_running(cache):
    """A container counts as running if its cache is empty, and so does the owner of a rule that names no container."""
    read_cache, _ = cache()
    assert find_position(host_ports(), 4, [foreign("a"), foreign("a", network="")], read_cache) is None
    read_cache, _ = cache(running="b")
    assert find_position(host_ports(), 4, [foreign("", network="")], read_cache) is None


def test_rule_without_network_is_looked_up_in_the_caches_of_all_networks(cache):
    """If a rule names only a container, the cache of any network shows whether that container is running."""
    read_cache, _ = cache(running="a", stopped="x", network="other")
    assert find_position(host_ports(), 4, [foreign("a", network="")], read_cache) is None
    assert find_position(host_ports(), 4, [foreign("x", network="")], read_cache) == 0


def test_cache_of_each_network_is_read_once(cache):
    """For any number of rules of two networks the cache is read twice."""
    read_cache, networks_read = cache(running="a")
    find_position(
        host_ports(), 4, [foreign("a", network=name) for name in ("net", "other", "net", "other")], read_cache
    )
    assert networks_read == ["net", "other"]


def test_rule_with_other_conditions_is_no_conflict(cache):
    """A running container's rule with other conditions is not refused and shadows nothing, but it stays first."""
    read_cache, _ = cache(running="a", stopped="x")
    requested = host_ports(refuse=True)
    assert find_position(requested, 4, [foreign("x"), foreign("a", conditional=True)], read_cache) is None
    assert (
        find_position(requested, 4, [foreign("a", conditional=True), foreign("x", conditional=True)], read_cache) == 1
    )
    (mapping,) = requested.mappings
    assert is_shadowed(foreign("a"), mapping)
    assert not is_shadowed(foreign("a", conditional=True), mapping)
    assert not is_shadowed(foreign("a", port=1), mapping)


def test_error_names_the_known_owner():
    """CHECK's error names container and network, only the container, or states that the rule names none."""
    mapping = PortMapping(8080, 80, "tcp", V4)
    for owner, text in (
        (foreign("a"), "is forwarded to container a of network net, whose rule comes first"),
        (foreign("a", network=""), "is forwarded to container a, whose rule comes first"),
        (foreign("", network=""), "is used by an earlier rule that names no container"),
    ):
        failure = shadowed_error(mapping, owner)
        assert failure.code == 999
        assert failure.msg == f"host port 192.0.2.1:8080/tcp {text}"
