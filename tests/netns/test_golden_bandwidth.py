"""The limits that bandwidth sets, compared with those that the reference set.

tests/data/golden/README.md tells where the files come from.
"""

import pytest

from kernel import link, traffic
from kernel.rtnl import Socket
from kernel.traffic import Bucket, Qdisc
from tests.support import golden
from tests.support.golden import CONTAINER_ID
from tests.support.invocation import run_plugin

pytestmark = pytest.mark.needs("ifb", "tbf")

ORDINARY = [name for name in golden.scenarios("bandwidth-") if "-burst-" not in name]

# The second of its two actions on each packet, which never comes into effect as the first one takes it away.
SECOND = "\taction order 2: mirred (Egress Redirect to device bwpf42161b9e0c3) pass", "\tindex 2 ref 1 bind 1"

# What runtimes send as a burst wraps around in the reference; ours is 50 ms at the rate, and the queue 75 ms.
SANE = "qdisc tbf 1: dev PORT root rate 10Mbit burst 62500b/1 mpu 0b lat 25ms linklayer unspec"
WRAPPED = {
    "bandwidth-burst-containerd": Bucket(1_250_000, 2_415_919_079, 536_902_161),
    "bandwidth-burst-crio": Bucket(1_250_000, 2_147_483_619, 31_248),
}


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
    """A function that makes the pod of a scenario."""
    return lambda expected: Limited(host, sandbox, expected)


@pytest.mark.parametrize("name", ORDINARY)
def test_add_sets_what_the_reference_set(limited, name):
    """Result, ifb, qdiscs and filters equal the reference's, but for an action too many; CHECK accepts, DEL removes."""
    expected = golden.scenario(name)
    pod = limited(expected)
    before = pod.shaping()
    result = pod.run("ADD").result()
    assert golden.result(result) == expected["result"]
    found = pod.ifbs()
    assert found.keys() == expected["ifbs"].keys()
    for ifb, attributes in expected["ifbs"].items():
        assert attributes.keys() <= found[ifb].keys()
        assert {key: found[ifb][key] for key in attributes} == attributes
        assert "qlen" not in found[ifb]
    assert pod.shaping() == [line for line in expected["tc"] if line not in SECOND]
    assert [line for line in expected["tc"] if line in SECOND] == list(SECOND if found else ())
    pod.run("CHECK", prevResult=result).assert_silent()
    pod.run("DEL", prevResult=result).assert_silent()
    assert pod.shaping() == before
    assert not pod.ifbs()


@pytest.mark.parametrize("name", WRAPPED)
def test_an_invented_burst_is_a_sane_one(limited, name):
    """Where the reference wraps around, ours limits; CHECK accepts both, but no mixture."""
    expected = golden.scenario(name)
    pod = limited(expected)
    added = pod.run("ADD")
    assert golden.result(added.result()) == expected["result"]
    assert added.stderr == ""
    assert pod.shaping() == [SANE]
    pod.run("CHECK").assert_silent()
    with pod.host.entered():
        socket = Socket()
    with socket:
        (port,) = link.get(socket, link.by_name_request(pod.port))
        theirs = WRAPPED[name]
        socket.change(
            traffic.delete_root_request(port.index, Qdisc("tbf", 0x10000)),
            traffic.create_tbf_request(port.index, theirs),
        )
        assert pod.shaping() == expected["tc"]
        pod.run("CHECK").assert_silent()
        mixed = Bucket(theirs.rate, theirs.size, 93_750)
        socket.change(
            traffic.delete_root_request(port.index, Qdisc("tbf", 0x10000)),
            traffic.create_tbf_request(port.index, mixed),
        )
    assert pod.run("CHECK").error()["msg"] == "Buffer doesn't match"
    pod.run("DEL").assert_silent()
    assert pod.shaping() == ["qdisc noqueue 0: dev PORT root"]
