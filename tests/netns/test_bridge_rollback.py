"""Rollback of bridge's ADD, and ADDs that fail while others succeed."""

import pytest

from cni.errors import CniError
from plugins.bridge import bridge_device
from tests.netns.test_bridge_vlan_gateway import add_in_process
from tests.support.attaching import host_end, reaches
from tests.support.errors import failure_of
from tests.support.invocation import finish
from tests.support.netstate import links, state

IP = {"address": "10.22.0.9/16"}
FAIL = """[ "$CNI_COMMAND" != ADD ] || { echo '{"code": 11, "msg": "no luck today"}'; exit 1; }"""

with_and_without_vlan = pytest.mark.parametrize(
    "keys", [{}, pytest.param({"vlan": 100}, marks=pytest.mark.needs("vlan_filtering"))], ids=["no VLAN", "a VLAN"]
)


@pytest.mark.parametrize("exists", [False, True])
@with_and_without_vlan
def test_failed_add_changes_nothing(scripted_network, host, sandbox, keys, exists):
    """A failed ADD deletes its bridge and does not change an existing one; the next ADD succeeds without a DEL."""
    if exists:
        host.ip("link", "add", "cni0", "up", "type", "bridge")
    before = state(host), state(sandbox)
    outcome = scripted_network(body=FAIL, keys=keys).run("ADD", sandbox)
    assert (outcome.error()["msg"], outcome.stderr) == ("no luck today", "")
    assert (state(host), state(sandbox)) == before
    assert reaches(sandbox, scripted_network([IP], keys=keys).add(sandbox)["ips"][0]["gateway"])


@with_and_without_vlan
def test_failed_add_keeps_what_a_new_pod_uses(network, sandbox, new_sandbox, monkeypatch, keys):
    """A failing ADD that created bridge and gateway interface keeps them for a pod attached meanwhile."""
    net, other = network.having(**keys), new_sandbox()

    def add_another_and_fail(*_):
        monkeypatch.undo()
        net.add(other)
        raise CniError(11, "no luck today")

    monkeypatch.setattr(bridge_device, "add_gateways", add_another_and_fail)
    failure = failure_of(lambda: add_in_process(net, sandbox), CniError)
    assert failure is not None
    assert failure.msg == "no luck today"
    assert reaches(other, "10.22.0.1")
    assert set(links(sandbox)) == {"lo"}


def test_failing_adds_beside_successful_ones(scripted_network, network, new_sandbox):
    """ADDs that fail do not harm parallel ADDs on the same new bridge."""
    good, bad = [new_sandbox() for _ in range(8)], [new_sandbox() for _ in range(8)]
    failing = scripted_network([], body="sleep 0.0$(($$ % 10))")
    processes = [(network.start("ADD", one), failing.start("ADD", two)) for one, two in zip(good, bad, strict=True)]
    outcomes = [(finish(one), finish(two)) for one, two in processes]
    for pod, (succeeded, failed) in zip(good, outcomes, strict=True):
        assert reaches(pod, succeeded.result()["ips"][0]["gateway"])
        failed.error()
    ends = [host_end(succeeded.result()) for succeeded, _ in outcomes]
    assert set(links(network.host)) == {"lo", "cni0", *ends}


@pytest.mark.parametrize("deletions", [1, 4, 5])
@with_and_without_vlan
def test_link_deleted_during_add_is_created_again(scripted_network, sandbox, monkeypatch, keys, deletions):
    """ADD creates bridge or gateway interface again that another, failing ADD deletes meanwhile, up to four times."""
    net, name = scripted_network([IP], keys=keys), "cni0.100" if keys else "cni0"
    function = "ensure" if name == "cni0" else "add_gateways"  # the last one before and the first one after
    call = getattr(bridge_device, function)
    remaining = iter(range(deletions))

    def delete_meanwhile(*arguments):
        bridge = call(*arguments) if name == "cni0" else None
        if next(remaining, None) is not None:
            net.host.ip("link", "del", name)
        return bridge or call(*arguments)

    monkeypatch.setattr(bridge_device, function, delete_meanwhile)
    failure = failure_of(lambda: add_in_process(net, sandbox), CniError)
    if deletions < 5:
        assert failure is None
        assert reaches(sandbox, "10.22.0.1")
    else:
        assert failure is not None
        assert keys or (failure.code, failure.msg) == (11, 'bridge "cni0" was deleted during this ADD')
        assert (set(links(net.host)), set(links(sandbox))) == ({"lo"}, {"lo"})
