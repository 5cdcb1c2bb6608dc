"""CHECK of bandwidth on limits that differ from the configuration (plugins.bandwidth.check)."""

from dataclasses import replace
from typing import Any

import pytest

from cni.errors import CniError
from kernel import traffic
from kernel.codec_traffic import QdiscMessage
from kernel.link import Link
from kernel.traffic import Bucket, Filter, Qdisc
from kernel.wire import decode
from plugins.bandwidth.check import check_egress, check_ingress
from plugins.bandwidth.limit import Limit, compute_shape, reference_buckets
from plugins.bandwidth.shaper import Limits
from tests.support.errors import failure_of

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
