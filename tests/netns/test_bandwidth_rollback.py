"""An ADD of bandwidth that fails or is killed leaves no partial limits, and never changes objects of other programs."""

import pytest

from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, ifb_name, ifbs, qdiscs, state
from tests.support.injection import run_injected

pytestmark = pytest.mark.needs("ifb", "tbf")

MATCH_ALL = "protocol all prio 1 u32 match u32 0 0 flowid 1:1"
SMTP = "protocol all prio 1 u32 match ip dport 25 0xffff flowid 1:1"


@pytest.fixture
def failing_add(shaped, sandbox, veth_result):
    """A function that runs an ADD which must fail, checks that it is rolled back, and returns its error."""

    def run(net=shaped):
        before = state(net.host)
        outcome = net.bandwidth("ADD", sandbox, veth_result)
        error = outcome.error()
        assert state(net.host) == before
        assert outcome.stderr == ""
        return error

    return run


def add_and_remove_limits(net, sandbox, veth_result):
    """Limits the pod, checks the limits, removes them."""
    result = net.limit(sandbox, veth_result)
    assert any(line.startswith("qdisc tbf 1: dev veth0 root") for line in qdiscs(net.host))
    net.check(sandbox, result)
    net.release(sandbox)


ROOTS = ["root pfifo limit 9", "root handle 9: pfifo", "root handle 7: tbf rate 1mbit burst 10kb latency 10ms"]


@pytest.mark.parametrize("root", ROOTS)
def test_root_qdisc_of_another_program_is_kept(shaped, sandbox, veth_result, failing_add, root):
    """If another program limits the veth, ADD fails and is rolled back; DEL keeps that qdisc."""
    shaped.tc(f"qdisc add dev veth0 {root}")
    for net in (shaped, shaped.with_runtime_limits(**INGRESS)):
        error = failing_add(net)
        assert (error["code"], error["msg"]) == (999, "failed to create qdisc: file exists")
        assert 'another program limits "veth0" or has the ifb' in error["details"]
    before = state(shaped.host)
    shaped.release(sandbox)
    assert state(shaped.host) == before
    sends = shaped.with_runtime_limits(**EGRESS)
    sends.check(sandbox, sends.limit(sandbox, veth_result))
    sends.release(sandbox)
    assert state(shaped.host) == before
    shaped.tc("qdisc delete dev veth0 root")
    add_and_remove_limits(shaped, sandbox, veth_result)


@pytest.mark.parametrize("limits", [BOTH, INGRESS])
@pytest.mark.parametrize(
    "other_filters",
    [
        ["qdisc add dev veth0 clsact"],
        [
            "qdisc add dev veth0 clsact",
            f"filter add dev veth0 ingress {SMTP}",
            f"filter add dev veth0 egress {MATCH_ALL}",
        ],
        ["qdisc add dev veth0 clsact", f"filter add dev veth0 ingress {MATCH_ALL.replace('prio 1', 'prio 9')}"],
        ["qdisc add dev veth0 ingress", f"filter add dev veth0 ingress {SMTP}"],
        ["qdisc add dev veth0 ingress", f"filter add dev veth0 ingress {MATCH_ALL.replace('prio 1', 'prio 9')}"],
    ],
)
def test_filters_of_other_programs_are_kept(shaped, sandbox, veth_result, limits, other_filters):
    """Limits work with a clsact or ingress qdisc and filters of other programs; DEL removes only podwire's."""
    shaped.tc(*other_filters)
    before = state(shaped.host)
    add_and_remove_limits(shaped.with_runtime_limits(**limits), sandbox, veth_result)
    assert state(shaped.host) == before


def test_empty_ingress_qdisc_of_another_program_is_kept(shaped, sandbox, veth_result, failing_add):
    """An ingress qdisc without filters stays if podwire needs no filter there, and if ADD fails."""
    shaped.tc("qdisc add dev veth0 ingress")
    before = state(shaped.host)
    add_and_remove_limits(shaped.with_runtime_limits(**INGRESS), sandbox, veth_result)
    assert state(shaped.host) == before
    shaped.tc("qdisc add dev veth0 root pfifo limit 9")
    failing_add()


@pytest.mark.needs("matchall")
def test_first_filter_of_another_kind_fails_add(shaped, failing_add):
    """ADD fails if a filter of another kind has the first priority, and the details say so."""
    shaped.tc("qdisc add dev veth0 clsact", "filter add dev veth0 ingress protocol all prio 1 matchall action pass")
    error = failing_add()
    assert error["msg"] == "failed to add filter: invalid argument"
    assert 'another program filters "veth0": tc filter show dev "veth0" ingress' in error["details"]


@pytest.mark.parametrize(("kind", "text"), [("ifb", "mine"), ("bridge", "")])
def test_link_with_the_ifbs_name_is_kept(shaped, sandbox, veth_result, kind, text):
    """Another program's link with the ifb's name stays and the ifb gets the second name; if both exist, ADD fails."""
    name = ifb_name(sandbox.name)
    add_link(shaped.host, name, kind, text)
    before = state(shaped.host)
    result = shaped.limit(sandbox, veth_result)
    other = result["interfaces"][-1]["name"]
    assert other != name
    shaped.check(sandbox, result)
    shaped.release(sandbox)
    assert state(shaped.host) == before
    add_link(shaped.host, other, kind, text or "mine")
    before = state(shaped.host)
    error = shaped.bandwidth("ADD", sandbox, veth_result).error()
    assert (error["code"], error["msg"]) == (999, f'failed to create ifb "{other}": file exists')
    assert f'ip link show dev "{other}"' in error["details"]
    assert state(shaped.host) == before


def add_link(host, name, kind, text):
    host.ip("link", "add", name, "type", kind)
    host.ip("link", "set", name, "alias", text)


def test_stale_ifb_of_the_reference_is_replaced(shaped, sandbox, veth_result):
    """An ifb with the container's name and no alias is stale from the reference plugin, and ADD replaces it."""
    shaped.host.ip("link", "add", ifb_name(sandbox.name), "type", "ifb")
    add_and_remove_limits(shaped, sandbox, veth_result)
    assert ifbs(shaped.host) == {}


def test_used_ifindexes_are_avoided(shaped, sandbox, veth_result):
    """If other interfaces have the ifb's ifindexes, it gets another one, and these interfaces stay."""
    index = int(shaped.host.ip("-o", "link", "show", "veth0").split(":")[0])
    for number, base in enumerate((1_000_000_000, 1_500_000_000)):
        shaped.host.ip("link", "add", f"other{number}", "index", str(base + index), "type", "ifb")
        before = state(shaped.host)
        add_and_remove_limits(shaped, sandbox, veth_result)
        assert state(shaped.host) == before


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("injection", ["close_range:signal=KILL", "clone:error=EAGAIN"])
def test_del_without_a_background_process_removes_the_ifb(shaped, sandbox, veth_result, injection):
    """If the background process dies, or cannot be started, DEL removes the ifb itself."""
    empty = state(shaped.host)
    shaped.limit(sandbox, veth_result)
    run_injected(shaped.host, "bandwidth", "DEL", shaped.config, sandbox, injection, follow=True).assert_silent()
    assert state(shaped.host) == empty
