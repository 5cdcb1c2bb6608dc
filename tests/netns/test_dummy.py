"""dummy: addresses of a single host, and a kernel without such interfaces."""

import pytest

from kernel import modules
from tests.support.attaching import address, reaches
from tests.support.kernels import has
from tests.support.netstate import state


@pytest.mark.needs("dummy")
@pytest.mark.parametrize("addresses", [["169.254.169.254/32"], ["fd00:ec2::254/128"], ["10.9.9.9/32", "fd00:9::9/128"]])
def test_host_prefixes(dummy, sandbox, addresses):
    """Addresses with /32 and /128 are usable at once, answer, and pass CHECK."""
    net = dummy.having(ipam={"type": "static", "addresses": [{"address": item} for item in addresses]})
    result = net.add(sandbox)
    assert "tentative" not in sandbox.ip("address", "show", "dev", "eth0")
    sandbox.ip("link", "set", "lo", "up")
    for number in range(len(addresses)):
        assert reaches(sandbox, address(result, number))
    net.check(sandbox, result)
    net.delete(sandbox, result)


def test_kernel_without_dummy(dummy, sandbox):
    """On a kernel without dummy interfaces ADD and STATUS name the missing module, and nothing changes."""
    net = dummy.having(cniVersion="1.1.0")
    if has("dummy"):
        net.add(sandbox)
        return
    before = state(sandbox)
    fix = modules.explain_missing("dummy")
    for command, code, msg in (
        ("ADD", 999, "failed to create dummy: operation not supported"),
        ("STATUS", 50, "the kernel has no dummy interfaces"),
    ):
        error = net.run(command, sandbox).error()
        assert (error["code"], error["msg"], error["details"]) == (code, msg, fix)
    assert state(sandbox) == before
    assert dummy.leases() == {}
