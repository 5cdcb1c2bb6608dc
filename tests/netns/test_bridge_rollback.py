"""Rollback of ADD: each step is undone when the step after it fails."""

import os
import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.support.attaching import reaches
from tests.support.invocation import finish
from tests.support.netstate import links, state

IP = {"address": "10.22.0.9/16"}
FAIL = """[ "$CNI_COMMAND" != ADD ] || { echo '{"code": 11, "msg": "no luck today"}'; exit 1; }"""
ROUTE = "failed to add route '192.0.2.0/24 via {} dev eth0 metric 0 (Scope: 0, Table: 254)': "
HOLD = """[ "$CNI_COMMAND" != ADD ] || { echo $$ > "$here/reached"; exec sleep 60 2>&-; }"""


@pytest.fixture
def fails(network, sandbox):
    """A function that runs a failing ADD and returns its error; the state must be the same as before."""

    def run(net, **how):
        before = state(network.host), state(sandbox)
        outcome = net.run("ADD", sandbox, **how)
        error = outcome.error()
        assert (state(network.host), state(sandbox)) == before
        assert outcome.stderr == ""
        return error

    return run


@pytest.fixture
def reached(tmp_path):
    """A function that waits until the blocking IPAM plugin runs; the fixture kills that plugin afterwards."""
    file = tmp_path / "ipam" / "reached"

    def wait():
        deadline = time.monotonic() + 20
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline, "IPAM was not reached"
            time.sleep(0.01)

    yield wait
    with suppress(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGKILL)


CASES: dict[str, tuple[list[Any], str, dict[str, Any], tuple[int, str]]] = {
    "IPAM fails": ([], FAIL, {}, (11, "no luck today")),
    "IPAM gives no address": ([], "", {}, (999, "IPAM plugin returned missing IP config")),
    "IPAM is killed": ([], '[ "$CNI_COMMAND" != ADD ] || kill -9 $$', {}, (999, "netplugin failed with no error")),
    "IPAM prints no JSON": ([IP], "[ $CNI_COMMAND != ADD ] || echo oops", {}, (6, "plugin scripted printed no result")),
    "IPAM prints nothing": ([], '[ "$CNI_COMMAND" != ADD ] || exit 0', {}, (6, "plugin scripted printed no result")),
    "IPAM prints no address": ([{"address": "10.22.0"}], "", {}, (7, "failed to decode result")),
    "IPAM's DNS is unusable": ([IP], "", {"dns": {"nameservers": "10.0.0.53"}}, (7, "failed to decode result")),
    "IPAM's version is unknown": ([IP], "", {"cniVersion": "7.0.0"}, (7, "")),
    "an address twice": ([IP, IP], "", {}, (999, 'failed to add IP addr 10.22.0.9/16 to "eth0": file exists')),
    "a gateway out of reach": (
        [IP],
        "",
        {"routes": [{"dst": "192.0.2.0/24", "gw": "172.31.0.1"}]},
        (999, ROUTE.format("172.31.0.1") + "network is unreachable"),
    ),
    "a route twice": (
        [IP],
        "",
        {"routes": [{"dst": "192.0.2.0/24"}, {"dst": "192.0.2.0/24"}]},
        (999, ROUTE.format("10.22.0.1") + "file exists"),
    ),
}


@pytest.mark.parametrize("with_bridge", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_failed_add_leaves_nothing(scripted_network, fails, ipam_calls, network, new_sandbox, case, with_bridge):
    """If IPAM or a later step fails, the state is as before and the lease released; other pods still work."""
    ips, body, ipam_keys, (code, text) = CASES[case]
    if with_bridge:
        other = new_sandbox()
        network.add(other)
    error = fails(scripted_network(ips, body=body, **ipam_keys))
    assert error["code"] == code
    assert error["msg"].startswith(text)
    assert ipam_calls() == ["ADD", "DEL"]
    assert not with_bridge or reaches(other, "10.22.0.1")


def test_an_exhausted_range(network, fails, new_sandbox):
    """If host-local has no address left, ADD fails and other pods are not disturbed."""
    subnet = {"subnet": "10.22.0.0/30"}
    net = network.having(ipam={**network.config["ipam"], "ranges": [[subnet]]})
    other = new_sandbox()
    net.add(other)
    leases = net.leases()
    fails(net)
    assert net.leases() == leases
    assert reaches(other, "10.22.0.1")


def test_failed_release_does_not_stop_the_rollback(scripted_network, network, sandbox):
    """If IPAM's DEL fails during rollback, ADD returns the first error, prints the second and deletes the link."""
    body = """printf '{"code": 5, "msg": "%s failed"}' "$CNI_COMMAND"; exit 1"""
    before = state(network.host), state(sandbox)
    outcome = scripted_network(body=body).run("ADD", sandbox)
    assert outcome.error()["msg"] == "ADD failed"
    assert "DEL failed" in outcome.stderr
    assert (state(network.host), state(sandbox)) == before


def test_add_succeeds_after_a_failed_add(scripted_network, fails, sandbox):
    """After a failed ADD the next ADD succeeds without a DEL in between."""
    fails(scripted_network(body=FAIL))
    assert reaches(sandbox, scripted_network([IP]).add(sandbox)["ips"][0]["gateway"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_add(scripted_network, sandbox, ipam_calls, reached, number):
    """SIGTERM and SIGINT during IPAM end IPAM, and ADD is rolled back with code 11."""
    net = scripted_network([IP], body=HOLD)
    before = state(net.host), state(sandbox)
    process = net.start("ADD", sandbox)
    reached()
    assert "eth0" in links(sandbox)
    process.send_signal(number)
    error = finish(process).error()
    assert (error["code"], error["msg"]) == (11, "interrupted by a signal")
    assert (state(net.host), state(sandbox)) == before
    assert ipam_calls() == ["ADD", "DEL"]
    net.delete(sandbox)


def test_sigkill_during_add(scripted_network, sandbox, ipam_calls, reached):
    """After SIGKILL, DEL without a result deletes what ADD created."""
    net = scripted_network([IP], body=HOLD)
    process = net.start("ADD", sandbox)
    reached()
    process.kill()
    assert finish(process).status == -signal.SIGKILL
    net.delete(sandbox)
    assert (set(links(net.host)), set(links(sandbox))) == ({"lo", "cni0"}, {"lo"})
    assert ipam_calls() == ["ADD", "DEL"]
    scripted_network([IP]).add(sandbox)


def test_signal_during_del(scripted_network, sandbox, tmp_path, reached):
    """SIGTERM during IPAM's DEL returns code 11; the next DEL completes the work."""
    scripted_network([IP]).add(sandbox)
    net = scripted_network([IP], body=HOLD.replace("!= ADD", "!= DEL"))
    process = net.start("DEL", sandbox)
    reached()
    process.terminate()
    assert finish(process).error()["code"] == 11
    scripted_network([IP]).delete(sandbox)
    assert set(links(sandbox)) == {"lo"}


def test_failed_add_keeps_a_bridge_with_other_ports(scripted_network, network, sandbox, new_sandbox, reached):
    """A failed ADD keeps the bridge that it created if another pod was attached to it meanwhile."""
    process = scripted_network([IP], body=HOLD).start("ADD", sandbox)
    reached()
    other = new_sandbox()
    result = network.add(other)
    process.terminate()
    finish(process).error()
    assert set(links(network.host)) == {"lo", "cni0", result["interfaces"][1]["name"]}
    assert reaches(other, result["ips"][0]["gateway"])
    network.check(other, result)
