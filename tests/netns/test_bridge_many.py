"""Many attachments: in parallel, and sequentially."""

import os

import pytest

from cni.errors import CniError
from plugins.bridge import bridge_device
from tests.netns.test_bridge_vlan_gateway import add_in_process
from tests.support.attaching import address, host_end, reaches
from tests.support.errors import failure_of
from tests.support.invocation import finish
from tests.support.netstate import links, state

PARALLEL = 50
CYCLES = 100


@pytest.mark.one_kernel
def test_fifty_parallel_pods(dual_network, new_sandbox):
    """Fifty parallel ADDs without a bridge succeed with unique addresses, and fifty DELs leave nothing."""
    pods = [new_sandbox() for _ in range(PARALLEL)]
    results = [finish(process).result() for process in [dual_network.start("ADD", pod) for pod in pods]]
    for number in (0, 1):
        assert len({address(result, number) for result in results}) == PARALLEL
    for end in (1, 2):
        assert len({result["interfaces"][end]["mac"] for result in results}) == PARALLEL
    assert len({result["interfaces"][0]["mac"] for result in results}) == 1
    assert set(links(dual_network.host)) == {"lo", "cni0", *map(host_end, results)}
    assert len(dual_network.leases()) == 2 * PARALLEL
    assert reaches(pods[0], address(results[-1]))
    assert reaches(pods[-1], address(results[0], 1))
    dual_network.check(pods[0], results[0])
    for process in [dual_network.start("DEL", pod) for pod in pods]:
        finish(process).assert_silent()
    assert set(links(dual_network.host)) == {"lo", "cni0"}
    assert dual_network.leases() == {}
    assert [pod for pod in pods if set(links(pod)) != {"lo"}] == []


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
@pytest.mark.parametrize(
    ("name", "keys"),
    [("cni0", {}), pytest.param("cni0.100", {"vlan": 100}, marks=pytest.mark.needs("vlan_filtering"))],
)
def test_link_deleted_during_add_is_created_again(scripted_network, sandbox, monkeypatch, name, keys, deletions):
    """ADD creates bridge or gateway interface again that another, failing ADD deletes meanwhile, up to four times."""
    net = scripted_network([{"address": "10.22.0.9/16"}], keys=keys)
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


@pytest.mark.one_kernel
def test_repeated_add_and_del_leave_nothing(network, sandbox, store):
    """After many ADDs and DELs, links, addresses, routes and files are the same as after the first."""
    network.delete(sandbox, network.add(sandbox))
    before = state(network.host, netfilter=True), state(sandbox), sorted(os.listdir(store / "net"))
    mac = links(network.host)["cni0"]["address"]
    for _ in range(CYCLES):
        result = network.add(sandbox)
        assert result["interfaces"][0]["mac"] == mac
        network.delete(sandbox, result)
    after = state(network.host, netfilter=True), state(sandbox), sorted(os.listdir(store / "net"))
    assert after == before
