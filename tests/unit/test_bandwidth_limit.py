"""Limits as the kernel's numbers (plugins.bandwidth.limit), and CHECK of other ones (plugins.bandwidth.check)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni.errors import CniError
from kernel import traffic
from kernel.codec_traffic import QdiscMessage
from kernel.link import Link
from kernel.traffic import TICK_NS, UINT32_MAX, Bucket, Filter, Qdisc
from kernel.wire import decode
from plugins.bandwidth.check import check_egress, check_ingress
from plugins.bandwidth.limit import PLACEHOLDER_BURSTS, Limit, compute_shape, reference_buckets
from plugins.bandwidth.shaper import Limits
from tests.support.errors import failure_of

CONTAINERD, CRIO = 4294967295, 34359738359
BIGGEST = 8 * UINT32_MAX - 8  # the largest valid burst that is no placeholder

# The numbers of the reference plugin on amd64 in the kernel, measured with Debian's plugin 1.1.1.
REFERENCE = [
    (Limit(8_000_000, 800_000), Bucket(1_000_000, 1_562_500, 125_000)),
    (Limit(16_000_000, 1_600_000), Bucket(2_000_000, 1_562_500, 250_000)),
    (Limit(1000, 12_120), Bucket(125, 189_375_000, 1518)),
    (Limit(7_500_003, 1_234_567), Bucket(937_500, 2_572_000, 177_757)),
    (Limit(1_000_000_000, 12_120), Bucket(125_000_000, 187, 3_126_515)),
    (Limit(34_359_738_360, BIGGEST), Bucket(4_294_967_295, 15_624_984, 107_374_180)),
    (Limit(34_359_738_368, BIGGEST), Bucket(4_294_967_296, 15_624_984, 107_374_180)),
    (Limit(1_000_000_000_000, CRIO), Bucket(125_000_000_000, 536_859, 3_124_999_998)),
    (Limit(10_000_000, 2_147_483_647), Bucket(1_250_000, 3_355_443_187, 268_466_705)),
    (Limit(10_000_000, CONTAINERD), Bucket(1_250_000, 2_415_919_079, 536_902_161)),
    (Limit(10_000_000, CRIO), Bucket(1_250_000, 2_147_483_619, 31_248)),
    (Limit(8, 12_120), Bucket(1, 2_197_038_520, 1515)),
    (Limit(8, 8_000_000_000), Bucket(1, 245_207_040, 1_000_000_000)),
    (Limit(8, BIGGEST), Bucket(1, 2_653_104_560, 4_294_967_294)),
    (Limit(16, 8000), Bucket(2, 3_517_532_704, 1000)),
]

FRAME, JUMBO = (f"a frame of {size} bytes would never pass" for size in (1514, 9014))
BUCKET_IS_FULL = "the kernel cannot hold more at this rate"
TEN_MBIT = 10_000_000
MTU = 1500

rates = st.one_of(st.integers(8, 10**13), st.integers(8, (1 << 64) - 1))
bursts = st.one_of(st.integers(1, 10**6), st.integers(1, BIGGEST), st.sampled_from(sorted(PLACEHOLDER_BURSTS)))
mtus = st.integers(68, 65535)


def held(bucket):
    """Returns how many bytes a bucket holds, with the kernel's rounding and its 64 bits."""
    return (bucket.size * TICK_NS * bucket.rate & (1 << 64) - 1) // 10**9


@pytest.mark.parametrize(("limit", "expected"), REFERENCE)
def test_reference_buckets_wrap_on_amd64(limit, expected):
    """The numbers equal those of the reference's arithmetic with floats and 32 bits, which wraps."""
    assert reference_buckets(limit)[0] == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Limit(TEN_MBIT, CONTAINERD), Bucket(1_250_000, UINT32_MAX, 536_902_161)),
        (Limit(TEN_MBIT, CRIO), Bucket(1_250_000, UINT32_MAX, 31_248)),
        (Limit(8, 8_000_000_000), Bucket(1, UINT32_MAX, 1_000_000_000)),
        (Limit(1 << 60, CRIO), Bucket(1 << 57, 0, UINT32_MAX - 2)),
        (Limit(8_000_000, 800_000), Bucket(1_000_000, 1_562_500, 125_000)),
    ],
)
def test_reference_buckets_saturate_on_arm64(limit, expected):
    """If a conversion from float saturates (arm64), the bucket is full, and the sum of the queue wraps."""
    assert reference_buckets(limit)[1] == expected


@pytest.mark.parametrize(
    ("rate", "burst", "mtu", "max_burst", "size", "queue"),
    [
        (8_000_000, 800_000, MTU, 0, 1_562_500, 125_000),
        (16_000_000, 1_600_000, MTU, 0, 1_562_500, 250_000),
        (TEN_MBIT, 800_000, MTU, 800_000, 1_250_000, 131_250),
        (TEN_MBIT, 800_000, MTU, 8_000_000, 1_250_000, 131_250),
        # Whole microseconds are too coarse for a frame: some ticks more than the reference's.
        (TEN_MBIT, 12_112, MTU, 0, 18_925, 32_764),
        (10**9, 12_120, MTU, 0, 190, 3_126_515),
        (10**11, 99_992, MTU, 0, 15, 312_512_499),
        (10**11, 100_000, MTU, 0, 15, 312_512_500),
        # The lowest rate at which a frame passes, in 4.29 s; and the longest bucket, 274.9 s.
        (2824, 12_112, MTU, 0, 67_014_873, 1522),
        (8_000_000, 2_199_023_000, MTU, 0, 4_294_966_796, 274_902_875),
        # A placeholder burst below 50 ms of the rate is not replaced; the queue is the largest number.
        (10**12, CONTAINERD, MTU, 0, 67_093, 3_661_870_911),
        (10**12, BIGGEST, MTU, 0, 536_859, UINT32_MAX),
    ],
)
def test_valid_burst_is_unchanged(rate, burst, mtu, max_burst, size, queue):
    """A burst that the kernel can hold, and that holds a frame, is unchanged, without a note."""
    shape = compute_shape(Limit(rate, burst), mtu, max_burst)
    assert (shape.bucket, shape.note) == (Bucket(rate // 8, size, queue), "")


@pytest.mark.parametrize(
    ("rate", "burst", "mtu", "max_burst", "expected", "why"),
    [
        # 50 ms of the rate, or ten frames if that is more.
        (TEN_MBIT, 2_147_483_647, MTU, 0, 62_500, ""),
        (TEN_MBIT, CONTAINERD, MTU, 0, 62_500, ""),
        (TEN_MBIT, CRIO, MTU, 0, 62_500, ""),
        (1_000_000, CRIO, MTU, 0, 15_140, ""),
        (1_000_000, CRIO, 9000, 0, 90_140, ""),
        # maxBurst limits every burst, and replaces the automatic one.
        (TEN_MBIT, CRIO, MTU, 8_000_000, 1_000_000, ""),
        (TEN_MBIT, 800_001, MTU, 800_000, 100_000, ""),
        (TEN_MBIT, 800_008, MTU, 800_000, 100_000, ""),
        # A frame must fit.
        (TEN_MBIT, 800_000, MTU, 8, 1514, ""),
        (TEN_MBIT, 12_104, MTU, 0, 1514, FRAME),
        (TEN_MBIT, 7, MTU, 0, 1514, FRAME),
        (TEN_MBIT, 12_112, 9000, 0, 9014, JUMBO),
        (TEN_MBIT, 12_112, MTU, 8, 1514, ""),
    ],
)
def test_invalid_burst_is_replaced(rate, burst, mtu, max_burst, expected, why):
    """A placeholder burst is reduced without a note; a burst below a frame is raised, with a note."""
    shape = compute_shape(Limit(rate, burst), mtu, max_burst)
    assert shape.bucket == compute_shape(Limit(rate, 8 * expected), mtu, 0).bucket
    assert shape.bucket.limit == rate // 8 // 40 + expected
    assert shape.note == (f"its burst is {expected} bytes, not {burst // 8}: {why}" if why else "")


def test_burst_above_the_kernels_maximum_is_noted():
    """A bucket holds at most 274.9 s of its rate, and the note says if that is less than configured."""
    shape = compute_shape(Limit(8_000_000, 2_300_000_000), MTU, 0)
    assert shape.bucket == Bucket(1_000_000, UINT32_MAX, 287_525_000)
    assert shape.note == f"its burst is 274877906 bytes, not 287500000: {BUCKET_IS_FULL}"


@pytest.mark.parametrize(
    ("rate", "mtu", "size", "passing"),
    [(2816, 1500, 67_205_256, 1511), (16_784, 9000, 67_132_388, 9010), (8, 68, 1_281_250_000, 4)],
)
def test_frames_that_never_pass_are_noted(rate, mtu, size, passing):
    """The note states the largest frame of a very low rate, for which the kernel has 4.29 s."""
    shape = compute_shape(Limit(rate, 8 * (mtu + 14)), mtu, 0)
    assert shape.bucket.size == size
    assert shape.note == f"no frame of more than {passing} bytes passes: none may take more than 4.3 s"


def test_notes_are_combined():
    """If the burst is too small for a frame that is too large for the kernel, the note says both."""
    shape = compute_shape(Limit(8, 8000), MTU, 0)
    assert shape.bucket == Bucket(1, UINT32_MAX, 1514)
    first, second = shape.note.split("; ")
    assert first == f"its burst is 274 bytes, not 1000: {BUCKET_IS_FULL}"
    assert second.startswith("no frame of more than 4 bytes passes")


@given(rates, bursts, mtus, st.one_of(st.just(0), bursts))
@example(8, 1, 65535, 0)
@example((1 << 64) - 1, 1, 68, 0)
@example((1 << 64) - 1, BIGGEST, 68, 0)
@example(1 << 61, 800_000, 1500, 0)
def test_bucket_holds_a_frame(rate, burst, mtu, max_burst):
    """Any limit fits the kernel's numbers and holds a frame; otherwise the bucket is full or the note says so."""
    shape = compute_shape(Limit(rate, burst), mtu, max_burst)
    bucket, frame = shape.bucket, mtu + 14
    assert bucket.rate == min(rate // 8, 1 << 57)
    assert 0 < bucket.size <= UINT32_MAX
    assert frame <= bucket.limit <= UINT32_MAX
    assert held(bucket) >= frame or bucket.size == UINT32_MAX
    assert ("no frame of more than" in shape.note) == (bucket.rate * UINT32_MAX // 10**9 < frame)


@given(rates, bursts, mtus)
def test_numbers_equal_the_references(rate, burst, mtu):
    """They are equal unless the reference overflows, its bucket is below a frame, or the burst is a placeholder."""
    limit = Limit(rate, burst)
    wrapped, saturated = reference_buckets(limit)
    exact = wrapped == saturated and wrapped.limit >= burst // 8 and saturated.size < UINT32_MAX
    if exact and burst not in PLACEHOLDER_BURSTS and burst // 8 >= mtu + 14 <= held(wrapped):
        assert compute_shape(limit, mtu, 0).bucket == wrapped


@given(rates, bursts, bursts, mtus)
def test_bucket_grows_with_the_burst(rate, burst, other, mtu):
    """Bucket and queue grow with the burst, unless the larger one is a placeholder."""
    small, large = sorted((burst, other))
    first, second = (compute_shape(Limit(rate, item), mtu, 0).bucket for item in (small, large))
    if large not in PLACEHOLDER_BURSTS:
        assert first.size <= second.size
        assert first.limit <= second.limit


@given(rates, bursts, mtus, bursts)
def test_max_burst_limits_every_burst(rate, burst, mtu, max_burst):
    """With "maxBurst" a bucket is never larger than one of that burst, or than one of the configured burst."""
    shape = compute_shape(Limit(rate, burst), mtu, max_burst).bucket
    for bound in (burst, max_burst):
        most = compute_shape(Limit(rate, bound), mtu, bound).bucket
        assert shape.size <= most.size
        assert shape.limit <= most.limit
    assert shape == compute_shape(Limit(rate, min(burst, max_burst)), mtu, max_burst).bucket


PORT = Link(7, "veth0", "02:00:00:00:00:01", 1500, 1, "veth", 3, 2, 0, 6)
IFB = Link(9, "bwp012345678901", "02:00:00:00:00:02", 1500, 1, "ifb", 0, 0, None, 0)
LIMIT = Limit(10_000_000, 34359738359)  # the reference plugin's numbers for it overflow
EXPECTED = compute_shape(LIMIT, 1500, 0).bucket
WRAPPED, SATURATED = reference_buckets(LIMIT)
ACCEPTED = (EXPECTED, WRAPPED, SATURATED)
REDIRECT = Filter(0x80000800, 0x10300, IFB.index, True)
AGAIN = "remove the container and create it again"


class Host:
    """A stand-in for the kernel that returns the ifb's root qdisc."""

    def __init__(self, request):
        self.message = request and decode(QdiscMessage, request.encode(1))

    def get(self, *requests):
        assert [request.values["index"] for request in requests] == [IFB.index]
        return [self.message]


def limits(**keys):
    return replace(Limits(None, Qdisc("ingress", 0xFFFF0000), (IFB,), (REDIRECT,), "bwp"), **keys)


def ingress(root):
    """Returns message and details of CHECK for a root qdisc of the host veth, None if CHECK succeeds."""
    error = failure_of(lambda: check_ingress(limits(root=root), PORT, ACCEPTED), CniError)
    assert error is None or error.code == 999
    return error and (error.msg, error.details)


def egress(existing, bucket=EXPECTED):
    """Returns message and details of CHECK for the redirect to the ifb and its token bucket, None without one."""
    host: Any = Host(bucket and traffic.create_tbf_request(IFB.index, bucket))
    error = failure_of(lambda: check_egress(host, existing, PORT, ACCEPTED), CniError)
    assert error is None or error.code == 999
    return error and (error.msg, error.details)


@pytest.mark.parametrize("bucket", ACCEPTED)
def test_limits_of_the_reference_are_accepted(bucket):
    """Numbers of podwire, and those of the reference that wrap or saturate at 32 bits, are accepted."""
    assert ingress(Qdisc("tbf", 0x10000, bucket)) is None
    assert egress(limits(), bucket) is None


@pytest.mark.parametrize(
    ("changes", "msg", "details"),
    [
        ({"rate": 1}, "Rate doesn't match", "it is 1 bytes/s, not 1250000"),
        ({"limit": 1}, "Limit doesn't match", "it is 1 bytes, not 93750"),
        ({"size": 1}, "Buffer doesn't match", "it is 1 ticks, not 781250"),
        ({"rate": 1, "limit": 1, "size": 1}, "Rate doesn't match", "it is 1 bytes/s, not 1250000"),
        ({"size": WRAPPED.size}, "Buffer doesn't match", "limit and buffer belong to different bursts"),
    ],
)
def test_changed_numbers_are_reported(changes, msg, details):
    """The reference's text names what differs, with existing and expected values; a mixture is refused."""
    bucket = replace(EXPECTED, **changes)
    expected = (msg, f"{details}; {AGAIN}")
    assert ingress(Qdisc("tbf", 0x10000, bucket)) == expected
    assert egress(limits(), bucket) == expected


def test_numbers_of_another_limit_are_refused():
    """Another limit's numbers are refused, even if each of them is one of an accepted bucket."""
    other = compute_shape(Limit(20_000_000, 2_000_000), 1500, 0).bucket
    expected = ("Rate doesn't match", f"it is 2500000 bytes/s, not 1250000; {AGAIN}")
    assert ingress(Qdisc("tbf", 0x10000, other)) == expected
    mixture = Bucket(EXPECTED.rate, SATURATED.size, EXPECTED.limit)
    assert ingress(Qdisc("tbf", 0x10000, mixture))[0] == "Buffer doesn't match"
