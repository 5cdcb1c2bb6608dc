"""An ADD of vrf that fails at any step leaves the pod as it was."""

import contextlib
import errno
import io
import json

import pytest

from cni import skel
from podwire.main import PLUGINS
from tests.support import binaries
from tests.support.invocation import Outcome, environment
from tests.support.netlink_faults import Disturbance, disturbed
from tests.support.streams import MemoryStdin
from tests.support.vrf_network import connect, default_routes, state

pytestmark = pytest.mark.needs("vrf")


@pytest.fixture
def prev_result(host, sandbox):
    """The result of an interface plugin with routes of all kinds, one of them shared with a second interface."""
    result = default_routes(sandbox, connect(host, sandbox))
    default_routes(sandbox, connect(host, sandbox, "net1", number=2), "net1", number=2)
    add_routes(sandbox)
    return result


def add_routes(sandbox):
    for line in (
        "192.0.2.0/24 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev net1",
        "192.0.3.0/24 via 10.1.0.1 metric 5 mtu 1300 src 10.1.0.2",
        "192.0.4.0/24 dev eth0 scope link",
        "192.0.6.0/24 via 10.1.0.1 table 300",
        "2001:db8:1::/48 via fd00:1::1 dev eth0 metric 7 src fd00:1::2",
        "2001:db8:3::/48 nexthop via fd00:1::7 dev eth0 nexthop via fd00:1::8 dev eth0",
    ):
        sandbox.ip("-6" if ":" in line else "-4", "route", "replace", *line.split())


def run_disturbed(network, command, pod, prev_result, disturbance):
    """Runs a verb from the sources in this process, with a fault in one of its netlink requests."""
    names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
    env = environment(command, CNI_PATH=str(binaries.directory()), **names)
    stdin = MemoryStdin(json.dumps({**network.config, "prevResult": prev_result}).encode())
    stdout, stderr = io.BytesIO(), io.StringIO()
    with network.host.entered(), disturbed(disturbance), contextlib.redirect_stderr(stderr):
        status = skel.run(PLUGINS["vrf"], env, stdin, stdout, about="")
    return Outcome(status, stdout.getvalue(), stderr.getvalue())


def count_requests(network, command, pod, prev_result):
    """Returns the number of netlink requests of a verb that succeeds."""
    undisturbed = Disturbance()
    assert run_disturbed(network, command, pod, prev_result, undisturbed).status == 0
    return len(undisturbed.seen)


def disturb_each(network, pod, prev_result, how, code=0):
    """Runs ADD with a fault in its first request, then in the second, until it succeeds; yields the failures."""
    number = 1
    while (outcome := run_disturbed(network, "ADD", pod, prev_result, Disturbance(number, how, code))).status:
        yield number, outcome
        number += 1
    assert number > 15


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EPERM])
def test_refused_request(blue, sandbox, prev_result, code):
    """If the kernel refuses any request of ADD, ADD fails and addresses, routes and links are as before."""
    before = state(sandbox)
    for number, outcome in disturb_each(blue, sandbox, prev_result, "refused", code):
        assert outcome.error()["msg"].startswith("cmdAdd failed: "), number
        assert outcome.stderr == "", number
        assert state(sandbox) == before, number


@pytest.mark.long
def test_lost_answer(blue, sandbox, prev_result):
    """If the answer to any request of ADD is lost, ADD fails and the pod is as before."""
    before = state(sandbox)
    for number, outcome in disturb_each(blue, sandbox, prev_result, "lost"):
        assert outcome.error()["code"] == 999, number
        assert state(sandbox) == before, number


def test_refused_request_of_del(blue, sandbox, prev_result):
    """If the kernel refuses any request of DEL, DEL fails, and the next one removes everything."""
    blue.add(sandbox, prev_result)
    count = count_requests(blue, "DEL", sandbox, prev_result)
    for number in range(1, count + 1):
        blue.add(sandbox, prev_result)
        outcome = run_disturbed(blue, "DEL", sandbox, prev_result, Disturbance(number, "refused", errno.ENOMEM))
        assert outcome.error()["code"] == 999
        blue.delete(sandbox, prev_result)
        assert "blue" not in state(sandbox)["links"]
