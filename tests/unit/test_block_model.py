"""The protocol of blocks in every order of events: small models to the end, and policies that must fail.

tests/hard/test_block_model.py has the larger models. tests/block_model/README.md has the results.
"""

from collections import deque
from collections.abc import Callable

import pytest

from agent.pools import block_protocol
from tests.block_model.canonical import canonical, permuted
from tests.block_model.policies import COPIED_DISK, ONE, POLICIES
from tests.block_model.search import Limits, Result, search
from tests.block_model.state import Model, State
from tests.block_model.world import steps

# A policy for each invariant that a search without restores finds at once; the others are in tests/hard.
QUICK = [
    "give back without revoking first",
    "grants that the store does not have",
    "a claim keeps the generation",
    "give back while granted",
    "a copied disk gives back",
    "no adoption after a crash",
]
SMALL = {"a late request": ONE, "a copied disk": COPIED_DISK}


@pytest.mark.parametrize("name", SMALL)
def test_all_orders_of_events_keep_the_invariants(name):
    """No order of events of two machines with one block breaks an invariant, and no block is lost."""
    result = search(SMALL[name], recovers=name != "a copied disk")  # where a machine waits for a fence
    assert not result.broken, str(result)
    assert result.is_complete
    assert result.states > 1000
    assert not result.cut


@pytest.mark.parametrize("name", QUICK)
def test_wrong_policy_breaks_an_invariant(name, monkeypatch):
    """The search shows for each wrong policy the steps that break the invariant."""
    result = run_policy(name, monkeypatch)
    assert result.broken == POLICIES[name].breaks
    assert result.trace


def run_policy(name: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Returns the result of a search with a policy, for the invariant that it breaks."""
    policy = POLICIES[name]
    monkeypatch.setattr(block_protocol, policy.name, policy.replacement)
    # I7 is no predicate of a step.
    recovers = policy.breaks == "I7"
    invariants = () if recovers else (policy.breaks,)
    return search(policy.model._replace(generations=3), invariants=invariants, recovers=recovers)


def test_renaming_keeps_the_steps():
    """States that differ by the numbers of machines have equal next states, up to these numbers."""
    states = [ONE.first]
    for _ in range(9):
        states = [after for state in states for _, after in steps(ONE, state)][:100]
    for state in states:
        renamed = permuted(state, [1, 0])
        assert canonical(ONE, renamed) == canonical(ONE, state)
        one, other = ({canonical(ONE, after) for _, after in steps(ONE, s)} for s in (state, renamed))
        assert one == other


def test_renaming_and_dropping_loses_no_state():
    """Each state of a search that keeps all names, requests and proofs is represented in the search that does not."""
    all_names = visit(ONE, lambda state: state, 3_000)
    represented = visit(ONE, lambda state: canonical(ONE, state), 3_000)
    assert len(all_names) >= 3_000 > len(represented)
    assert {canonical(ONE, state) for state in all_names} <= represented


def visit(model: Model, represent: Callable[[State], State], limit: int) -> set[State]:
    """Returns the states that a model reaches, the nearest first, until there are more than `limit`."""
    first = represent(model.first)
    reached, waiting = {first}, deque([first])
    while waiting and len(reached) < limit:
        for _, after in steps(model, waiting.popleft()):
            if (state := represent(after)) not in reached:
                reached.add(state)
                waiting.append(state)
    return reached


def test_limits_end_a_search():
    """A search ends at a number of states, and says so."""
    result = search(ONE, Limits(states=1))
    assert not result.is_complete
    assert "not to the end" in str(result)
