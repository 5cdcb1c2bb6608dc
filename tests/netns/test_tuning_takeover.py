"""Pods of both the reference plugin and podwire: CHECK, DEL and GC accept the other plugin's attributes and backups."""

import json

import pytest

from tests.support.bandwidth_network import connect_veth
from tests.support.tuning_network import ALL, get_attributes

# The keys of the installed reference plugin (1.1.1): txQLen came with 1.4.0, and its CHECK does not replace IFNAME.
REFERENCE_KEYS = {key: value for key, value in ALL.items() if key != "txQLen"}
SYSCTL = {"net.core.somaxconn": "77", "net.ipv4.conf.eth0.arp_filter": "1"}


@pytest.fixture
def both(tuning, reference):
    """Podwire's tuning and the reference plugin's."""
    return tuning, tuning.with_plugin(reference)


@pytest.mark.parametrize(
    "keys", [REFERENCE_KEYS, *({key: value} for key, value in REFERENCE_KEYS.items()), {"sysctl": SYSCTL}, {}]
)
def test_each_plugin_restores_the_others_changes(both, sandbox, prev_result, keys):
    """Both plugins create the same result and the same backup, and each checks and restores the other's changes."""
    first, created = get_attributes(sandbox), []
    for creator, other in (both, both[::-1]):
        result = creator.having(**keys).add(sandbox, prev_result)
        created.append((result["interfaces"], creator.backups(), get_attributes(sandbox)))
        for each in (creator, other):
            each.having(**keys).check(sandbox, result)
        other.having(**keys).delete(sandbox, result)
        assert (get_attributes(sandbox), creator.backups()) == (first, {})
    assert created[0] == created[1]


def test_add_after_the_reference_plugins(both, sandbox, prev_result):
    """ADD keeps the values in the reference plugin's backup and adds missing ones, and either DEL restores all."""
    podwire, reference = both
    first = get_attributes(sandbox)
    for last in both:
        reference.having(mtu=1400, promisc=True).add(sandbox, prev_result)
        podwire.having(**REFERENCE_KEYS).add(sandbox, prev_result)
        assert podwire.backup(sandbox) | {"txQLen": 1000} == first
        assert get_attributes(sandbox) == ALL | {"txQLen": 1000}
        last.delete(sandbox)
        assert (get_attributes(sandbox), podwire.backups()) == (first, {})


@pytest.fixture
def same_name_pods(host, new_sandbox):
    """Two pods (namespace, result, arguments) whose backups the reference plugin names `a_b_c.json`."""
    attachments = (("a", "b_c"), ("a_b", "c"))
    pods = [new_sandbox() for _ in attachments]
    return [
        (pod, connect_veth(host, pod, f"veth{number}", ifname), {"container_id": container_id, "ifname": ifname})
        for number, (pod, (container_id, ifname)) in enumerate(zip(pods, attachments, strict=True))
    ]


def test_reference_backup_of_a_shared_name(both, same_name_pods):
    """DEL of a stale attachment keeps the reference plugin's backup, and DEL of the other one restores from it."""
    podwire, reference = (net.having(mtu=1400) for net in both)
    (stale, stale_result, stale_arguments), (pod, result, arguments) = same_name_pods
    podwire.add(stale, stale_result, **stale_arguments)
    reference.add(pod, result, **arguments)
    for netns in (stale, "", "/no/such/netns"):
        podwire.delete(netns, **stale_arguments)
    assert podwire.backups().keys() == {"a_b_c.json"}
    podwire.delete(pod, **arguments)
    assert [get_attributes(each, names["ifname"])["mtu"] for each, _, names in same_name_pods] == [1500, 1500]
    assert (podwire.backups(), podwire.notes()) == ({}, {})


def test_gc_removes_stale_backups(both, host, new_sandbox):
    """GC removes the backups of this network's unlisted attachments, and keeps and counts the others."""
    podwire, reference = (net.having(mtu=1400) for net in both)
    other = podwire.having(name="net2")
    pods = (("keep", podwire), ("stale", podwire), ("other", other), ("reference", reference), ("deleted", podwire))
    for number, (name, net) in enumerate(pods):
        pod = new_sandbox()
        net.add(pod, connect_veth(host, pod, f"veth{number}"), container_id=name)
        if name == "deleted":
            reference.delete(pod, container_id=name)
    foreign = podwire.data_dir / "README"
    foreign.write_text("mine")
    assert podwire.notes().keys() == {f"{name}_eth0.json" for name in ("keep", "stale", "other", "deleted")}
    assert podwire.gc(("keep", "eth0"), ("reference", "eth0")) == ""
    kept = {f"{name}_eth0.json" for name in ("keep", "other", "reference")}
    assert podwire.backups().keys() == kept | {"README"}
    assert podwire.notes().keys() == {"keep_eth0.json", "other_eth0.json"}
    assert podwire.gc() == (
        f"tuning: GC leaves 1 backup(s) in {podwire.data_dir} alone that name no network: "
        "the reference plugin made them, for this network or another\n"
    )
    assert podwire.backups().keys() == {"other_eth0.json", "reference_eth0.json", "README"}
    assert json.loads(podwire.backups()["reference_eth0.json"]) == {"mtu": 1500}
