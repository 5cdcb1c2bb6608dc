"""Switching between podwire and the reference plugins bridge and ptp while pods run."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support import binaries
from tests.support.attaching import address, reaches
from tests.support.netstate import links, state

SYSTEM_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # the reference runs `nft`
# Debian's 1.1.1 always keeps VLAN 1, and has no key for it.
VLAN: dict[str, Any] = {"vlan": 100, "preserveDefaultVlan": True}
CASES = [
    pytest.param("bridge", {}, id="bridge"),
    *(pytest.param("bridge", {key: True}, id=f"bridge, {key}") for key in ("hairpinMode", "promiscMode", "enabledad")),
    pytest.param("bridge", {"mtu": 1400}, id="bridge, mtu"),
    pytest.param("bridge", {"macspoofchk": True}, id="bridge, macspoofchk"),
    pytest.param("bridge", VLAN, id="bridge, a VLAN", marks=pytest.mark.needs("vlan_filtering")),
    pytest.param("ptp", {"ipMasq": True, "mtu": 1400}, id="ptp"),
]
either_first = pytest.mark.parametrize(("first", "second"), [("podwire", "reference"), ("reference", "podwire")])


@pytest.fixture
def network_of(bin_dir):
    """A function that returns a network with the plugins of one implementation."""
    directories = {"podwire": bin_dir, "reference": binaries.REFERENCE}

    def change(net, kind):
        return replace(net, bin_dir=directories[kind], path=str(directories[kind]), env=SYSTEM_PATH)

    return change


@either_first
@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
@pytest.mark.parametrize(("kind", "keys"), CASES)
def test_pod_is_checked_and_deleted_by_the_other(
    dual_network, routed, new_sandbox, network_of, kind, keys, version, first, second
):
    """A pod of one implementation passes CHECK and DEL of the other, which refuses a second ADD; nothing remains."""
    net = (routed if kind == "ptp" else dual_network).having(cniVersion=version, **keys)
    creator, deleter = network_of(net, first), network_of(net, second)
    running_pod, pod = new_sandbox(), new_sandbox()
    other = deleter.add(running_pod)
    creator.delete(pod, creator.add(pod))
    before = state(net.host, netfilter=True), links(pod)
    result = creator.add(pod)
    creator.check(pod, result)
    deleter.check(pod, result)
    assert b"already exists" in deleter.run("ADD", pod, container_id="another").stdout
    deleter.check(pod, result)
    assert reaches(running_pod, address(result))
    deleter.delete(pod, result)
    assert (state(net.host, netfilter=True), links(pod)) == before
    creator.delete(pod, result)
    deleter.check(running_pod, other)
    creator.delete(running_pod, other)
    assert net.leases() == {}
