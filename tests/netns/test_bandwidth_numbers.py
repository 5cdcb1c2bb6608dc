"""The numbers of limits in the kernel, ours and those that the reference sets (Debian's Go plugin)."""

import platform

import pytest

from kernel import link, traffic
from kernel.rtnl import Socket
from kernel.traffic import Qdisc
from plugins.bandwidth.limit import Limit, compute_shape, reference_buckets
from tests.support.invocation import run_plugin

pytestmark = pytest.mark.needs("tbf")

GO = 0 if platform.machine() == "x86_64" else 1  # which of `references`: what its compiler does with too large a float

BIGGEST = 8 * ((1 << 32) - 1) - 8
ORDINARY = [
    (1000, 12_120),
    (64_000, 80_000),
    (1_000_000, 12_345_678),
    (7_500_003, 1_234_567),
    (8_000_000, 800_000),
    (123_456_789, 98_765_432),
    (1_000_000_000, 100_000_000),
    (10_000_000_000, 123_456_789),
    (34_359_738_360, 4_000_000_000),
    (34_359_738_368, 4_000_000_000),
    (99_999_999_999, 2_000_000_000),
    (1_000_000_000_000, 3_141_592_653),
]
# What overflows or is invented, and what does not hold a frame.
PECULIAR = [
    (8, BIGGEST),
    (2824, 12_112),
    (1_000_000, BIGGEST),
    (10_000_000, (1 << 31) - 1),
    (10_000_000, (1 << 32) - 1),
    (10_000_000, BIGGEST + 7),
    (10_000_000, 12_000),
    (1_000_000_000, BIGGEST),
    (1_000_000_000_000, BIGGEST),
]
# Where the reference comes to an empty bucket, which the kernel refuses.
REFUSED = [(8_000_000, 8), (10_000_000_000, 9_992), (1_000_000_000_000, 999_992)]


@pytest.fixture
def veth0(host, sandbox):
    """The host's end of the sandbox's interface."""
    host.ip("link", "add", "veth0", "mtu", "1500", "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
    return "veth0"


@pytest.fixture
def go(host, sandbox, veth0, reference):
    """Runs a verb of the reference for a limit to what the sandbox receives."""
    interfaces = [{"name": veth0}, {"name": "eth0", "sandbox": sandbox.path}]
    common = {"cniVersion": "1.0.0", "name": "net", "type": "bandwidth"}
    common["prevResult"] = {"cniVersion": "1.0.0", "interfaces": interfaces}

    def run(command, rate, burst):
        config = {**common, "ingressRate": rate, "ingressBurst": burst}
        return run_plugin("bandwidth", command, config, host=host, netns=sandbox, bin_dir=reference)

    return run


class TokenBucket:
    """The one token bucket that an interface can have."""

    def __init__(self, socket, name):
        (found,) = link.get(socket, link.by_name_request(name))
        self.socket, self.index = socket, found.index

    def set(self, bucket):
        self.socket.change(traffic.create_tbf_request(self.index, bucket))

    def take(self):
        """Removes it and returns what it was."""
        (root,) = self.socket.get(traffic.get_root_request(self.index))
        self.socket.change(traffic.delete_root_request(self.index, Qdisc("tbf", 0x10000)))
        return traffic.qdisc_from_answer(root).bucket


@pytest.fixture
def bucket(host, veth0):
    """The token bucket on the host's end."""
    with host.entered():
        socket = Socket()
    with socket:
        yield TokenBucket(socket, veth0)


def test_we_know_the_references_numbers(go, bucket):
    """What the reference sets is what `references` says, for ordinary limits and where its numbers overflow."""
    for pair in ORDINARY + PECULIAR:
        go("ADD", *pair).result()
        assert bucket.take() == reference_buckets(Limit(*pair))[GO], pair


def test_the_kernel_takes_our_numbers(go, bucket):
    """The kernel holds what `shape` says; for ordinary limits, and for those only, the reference's CHECK agrees."""
    for pair in ORDINARY + PECULIAR + REFUSED:
        ours = compute_shape(Limit(*pair), 1500, 0).bucket
        bucket.set(ours)
        if pair in ORDINARY:
            go("CHECK", *pair).assert_silent()
        else:
            assert "doesn't match" in go("CHECK", *pair).error()["msg"], pair
        assert bucket.take() == ours, pair


@pytest.mark.parametrize("mtu", ["68", "1500", "65535"])
def test_the_kernel_takes_any_rate(host, bucket, mtu):
    """However fast and whatever the MTU: the kernel holds what `shape` says, and does not refuse an empty bucket."""
    host.ip("link", "set", "veth0", "mtu", mtu)
    for rate in (8, 10**10, 1 << 59, 1 << 60, 1 << 61, (1 << 61) + 8 * 10**9, 1 << 62, 1 << 63, (1 << 64) - 1):
        ours = compute_shape(Limit(rate, 8), int(mtu), 0).bucket
        bucket.set(ours)
        assert bucket.take() == ours, rate


def test_what_the_reference_cannot_set(go):
    """The reference fails where its rounding leaves nothing of a burst."""
    for pair in REFUSED:
        assert go("ADD", *pair).error()["msg"] == "create qdisc: invalid argument"
