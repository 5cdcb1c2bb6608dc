"""The protocol of network policies between ADD, DEL and podwire-agent, by a search of all states of its model."""

import pytest

from tests.support.policy_protocol import RULES, Model, search


def test_protocol_does_no_harm() -> None:
    """No order of events lets a pod run open or behind another pod's rules, and both pods can always come to run."""
    result = search(Model())
    assert result.harm == "", result.trace
    assert result.states > 10_000


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_matters(rule: str) -> None:
    """Without one of the rules the search finds a harm."""
    assert search(Model(without=rule)).harm
