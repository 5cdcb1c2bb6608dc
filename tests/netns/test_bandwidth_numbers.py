"""The kernel accepts podwire's numbers, and `reference_buckets` computes those of the reference plugin (Debian's)."""

import platform

import pytest

from kernel import link, traffic
from kernel.rtnl import Socket
from kernel.traffic import Qdisc
from plugins.bandwidth.limit import Limit, compute_shape, reference_buckets
from tests.support.invocation import run_plugin

pytestmark = pytest.mark.needs("tbf")

GO = 0 if platform.machine() == "x86_64" else 1  # the index of `reference_buckets` for this machine

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
# Limits whose numbers overflow, placeholder bursts, and bursts below a frame.
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
# Limits for which the reference plugin computes an empty bucket, which the kernel refuses.
REFUSED = [(8_000_000, 8), (10_000_000_000, 9_992), (1_000_000_000_000, 999_992)]


@pytest.fixture
def veth0(host, sandbox):
    """The host veth of the sandbox."""
    host.ip("link", "add", "veth0", "mtu", "1500", "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
    return "veth0"


@pytest.fixture
def go(host, sandbox, veth0, reference):
    """A function that runs a verb of the reference plugin for a limit of the packets that the sandbox receives."""
    interfaces = [{"name": veth0}, {"name": "eth0", "sandbox": sandbox.path}]
    common: dict[str, object] = {"cniVersion": "1.0.0", "name": "net", "type": "bandwidth"}
    common["prevResult"] = {"cniVersion": "1.0.0", "interfaces": interfaces}

    def run(command, rate, burst):
        config = {**common, "ingressRate": rate, "ingressBurst": burst}
        return run_plugin("bandwidth", command, config, host=host, netns=sandbox, bin_dir=reference)

    return run


class TokenBucket:
    """The token bucket of an interface."""

    def __init__(self, socket, name):
        (device,) = link.get(socket, link.by_name_request(name))
        assert device is not None
        self.socket, self.index = socket, device.index

    def set(self, bucket):
        self.socket.change(traffic.create_tbf_request(self.index, bucket))

    def remove(self):
        """Removes the bucket and returns it."""
        (root,) = self.socket.get(traffic.get_root_request(self.index))
        self.socket.change(traffic.delete_root_request(self.index, Qdisc("tbf", 0x10000)))
        qdisc = traffic.qdisc_from_answer(root)
        assert qdisc is not None
        return qdisc.bucket


@pytest.fixture
def bucket(host, veth0):
    """The token bucket on the host veth."""
    with host.entered():
        socket = Socket()
    with socket:
        yield TokenBucket(socket, veth0)


def test_reference_buckets_equal_the_reference_plugins(go, bucket):
    """`reference_buckets` returns what the reference plugin sets, even if its numbers overflow."""
    for pair in ORDINARY + PECULIAR:
        go("ADD", *pair).result()
        assert bucket.remove() == reference_buckets(Limit(*pair))[GO], pair


def test_kernel_accepts_the_computed_buckets(go, bucket):
    """The kernel holds the computed bucket; only for ordinary limits the reference's CHECK accepts it."""
    for pair in ORDINARY + PECULIAR + REFUSED:
        shape = compute_shape(Limit(*pair), 1500, 0)
        bucket.set(shape.bucket)
        if pair in ORDINARY:
            go("CHECK", *pair).assert_silent()
        else:
            assert "doesn't match" in go("CHECK", *pair).error()["msg"], pair
        assert bucket.remove() == shape.bucket, pair


@pytest.mark.parametrize("mtu", ["68", "1500", "65535"])
def test_kernel_accepts_any_rate(host, bucket, mtu):
    """For every rate and MTU the kernel holds the computed bucket, and does not refuse it as empty."""
    host.ip("link", "set", "veth0", "mtu", mtu)
    for rate in (8, 10**10, 1 << 59, 1 << 60, 1 << 61, (1 << 61) + 8 * 10**9, 1 << 62, 1 << 63, (1 << 64) - 1):
        shape = compute_shape(Limit(rate, 8), int(mtu), 0)
        bucket.set(shape.bucket)
        assert bucket.remove() == shape.bucket, rate


def test_reference_fails_with_tiny_bursts(go):
    """The reference plugin fails if its rounding reduces a burst to nothing."""
    for pair in REFUSED:
        assert go("ADD", *pair).error()["msg"] == "create qdisc: invalid argument"
