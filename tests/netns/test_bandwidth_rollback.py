"""ADD of bandwidth that fails or is killed leaves no part of the limits, and what others made is never touched."""

import errno
import os
import re

import pytest

from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifb_name, ifbs, qdiscs, state
from tests.support.injection import run_injected

pytestmark = pytest.mark.needs("ifb", "tbf")

ALL = "protocol all prio 1 u32 match u32 0 0 flowid 1:1"
SMTP = "protocol all prio 1 u32 match ip dport 25 0xffff flowid 1:1"


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


@pytest.fixture
def fails(shaped, sandbox, before):
    """A function that runs an ADD which must fail and returns its error; afterwards all is as it was."""

    def run(net=shaped):
        seen = state(net.host)
        outcome = net.bandwidth("ADD", sandbox, before)
        error = outcome.error()
        assert state(net.host) == seen
        assert outcome.stderr == ""
        return error

    return run


def tc(net, *lines):
    """Runs tc on the host."""
    for line in lines:
        net.host.run("tc", *line.split())


def compute_shape(net, sandbox, before):
    """Limits the pod, demands that it is limited, takes the limits away."""
    result = net.limit(sandbox, before)
    assert any(line.startswith("qdisc tbf 1: dev veth0 root") for line in qdiscs(net.host))
    net.check(sandbox, result)
    net.release(sandbox)


ROOTS = ["root pfifo limit 9", "root handle 9: pfifo", "root handle 7: tbf rate 1mbit burst 10kb latency 10ms"]


@pytest.mark.parametrize("root", ROOTS)
def test_a_root_qdisc_of_others(shaped, sandbox, before, fails, root):
    """Where others limit the veth already ADD is refused, after all else was made, and takes it back; DEL spares it."""
    tc(shaped, f"qdisc add dev veth0 {root}")
    for net in (shaped, shaped.with_runtime_limits(**INGRESS)):
        error = fails(net)
        assert (error["code"], error["msg"]) == (999, "failed to create qdisc: file exists")
        assert 'another program limits "veth0" or has the ifb' in error["details"]
    seen = state(shaped.host)
    shaped.release(sandbox)
    assert state(shaped.host) == seen
    sends = shaped.with_runtime_limits(**EGRESS)
    sends.check(sandbox, sends.limit(sandbox, before))
    sends.release(sandbox)
    assert state(shaped.host) == seen
    tc(shaped, "qdisc delete dev veth0 root")
    compute_shape(shaped, sandbox, before)


@pytest.mark.parametrize("limits", [BOTH, INGRESS])
@pytest.mark.parametrize(
    "theirs",
    [
        ["qdisc add dev veth0 clsact"],
        ["qdisc add dev veth0 clsact", f"filter add dev veth0 ingress {SMTP}", f"filter add dev veth0 egress {ALL}"],
        ["qdisc add dev veth0 clsact", f"filter add dev veth0 ingress {ALL.replace('prio 1', 'prio 9')}"],
        ["qdisc add dev veth0 ingress", f"filter add dev veth0 ingress {SMTP}"],
        ["qdisc add dev veth0 ingress", f"filter add dev veth0 ingress {ALL.replace('prio 1', 'prio 9')}"],
    ],
)
def test_filters_of_others(shaped, sandbox, before, limits, theirs):
    """Beside a clsact or ingress qdisc with filters of others limits work; DEL takes away nothing but ours."""
    tc(shaped, *theirs)
    seen = state(shaped.host)
    compute_shape(shaped.with_runtime_limits(**limits), sandbox, before)
    assert state(shaped.host) == seen


def test_a_place_that_others_have_just_made(shaped, sandbox, before, fails):
    """An ingress qdisc without any filter yet stays where no limit of ours needed one, and where ADD failed."""
    tc(shaped, "qdisc add dev veth0 ingress")
    seen = state(shaped.host)
    compute_shape(shaped.with_runtime_limits(**INGRESS), sandbox, before)
    assert state(shaped.host) == seen
    tc(shaped, "qdisc add dev veth0 root pfifo limit 9")
    fails()


@pytest.mark.needs("matchall")
def test_another_kind_of_filter_in_our_place(shaped, fails):
    """Where a filter of another kind has the first priority ADD is refused, and says why."""
    tc(shaped, "qdisc add dev veth0 clsact", "filter add dev veth0 ingress protocol all prio 1 matchall action pass")
    error = fails()
    assert error["msg"] == "failed to add filter: invalid argument"
    assert 'another program filters "veth0": tc filter show dev "veth0" ingress' in error["details"]


@pytest.mark.parametrize(("kind", "text"), [("ifb", "mine"), ("bridge", "")])
def test_a_stranger_with_the_ifbs_name(shaped, sandbox, before, kind, text):
    """What others gave the ifb's name stays: ours has another name; where that is taken, too, ADD fails."""
    name = ifb_name(sandbox.name)
    _stranger(shaped.host, name, kind, text)
    seen = state(shaped.host)
    result = shaped.limit(sandbox, before)
    other = result["interfaces"][-1]["name"]
    assert other != name
    shaped.check(sandbox, result)
    shaped.release(sandbox)
    assert state(shaped.host) == seen
    _stranger(shaped.host, other, kind, text or "mine")
    seen = state(shaped.host)
    error = shaped.bandwidth("ADD", sandbox, before).error()
    assert (error["code"], error["msg"]) == (999, f'failed to create ifb "{other}": file exists')
    assert f'ip link show dev "{other}"' in error["details"]
    assert state(shaped.host) == seen


def _stranger(host, name, kind, text):
    host.ip("link", "add", name, "type", kind)
    host.ip("link", "set", name, "alias", text)


def test_an_ifb_of_the_reference_left_over(shaped, sandbox, before):
    """An ifb of the right name without a text is what the reference left of this container: ADD replaces it."""
    shaped.host.ip("link", "add", ifb_name(sandbox.name), "type", "ifb")
    compute_shape(shaped, sandbox, before)
    assert ifbs(shaped.host) == {}


def test_indexes_that_are_taken(shaped, sandbox, before):
    """Whatever has the indexes that an ifb of this veth would have, it gets one, and nothing else is touched."""
    index = int(shaped.host.ip("-o", "link", "show", "veth0").split(":")[0])
    for number, base in enumerate((1_000_000_000, 1_500_000_000)):
        shaped.host.ip("link", "add", f"other{number}", "index", str(base + index), "type", "ifb")
        seen = state(shaped.host)
        compute_shape(shaped, sandbox, before)
        assert state(shaped.host) == seen


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("call", ["read", "sendto", "recvfrom", "write"])
def test_sigterm_at_any_call_of_add(shaped, sandbox, before, call):
    """Whenever SIGTERM comes, ADD either succeeds and all is there, or fails with code 11 and nothing is."""
    config, empty = {**shaped.config, "prevResult": before}, state(shaped.host)
    for occurrence in (1, 2, 4, 6):
        outcome = run_injected(
            shaped.host, "bandwidth", "ADD", config, sandbox, f"{call}:signal=TERM:when={occurrence}"
        )
        if outcome.status == 0:
            shaped.check(sandbox, outcome.result())
            shaped.release(sandbox)
        else:
            assert outcome.error()["code"] == 11
        assert state(shaped.host) == empty


@pytest.mark.needs("syscall_injection")
def test_sigkill_at_any_call_of_add(shaped, sandbox, before):
    """Whenever SIGKILL comes, either all of the limits is there or nothing, and DEL takes it away."""
    config, empty = {**shaped.config, "prevResult": before}, state(shaped.host)
    whole = 0
    for call, occurrences in (("sendto", range(2, 7)), ("close", (3, 4)), ("write", (1,))):
        for occurrence in occurrences:
            injection = f"{call}:signal=KILL:when={occurrence}"
            killed = run_injected(shaped.host, "bandwidth", "ADD", config, sandbox, injection)
            if state(shaped.host) != empty:
                whole += killed.status != 0
                shaped.check(sandbox, before)
                shaped.release(sandbox)
            assert state(shaped.host) == empty
    assert whole > 1


@pytest.mark.needs("syscall_injection")
def test_sigterm_and_sigkill_during_del(shaped, sandbox, before):
    """A DEL that is killed at any send leaves what the next DEL removes."""
    empty = state(shaped.host)
    for name in ("TERM", "KILL"):
        for occurrence in range(3, 7):
            shaped.limit(sandbox, before)
            injection = f"sendto:signal={name}:when={occurrence}"
            run_injected(shaped.host, "bandwidth", "DEL", shaped.config, sandbox, injection, follow=True)
            shaped.release(sandbox)
            assert state(shaped.host) == empty


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("injection", ["close_range:signal=KILL", "clone:error=EAGAIN"])
def test_del_without_its_child(shaped, sandbox, before, injection):
    """Where the child that waits for the kernel dies, or cannot be made, DEL removes the ifb itself."""
    empty = state(shaped.host)
    shaped.limit(sandbox, before)
    run_injected(shaped.host, "bandwidth", "DEL", shaped.config, sandbox, injection, follow=True).assert_silent()
    assert state(shaped.host) == empty


def test_a_result_that_cannot_be_told(shaped, sandbox, before):
    """When the result cannot be written, the runtime takes ADD as failed: nothing of it stays."""
    config, empty = {**shaped.config, "prevResult": before}, state(shaped.host)
    with open("/dev/full", "wb") as full:
        outcome = run_injected(shaped.host, "bandwidth", "ADD", config, sandbox, stdout=full)
    assert outcome.status == 1
    assert re.search(r"podwire: error writing to stdout: .*" + os.strerror(errno.ENOSPC), outcome.stderr)
    assert state(shaped.host) == empty
