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
def test_iptables_legacy_is_the_backend(network, new_sandbox):
    """Without a configured backend, iptables-legacy adds the rules; CHECK, GC and DEL without a namespace use it."""
    net, one, stale = network.having(ipMasq=True, cniVersion="1.1.0"), new_sandbox(), new_sandbox()
    net.run("STATUS").assert_silent()
    net.check(one, net.add(one))
    net.add(stale)
    assert f'id: \\"{one.name}\\"' in net.host.run("iptables-legacy-save", "-t", "nat")
    net.run("DEL", one, netns="").assert_silent()
    assert one.name not in net.host.run("iptables-legacy-save", "-t", "nat")
    net.gc()
    assert "CNI-" not in net.host.run("iptables-legacy-save", "-t", "nat")
    assert net.leases() == {}
