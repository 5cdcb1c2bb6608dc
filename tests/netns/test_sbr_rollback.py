"""An ADD of sbr that fails at any step leaves rules and routes as they were."""

import pytest

from tests.support.injection import run_injected
from tests.support.sbr_network import GATEWAY, GATEWAY6, IPV4, IPV6, connect, rules, state, table


@pytest.fixture
def prev_result(host, sandbox):
    """The result of a dual-stack interface with default routes in table main."""
    return connect(host, sandbox, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6], defaults=[GATEWAY, GATEWAY6])


@pytest.mark.parametrize("gateway", ["10.5.0.1", "2001:db8::1"])
@pytest.mark.parametrize("defaults", [[], [GATEWAY, GATEWAY6]])
def test_unreachable_gateway(sbr, host, sandbox, gateway, defaults):
    """A gateway that no route reaches is an error that names it, and no rule, table or missing route remains."""
    prev_result = connect(host, sandbox, IPV4, IPV6, gateways=[GATEWAY, GATEWAY6], defaults=defaults)
    error = sbr.having(gateways=[gateway]).add_error(sandbox, prev_result)
    reason = "network is unreachable" if "." in gateway else "no route to host"
    assert (error["code"], error["msg"]) == (999, f"Failed to add default route to {gateway}: {reason}")
    assert error["details"]
    sbr.add(sandbox, prev_result)
    sbr.check(sandbox, prev_result)


def test_unreachable_gateway_after_add(sbr, sandbox, prev_result):
    """A failed change of the gateway leaves the rules and tables of the earlier ADD."""
    sbr.add(sandbox, prev_result)
    sbr.having(gateways=["10.5.0.1"]).add_error(sandbox, prev_result)
    sbr.check(sandbox, prev_result)


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("hints", [False, True])
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_failed_exchange(sbr, host, sandbox, prev_result, number, stale, hints):
    """If the kernel does not take a batch (read, read, tables and rules, table main), all changes are reversed."""
    if stale:
        sandbox.ip("route", "add", "10.70.0.0/16", "via", GATEWAY, "dev", "eth0", "table", "100")
    before = state(sandbox)
    config = sbr.having(addSourceHints=hints).request(prev_result)
    error = run_injected(host, "sbr", "ADD", config, sandbox, f"sendto:error=ENOBUFS:when={number}").error()
    assert "no buffer space available" in error["msg"]
    assert state(sandbox) == before
    sbr.add(sandbox, prev_result)
    sbr.check(sandbox, prev_result)


@pytest.mark.needs("syscall_injection")
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_failed_answer(sbr, host, sandbox, prev_result, number):
    """If the answer to a batch is lost after the kernel has run it, all changes are reversed."""
    before = state(sandbox)
    injection = f"recvfrom:error=ENOMEM:when={number}"
    run_injected(host, "sbr", "ADD", sbr.request(prev_result), sandbox, injection).error()
    assert state(sandbox)["rules"] == before["rules"]
    assert state(sandbox) == before


def test_unwritable_stdout(sbr, host, sandbox, prev_result):
    """If the result cannot be written, the rules are removed again."""
    outcome = run_injected(host, "sbr", "ADD", sbr.request(prev_result), sandbox, redirection=">&-")
    assert outcome.status == 1
    assert (rules(sandbox), table(sandbox, 100), table(sandbox, 101)) == ([], [], [])
