"""The limits that bandwidth sets, compared with those of the reference plugin.

tests/data/golden/README.md describes the source of the files.
"""

import pytest

from tests.support import golden
from tests.support.golden import CONTAINER_ID
from tests.support.invocation import run_plugin

pytestmark = pytest.mark.needs("ifb", "tbf")

ORDINARY = [name for name in golden.scenarios("bandwidth-") if "-burst-" not in name]

# The second of the reference plugin's two actions, which has no effect, since the first one redirects each packet.
SECOND = "\taction order 2: mirred (Egress Redirect to device bwpf42161b9e0c3) pass", "\tindex 2 ref 1 bind 1"

# The bursts of these runtimes overflow in the reference plugin; podwire's are 50 ms at the rate, the queue 75 ms.
VALID = "qdisc tbf 1: dev PORT root rate 10Mbit burst 62500b/1 mpu 0b lat 25ms linklayer unspec"


class Limited:
    """A pod with the interface of a scenario, and its bandwidth plugin."""

    def __init__(self, host, sandbox, expected):
        self.host, self.sandbox, self.config = host, sandbox, expected["config"]
        self.port = self.config["prevResult"]["interfaces"][1]["name"]
        host.ip("link", "add", self.port, "up", "type", "veth", "peer", "name", "eth0", "netns", sandbox.name)
        sandbox.ip("link", "set", "eth0", "up")

    def run(self, command, **keys):
        config = {**self.config, **keys}
        how = {"host": self.host, "netns": self.sandbox, "container_id": CONTAINER_ID}
        return run_plugin("bandwidth", command, config, **how)

    def ifbs(self):
        return {name: shown for name, shown in golden.of(self.host)["links"].items() if "ifb" in shown}

    def shaping(self):
        return golden.shaping(self.host, self.port)


@pytest.fixture
def limited(bin_dir, host, sandbox):
    """A function that creates the pod of a scenario."""
    return lambda expected: Limited(host, sandbox, expected)


@pytest.mark.parametrize("name", ORDINARY)
def test_add_sets_the_golden_limits(limited, name):
    """Result, ifb, qdiscs and filters equal the reference plugin's but for its second action; CHECK and DEL succeed."""
    expected = golden.scenario(name)
    pod = limited(expected)
    before = pod.shaping()
    result = pod.run("ADD").result()
    assert golden.result(result) == expected["result"]
    ifbs = pod.ifbs()
    assert ifbs.keys() == expected["ifbs"].keys()
    for ifb, attributes in expected["ifbs"].items():
        common = attributes.keys() & ifbs[ifb].keys()
        assert common >= attributes.keys() - golden.NEWER_ATTRIBUTES
        assert {key: ifbs[ifb][key] for key in common} == {key: attributes[key] for key in common}
        assert "qlen" not in ifbs[ifb]
    assert pod.shaping() == [line for line in expected["tc"] if line not in SECOND]
    assert [line for line in expected["tc"] if line in SECOND] == list(SECOND if ifbs else ())
    pod.run("CHECK", prevResult=result).assert_silent()
    pod.run("DEL", prevResult=result).assert_silent()
    assert pod.shaping() == before
    assert not pod.ifbs()


@pytest.mark.parametrize("name", ["bandwidth-burst-containerd", "bandwidth-burst-crio"])
def test_a_runtimes_overflowing_burst_is_replaced(limited, name):
    """A burst that overflows in the reference plugin becomes a valid one, without a message; CHECK and DEL succeed."""
    expected = golden.scenario(name)
    pod = limited(expected)
    added = pod.run("ADD")
    assert (golden.result(added.result()), added.stderr) == (expected["result"], "")
    assert pod.shaping() == [VALID] != expected["tc"]
    pod.run("CHECK").assert_silent()
    pod.run("DEL").assert_silent()
    assert pod.shaping() == ["qdisc noqueue 0: dev PORT root"]
