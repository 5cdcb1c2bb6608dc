"""The configuration of bandwidth as a value (plugins.bandwidth.conf)."""

import pytest

from plugins.bandwidth.conf import BandwidthConf
from plugins.bandwidth.limit import Limit
from tests.support.netconf import parse, refusal

NOTHING = BandwidthConf(None, None, 0)
IN = {"ingressRate": 8_000_000, "ingressBurst": 800_000}
OUT = {"egressRate": 16_000_000, "egressBurst": 1_600_000}
LIMIT_IN, LIMIT_OUT = Limit(8_000_000, 800_000), Limit(16_000_000, 1_600_000)
RATE_WITHOUT, BURST_WITHOUT = "if rate is set, burst must also be set", "if burst is set, rate must also be set"
NO_BURST = '"{at}Burst" is missing or 0; a tenth of "{key}Rate" is a good burst (both in bits)'
NO_RATE = '"{at}Rate" is missing or 0'
LARGEST = 8 * ((1 << 32) - 1)
PARSING = "failed to parse network configuration: "


def parsed(keys):
    return parse("bandwidth", keys)


def runtime(keys):
    return {"runtimeConfig": {"bandwidth": keys}}


@pytest.mark.parametrize("place", [lambda keys: keys, runtime])
@pytest.mark.parametrize(
    ("keys", "ingress", "egress"),
    [
        (IN, LIMIT_IN, None),
        (OUT, None, LIMIT_OUT),
        (IN | OUT, LIMIT_IN, LIMIT_OUT),
        (IN | {"egressRate": 0, "egressBurst": 0}, LIMIT_IN, None),
        ({key.capitalize(): value for key, value in IN.items()}, LIMIT_IN, None),  # containerd's spelling
        ({"ingressRate": 8, "ingressBurst": 1}, Limit(8, 1), None),
        ({"egressRate": (1 << 64) - 1, "egressBurst": LARGEST - 1}, None, Limit((1 << 64) - 1, LARGEST - 1)),
    ],
)
def test_each_direction_has_its_limit(place, keys, ingress, egress):
    """Each direction has its rate and burst, from the configuration or from the runtime."""
    conf = parsed(place(keys))
    assert conf == BandwidthConf(ingress, egress, 0)
    assert conf.has_limits


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        (OUT, BandwidthConf(None, LIMIT_OUT, 0)),
        ({"egressRate": 0}, NOTHING),
        ({"INGRESSBURST": 0}, NOTHING),
        ({"egressRate": None}, BandwidthConf(LIMIT_IN, None, 0)),
        ({"maxBurst": 5}, BandwidthConf(LIMIT_IN, None, 5)),
    ],
)
def test_configuration_overrides_the_runtime(static, expected):
    """Any of the four keys in the configuration, even 0, disables the runtime's limits."""
    assert parsed(static | runtime(IN)) == expected


def test_max_burst_of_the_runtime_is_ignored():
    """The runtime's "maxBurst" is ignored."""
    assert parsed({**IN, "maxBurst": 12_000}).max_burst == 12_000
    assert parsed(runtime({**IN, "maxBurst": 12_000})).max_burst == 0


@pytest.mark.parametrize("place", [lambda keys: keys, runtime])
@pytest.mark.parametrize("direction", ["ingress", "egress"])
@pytest.mark.parametrize(
    ("rate", "burst", "msg", "details"),
    [
        (8000, None, RATE_WITHOUT, NO_BURST),
        (8000, 0, RATE_WITHOUT, NO_BURST),
        (None, 8000, BURST_WITHOUT, NO_RATE),
        (0, 8000, BURST_WITHOUT, NO_RATE),
        (8, LARGEST, "burst cannot be more than 4GB", f'"{{at}}Burst" is {LARGEST} bits; it must be below {LARGEST}'),
        (0, LARGEST, BURST_WITHOUT, NO_RATE),
        (7, 8000, PARSING + '"{at}Rate" must be 0 or at least 8, not 7', "it is in bits per second"),
    ],
)
def test_invalid_limits_are_refused(place, direction, rate, burst, msg, details):
    """A rate without burst, a burst without rate or beyond 4 GB, and less than a byte per second are refused."""
    keys = {f"{direction}Rate": rate, f"{direction}Burst": burst}
    failure = refusal("bandwidth", place({key: value for key, value in keys.items() if value is not None}))
    at = f"runtimeConfig.bandwidth.{direction}" if place is runtime else direction
    assert (failure.code, failure.msg) == (7, msg.format(at=at))
    assert failure.details == details.format(at=at, key=direction)
