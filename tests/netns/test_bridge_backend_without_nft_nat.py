"""ipMasq on a kernel whose nftables has no NAT: the error, and iptables-legacy as the backend."""

import pytest

from tests.support.netstate import state

pytestmark = pytest.mark.needs("no nft_nat")


def test_missing_nat_of_nftables_is_reported(network, sandbox):
    """ADD by nftables fails, names the needed kernel version and leaves nothing; STATUS has code 50."""
    net = network.having(ipMasq=True, ipMasqBackend="nftables", cniVersion="1.1.0")
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert error["code"] == 999
    assert "Linux 5.2 or later" in error["details"]
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})
    status = net.run("STATUS").error()
    assert status["code"] == 50
    assert '"ipMasq" does not work on this node: nftables: ' in status["msg"]
    net.delete(sandbox)


@pytest.mark.needs("iptables_legacy_nat")
def test_iptables_legacy_is_the_backend(network, sandbox):
    """Without a configured backend, iptables-legacy adds the rules, and CHECK and DEL use it."""
    net = network.having(ipMasq=True, cniVersion="1.1.0")
    net.run("STATUS").assert_silent()
    net.check(sandbox, net.add(sandbox))
    assert f'id: \\"{sandbox.name}\\"' in net.host.run("iptables-legacy-save", "-t", "nat")
    net.delete(sandbox)
    assert sandbox.name not in net.host.run("iptables-legacy-save", "-t", "nat")


@pytest.mark.needs("iptables_legacy_nat")
def test_gc_and_del_without_a_namespace(network, sandbox, new_sandbox):
    """DEL without a namespace and GC remove the rules of iptables-legacy."""
    net = network.having(ipMasq=True, cniVersion="1.1.0")
    stale = new_sandbox()
    net.add(sandbox)
    net.add(stale)
    net.run("DEL", sandbox, netns="").assert_silent()
    net.gc()
    assert "CNI-" not in net.host.run("iptables-legacy-save", "-t", "nat")
    assert net.leases() == {}
