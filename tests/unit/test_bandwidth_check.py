"""What CHECK says of limits that are not as they were set (plugins.bandwidth.check)."""

from dataclasses import replace

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
LIMIT = Limit(10_000_000, 34359738359)  # of which the reference makes other numbers
OURS = compute_shape(LIMIT, 1500, 0).bucket
WRAPPED, SATURATED = reference_buckets(LIMIT)
ACCEPTED = (OURS, WRAPPED, SATURATED)
REDIRECT = Filter(0x80000800, 0x10300, IFB.index, True)
AGAIN = "remove the container and create it again"


class Host:
    """The kernel, as far as it tells of the ifb's root qdisc."""

    def __init__(self, request):
        self.message = request and decode(QdiscMessage, request.encode(1))

    def get(self, *requests):
        assert [request.values["index"] for request in requests] == [IFB.index]
        return [self.message]


def limits(**keys):
    return replace(Limits(None, Qdisc("ingress", 0xFFFF0000), (IFB,), (REDIRECT,), "bwp"), **keys)


def ingress(root):
    """Returns what CHECK of the host's end says of a root qdisc: message and details, None for nothing."""
    error = failure_of(lambda: check_ingress(limits(root=root), PORT, ACCEPTED), CniError)
    assert error is None or error.code == 999
    return error and (error.msg, error.details)


def egress(found, bucket=OURS):
    """Returns the same of the way to the ifb, which has a token bucket unless that is None."""
    host = Host(bucket and traffic.create_tbf_request(IFB.index, bucket))
    error = failure_of(lambda: check_egress(host, found, PORT, ACCEPTED), CniError)
    assert error is None or error.code == 999
    return error and (error.msg, error.details)


@pytest.mark.parametrize("bucket", ACCEPTED)
def test_the_references_limits_are_as_good_as_ours(bucket):
    """Our numbers, the reference's where its 32 bits wrap around, and where they saturate, are all right."""
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
def test_changed_numbers(changes, msg, details):
    """What differs is named in the reference's words, with what it is and should be; a mixture is not right."""
    bucket = replace(OURS, **changes)
    expected = (msg, f"{details}; {AGAIN}")
    assert ingress(Qdisc("tbf", 0x10000, bucket)) == expected
    assert egress(limits(), bucket) == expected


@pytest.mark.parametrize(
    ("root", "what"),
    [(None, "none"), (Qdisc("noqueue", 0), "noqueue"), (Qdisc("fq", 0x10000), "fq"), (Qdisc("tbf", 0x10000), "tbf")],
)
def test_a_bucket_that_is_gone(root, what):
    """Another root qdisc, or a token bucket filter that tells no numbers, is no limit."""
    details = f'packets that the pod receives are not limited on "veth0": its root qdisc is {what}; {AGAIN}'
    assert ingress(root) == ("Failed to find qdisc", details)


def test_an_ifbs_bucket_that_is_gone():
    """What the pod sends is not limited when the ifb has no token bucket."""
    details = f'packets that the pod sends are not limited on "bwp012345678901": its root qdisc is none; {AGAIN}'
    assert egress(limits(), None) == ("Failed to find qdisc", details)


def test_an_ifb_that_is_gone_or_down():
    """Without an ifb the words are the reference's; one that is down lets nothing pass."""
    missing = "get ifb device: Link not found", f"packets that the pod sends are not limited; {AGAIN}"
    assert egress(limits(ifbs=())) == missing
    down = "Interface bwp012345678901 is down", 'set it up: ip link set "bwp012345678901" up'
    assert egress(limits(ifbs=(IFB._replace(flags=0),))) == down


SOME = replace(REDIRECT, target=8, matches_all=False)  # leads some packets elsewhere


@pytest.mark.parametrize(
    ("filters", "hint"),
    [
        ((REDIRECT,), None),
        ((SOME, REDIRECT), None),
        ((REDIRECT, replace(REDIRECT, target=8)), None),
        ((), "no ingress filter redirects them"),
        ((SOME,), "no ingress filter redirects them"),
        ((replace(REDIRECT, matches_all=False),), "no ingress filter redirects them"),
        ((replace(REDIRECT, target=0),), "no ingress filter redirects them"),
        ((replace(REDIRECT, target=8), REDIRECT), "an earlier ingress filter matches every packet"),
        ((Filter(1, 0x10800, matches_all=True), REDIRECT), "an earlier ingress filter matches every packet"),
    ],
)
def test_filters_that_lead_elsewhere(filters, hint):
    """All that the pod sends must be led to the ifb, by the first filter that takes everything."""
    found = egress(limits(filters=filters))
    msg = 'packets that "veth0" receives are not redirected to "bwp012345678901"'
    assert found == (hint and (msg, f"{hint}; {AGAIN}"))


def test_only_the_numbers_of_this_limit():
    """Another limit's numbers are not right, even where each of them is that of something accepted."""
    other = compute_shape(Limit(20_000_000, 2_000_000), 1500, 0).bucket
    assert ingress(Qdisc("tbf", 0x10000, other)) == (
        "Rate doesn't match",
        f"it is 2500000 bytes/s, not 1250000; {AGAIN}",
    )
    assert ingress(Qdisc("tbf", 0x10000, Bucket(OURS.rate, SATURATED.size, OURS.limit)))[0] == "Buffer doesn't match"
