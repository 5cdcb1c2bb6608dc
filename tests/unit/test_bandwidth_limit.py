"""Limits as the numbers that the kernel takes (plugins.bandwidth.limit)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel.traffic import TICK_NS, UINT32_MAX, Bucket
from plugins.bandwidth.limit import PLACEHOLDER_BURSTS, Limit, compute_shape, reference_buckets

CONTAINERD, CRIO = 4294967295, 34359738359
BIGGEST = 8 * UINT32_MAX - 8  # the largest burst that is not refused and not invented

# What the reference sets on amd64, as the kernel shows it: measured with Debian's plugin 1.1.1.
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
IT_IS_FULL = "the kernel cannot hold more at this rate"
TEN_MBIT = 10_000_000
MTU = 1500

rates = st.one_of(st.integers(8, 10**13), st.integers(8, (1 << 64) - 1))
bursts = st.one_of(st.integers(1, 10**6), st.integers(1, BIGGEST), st.sampled_from(sorted(PLACEHOLDER_BURSTS)))
mtus = st.integers(68, 65535)


def held(bucket):
    """Returns how many bytes a bucket holds, rounded down as the kernel does, in 64 bits as it does."""
    return (bucket.size * TICK_NS * bucket.rate & (1 << 64) - 1) // 10**9


@pytest.mark.parametrize(("limit", "expected"), REFERENCE)
def test_the_references_numbers(limit, expected):
    """What the reference's arithmetic of floats and 32 bits comes to, wrapped where it overflows."""
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
def test_the_references_numbers_on_other_machines(limit, expected):
    """Where a conversion from float saturates instead (arm64) the bucket is full, and the sum of the queue wraps."""
    assert reference_buckets(limit)[1] == expected


@pytest.mark.parametrize(
    ("rate", "burst", "mtu", "max_burst", "size", "queue"),
    [
        (8_000_000, 800_000, MTU, 0, 1_562_500, 125_000),
        (16_000_000, 1_600_000, MTU, 0, 1_562_500, 250_000),
        (TEN_MBIT, 800_000, MTU, 800_000, 1_250_000, 131_250),
        (TEN_MBIT, 800_000, MTU, 8_000_000, 1_250_000, 131_250),
        # Where whole microseconds are too coarse for a frame: a tick or a few more than the reference's.
        (TEN_MBIT, 12_112, MTU, 0, 18_925, 32_764),
        (10**9, 12_120, MTU, 0, 190, 3_126_515),
        (10**11, 99_992, MTU, 0, 15, 312_512_499),
        (10**11, 100_000, MTU, 0, 15, 312_512_500),
        # As small as can pass: it takes a frame 4.29 s; and as long as a bucket can be, 274.9 s.
        (2824, 12_112, MTU, 0, 67_014_873, 1522),
        (8_000_000, 2_199_023_000, MTU, 0, 4_294_966_796, 274_902_875),
        # An invented burst that is less than 50 ms at its rate does no harm; the queue ends where its number does.
        (10**12, CONTAINERD, MTU, 0, 67_093, 3_661_870_911),
        (10**12, BIGGEST, MTU, 0, 536_859, UINT32_MAX),
    ],
)
def test_a_limit_as_asked_for(rate, burst, mtu, max_burst, size, queue):
    """A burst that the kernel can hold, of a frame at least, is taken as it is, and there is nothing to tell."""
    found = compute_shape(Limit(rate, burst), mtu, max_burst)
    assert (found.bucket, found.note) == (Bucket(rate // 8, size, queue), "")


@pytest.mark.parametrize(
    ("rate", "burst", "mtu", "max_burst", "taken", "why"),
    [
        # 50 ms at the rate, or ten frames where that is more.
        (TEN_MBIT, 2_147_483_647, MTU, 0, 62_500, ""),
        (TEN_MBIT, CONTAINERD, MTU, 0, 62_500, ""),
        (TEN_MBIT, CRIO, MTU, 0, 62_500, ""),
        (1_000_000, CRIO, MTU, 0, 15_140, ""),
        (1_000_000, CRIO, 9000, 0, 90_140, ""),
        # An operator's maximum holds for every burst, and in place of the automatic one.
        (TEN_MBIT, CRIO, MTU, 8_000_000, 1_000_000, ""),
        (TEN_MBIT, 800_001, MTU, 800_000, 100_000, ""),
        (TEN_MBIT, 800_008, MTU, 800_000, 100_000, ""),
        # But a frame must fit.
        (TEN_MBIT, 800_000, MTU, 8, 1514, ""),
        (TEN_MBIT, 12_104, MTU, 0, 1514, FRAME),
        (TEN_MBIT, 7, MTU, 0, 1514, FRAME),
        (TEN_MBIT, 12_112, 9000, 0, 9014, JUMBO),
        (TEN_MBIT, 12_112, MTU, 8, 1514, ""),
    ],
)
def test_another_burst_is_taken(rate, burst, mtu, max_burst, taken, why):
    """One that would not limit is less, and nobody is told; one that lets nothing pass is raised, and told."""
    found = compute_shape(Limit(rate, burst), mtu, max_burst)
    assert found.bucket == compute_shape(Limit(rate, 8 * taken), mtu, 0).bucket
    assert found.bucket.limit == rate // 8 // 40 + taken
    assert found.note == (f"its burst is {taken} bytes, not {burst // 8}: {why}" if why else "")


def test_more_than_the_kernel_can_hold():
    """A bucket is 274.9 s at its rate at most, and that it is less than asked for is told."""
    found = compute_shape(Limit(8_000_000, 2_300_000_000), MTU, 0)
    assert found.bucket == Bucket(1_000_000, UINT32_MAX, 287_525_000)
    assert found.note == f"its burst is 274877906 bytes, not 287500000: {IT_IS_FULL}"


@pytest.mark.parametrize(
    ("rate", "mtu", "size", "passing"),
    [(2816, 1500, 67_205_256, 1511), (16_784, 9000, 67_132_388, 9010), (8, 68, 1_281_250_000, 4)],
)
def test_frames_that_never_pass(rate, mtu, size, passing):
    """The largest frame of a very slow limit, for which the kernel has 4.29 s, is told."""
    found = compute_shape(Limit(rate, 8 * (mtu + 14)), mtu, 0)
    assert found.bucket.size == size
    assert found.note == f"no frame of more than {passing} bytes passes: none may take more than 4.3 s"


def test_everything_at_once():
    """A burst too small for a frame that is too large for the kernel's bucket: both are told."""
    found = compute_shape(Limit(8, 8000), MTU, 0)
    assert found.bucket == Bucket(1, UINT32_MAX, 1514)
    first, second = found.note.split("; ")
    assert first == f"its burst is 274 bytes, not 1000: {IT_IS_FULL}"
    assert second.startswith("no frame of more than 4 bytes passes")


@given(rates, bursts, mtus, st.one_of(st.just(0), bursts))
@example(8, 1, 65535, 0)
@example((1 << 64) - 1, 1, 68, 0)
@example((1 << 64) - 1, BIGGEST, 68, 0)
@example(1 << 61, 800_000, 1500, 0)
def test_a_bucket_holds_a_frame(rate, burst, mtu, max_burst):
    """Any limit fits the kernel's numbers and holds a frame; where it cannot, it is full or what passes is told."""
    found = compute_shape(Limit(rate, burst), mtu, max_burst)
    bucket, frame = found.bucket, mtu + 14
    assert bucket.rate == min(rate // 8, 1 << 57)
    assert 0 < bucket.size <= UINT32_MAX
    assert frame <= bucket.limit <= UINT32_MAX
    assert held(bucket) >= frame or bucket.size == UINT32_MAX
    assert ("no frame of more than" in found.note) == (bucket.rate * UINT32_MAX // 10**9 < frame)


@given(rates, bursts, mtus)
def test_the_references_numbers_are_ours(rate, burst, mtu):
    """Where the reference does not overflow and its bucket holds a frame, ours has its numbers, unless invented."""
    limit = Limit(rate, burst)
    theirs, saturated = reference_buckets(limit)
    exact = theirs == saturated and theirs.limit >= burst // 8 and saturated.size < UINT32_MAX
    if exact and burst not in PLACEHOLDER_BURSTS and burst // 8 >= mtu + 14 <= held(theirs):
        assert compute_shape(limit, mtu, 0).bucket == theirs


@given(rates, bursts, bursts, mtus)
def test_a_larger_burst_is_no_smaller_bucket(rate, burst, other, mtu):
    """Bucket and queue grow with the burst; what stands for an invented one is no larger than that."""
    small, large = sorted((burst, other))
    first, second = (compute_shape(Limit(rate, item), mtu, 0).bucket for item in (small, large))
    if large not in PLACEHOLDER_BURSTS:
        assert first.size <= second.size
        assert first.limit <= second.limit


@given(rates, bursts, mtus, bursts)
def test_the_largest_burst_is_respected(rate, burst, mtu, max_burst):
    """With "maxBurst" a bucket is never larger than one of that burst, nor than one of the burst asked for."""
    found = compute_shape(Limit(rate, burst), mtu, max_burst).bucket
    for bound in (burst, max_burst):
        most = compute_shape(Limit(rate, bound), mtu, bound).bucket
        assert found.size <= most.size
        assert found.limit <= most.limit
    assert found == compute_shape(Limit(rate, min(burst, max_burst)), mtu, max_burst).bucket
