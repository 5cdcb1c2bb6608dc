"""ipMasq on a kernel whose nftables can do no NAT: what is said, and that iptables-legacy serves all the same."""

import pytest

from tests.support import kernels
from tests.support.netstate import state


@pytest.fixture(autouse=True)
def without_nft_nat():
    """Leaves out these tests where there is nothing lacking."""
    if kernels.has("nft_nat"):
        pytest.skip("this kernel has NAT in nftables")


def test_what_the_kernel_lacks_is_told(network, sandbox):
    """ADD by nftables fails with what is needed and leaves nothing; STATUS has code 50."""
    net = network.having(ipMasq=True, ipMasqBackend="nftables", cniVersion="1.1.0")
    before = state(net.host), state(sandbox)
    error = net.run("ADD", sandbox).error()
    assert error["code"] == 999
    assert "Linux 5.2 or later" in error["details"]
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})
    status = net.run("STATUS").error()
    assert status["code"] == 50
    assert '"ipMasq" cannot be served: nftables: ' in status["msg"]
    net.delete(sandbox)


@pytest.mark.needs("iptables_legacy_nat")
def test_iptables_legacy_serves(network, sandbox):
    """Without a backend in the configuration, rules are made by iptables-legacy, checked, and taken away."""
    net = network.having(ipMasq=True, cniVersion="1.1.0")
    net.run("STATUS").assert_silent()
    net.check(sandbox, net.add(sandbox))
    assert f'id: \\"{sandbox.name}\\"' in net.host.run("iptables-legacy-save", "-t", "nat")
    net.delete(sandbox)
    assert sandbox.name not in net.host.run("iptables-legacy-save", "-t", "nat")


@pytest.mark.needs("iptables_legacy_nat")
def test_gc_and_del_without_a_namespace(network, sandbox, new_sandbox):
    """DEL without namespace and GC take away what iptables-legacy made."""
    net = network.having(ipMasq=True, cniVersion="1.1.0")
    gone = new_sandbox()
    net.add(sandbox)
    net.add(gone)
    net.run("DEL", sandbox, netns="").assert_silent()
    net.having(**{"cni.dev/valid-attachments": []}).run("GC").assert_silent()
    assert "CNI-" not in net.host.run("iptables-legacy-save", "-t", "nat")
    assert net.leases() == {}
