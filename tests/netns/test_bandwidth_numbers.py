"""The kernel accepts podwire's numbers for every rate, burst and MTU."""

import pytest

from kernel import link, traffic
from kernel.rtnl import Socket
from kernel.traffic import Qdisc
from plugins.bandwidth.limit import Limit, compute_shape

pytestmark = pytest.mark.needs("tbf")

BIGGEST = 8 * ((1 << 32) - 1) - 8
# Ordinary limits, those whose numbers overflow in the reference plugin, placeholder bursts, bursts below a frame.
PAIRS = [
    (1000, 12_120),
    (2824, 12_112),
    (1_000_000, 12_345_678),
    (1_000_000, BIGGEST),
    (7_500_003, 1_234_567),
    (8_000_000, 8),
    (10_000_000, (1 << 32) - 1),
    (10_000_000, BIGGEST + 7),
    (10_000_000, 12_000),
    (34_359_738_360, 4_000_000_000),
    (34_359_738_368, 4_000_000_000),
    (1_000_000_000_000, 3_141_592_653),
    (1_000_000_000_000, BIGGEST),
    *((rate, 8) for rate in (8, 10**10, 1 << 59, 1 << 60, 1 << 61, (1 << 61) + 8 * 10**9, 1 << 62, 1 << 63)),
    ((1 << 64) - 1, 8),
]


@pytest.mark.parametrize("mtu", [68, 1500, 65535])
def test_kernel_accepts_any_rate(host, sandbox, mtu):
    """For every limit and MTU the kernel holds the computed bucket, and does not refuse it as empty."""
    host.ip("link", "add", "veth0", "mtu", str(mtu), "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
    with host.entered():
        opened = Socket()
    with opened as socket:
        (veth,) = link.get(socket, link.by_name_request("veth0"))
        assert veth is not None
        for pair in PAIRS:
            bucket = compute_shape(Limit(*pair), mtu, 0).bucket
            socket.change(traffic.create_tbf_request(veth.index, bucket))
            (root,) = socket.get(traffic.get_root_request(veth.index))
            socket.change(traffic.delete_root_request(veth.index, Qdisc("tbf", 0x10000)))
            qdisc = traffic.qdisc_from_answer(root)
            assert qdisc is not None
            assert qdisc.bucket == bucket, pair
