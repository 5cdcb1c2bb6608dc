"""ADD that fails half way leaves the host and the sandbox as they were: each step, by failing the one after it."""

import os
import signal
import time
from contextlib import suppress

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
    """A function that runs an ADD which must fail and returns its error; afterwards all is as it was."""

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
    """A function that waits until the holding IPAM plugin was reached; it is ended after the test."""
    file = tmp_path / "ipam" / "reached"

    def wait():
        deadline = time.monotonic() + 20
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline, "IPAM was not reached"
            time.sleep(0.01)

    yield wait
    with suppress(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGKILL)


CASES = {
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
def test_nothing_is_left(scripted_network, fails, ipam_calls, network, new_sandbox, case, with_bridge):
    """Whatever fails in or after IPAM, all is as before and the lease released; a bridge with pods still works."""
    ips, body, answer, (code, text) = CASES[case]
    if with_bridge:
        other = new_sandbox()
        network.add(other)
    error = fails(scripted_network(ips, body=body, **answer))
    assert error["code"] == code
    assert error["msg"].startswith(text)
    assert ipam_calls() == ["ADD", "DEL"]
    assert not with_bridge or reaches(other, "10.22.0.1")


def test_an_mtu_too_small_for_ipv6(scripted_network, fails, ipam_calls):
    """An IPv6 address where the MTU is to be below 1280 fails ADD after IPAM, and all is taken back."""
    error = fails(scripted_network([{"address": "fd00:22::9/64"}], keys={"mtu": 1000, "isDefaultGateway": False}))
    assert error["msg"] == '"mtu" 1000 is too small for the IPv6 addresses that IPAM allocates'
    assert ipam_calls() == ["ADD", "DEL"]


def test_an_exhausted_range(network, fails, new_sandbox):
    """When host-local has no address left, ADD fails and the pods that have one are not disturbed."""
    subnet = {"subnet": "10.22.0.0/30"}
    net = network.having(ipam={**network.config["ipam"], "ranges": [[subnet]]})
    other = new_sandbox()
    net.add(other)
    leases = net.leases()
    fails(net)
    assert net.leases() == leases
    assert reaches(other, "10.22.0.1")


def test_the_lease_is_released(network, fails, new_sandbox):
    """The address that host-local gave is free again when a later step fails."""
    network.add(new_sandbox())
    other = network.having(ipam={**network.config["ipam"], "ranges": [[{"subnet": "10.33.0.0/16"}]]}, name="other")
    assert "already has an IP address different from" in fails(other)["msg"]
    assert other.leases() == {}


def test_a_failed_release_is_told_and_the_rest_taken_back(scripted_network, network, sandbox):
    """When IPAM cannot release either, the first error is the answer, stderr has the second, and the link goes."""
    body = """printf '{"code": 5, "msg": "%s failed"}' "$CNI_COMMAND"; exit 1"""
    before = state(network.host), state(sandbox)
    outcome = scripted_network(body=body).run("ADD", sandbox)
    assert outcome.error()["msg"] == "ADD failed"
    assert "DEL failed" in outcome.stderr
    assert (state(network.host), state(sandbox)) == before


def test_the_reason_for_the_failure_goes_and_add_succeeds(scripted_network, fails, sandbox):
    """After a failed ADD the same ADD succeeds once the reason is gone, with no DEL between."""
    fails(scripted_network(body=FAIL))
    assert reaches(sandbox, scripted_network([IP]).add(sandbox)["ips"][0]["gateway"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_add(scripted_network, sandbox, ipam_calls, reached, number):
    """SIGTERM while IPAM works ends IPAM, takes everything back and is answered with code 11."""
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


def test_the_plugin_killed_in_the_middle_of_add(scripted_network, sandbox, ipam_calls, reached):
    """After SIGKILL nothing can be taken back at once; DEL without a result does it later."""
    net = scripted_network([IP], body=HOLD)
    process = net.start("ADD", sandbox)
    reached()
    process.kill()
    assert finish(process).status == -signal.SIGKILL
    net.delete(sandbox)
    assert (set(links(net.host)), set(links(sandbox))) == ({"lo", "cni0"}, {"lo"})
    assert ipam_calls() == ["ADD", "DEL"]
    scripted_network([IP]).add(sandbox)


def test_a_signal_in_the_middle_of_del(scripted_network, sandbox, tmp_path, reached):
    """SIGTERM while IPAM releases is answered with code 11; the next DEL finishes the work."""
    scripted_network([IP]).add(sandbox)
    net = scripted_network([IP], body=HOLD.replace("!= ADD", "!= DEL"))
    process = net.start("DEL", sandbox)
    reached()
    process.terminate()
    assert finish(process).error()["code"] == 11
    scripted_network([IP]).delete(sandbox)
    assert set(links(sandbox)) == {"lo"}


def test_a_bridge_that_others_have_joined_stays(scripted_network, network, sandbox, new_sandbox, reached):
    """A bridge made by an ADD that fails later stays when another pod has joined it in between."""
    process = scripted_network([IP], body=HOLD).start("ADD", sandbox)
    reached()
    other = new_sandbox()
    result = network.add(other)
    process.terminate()
    finish(process).error()
    assert set(links(network.host)) == {"lo", "cni0", result["interfaces"][1]["name"]}
    assert reaches(other, result["ips"][0]["gateway"])
    network.check(other, result)
