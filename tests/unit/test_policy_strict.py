"""`--network-policy strict`: ADD is answered behind the events of the policies that its pod needs."""

from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

from agent.policy.objects import ClusterPod
from agent.policy.selection import PolicySelection
from agent.policy.service import PolicyService
from tests.support.policy_world import record_of


def test_answer_follows_the_events_that_the_watch_has_received():
    """A turn that another ADD has scheduled answers no ADD whose policies are still in the inbox."""
    record = record_of("shop", "web", "u1", (ip_address("10.0.0.1"),))
    request = SimpleNamespace(record=record.file_name, is_current=False)
    answered: list[Any] = []
    inbox: list[Any] = []
    service: Any = PolicyService.__new__(PolicyService)
    service._selection = PolicySelection()
    service._selection.set_pod(ClusterPod("shop", "web", "u1", {}))
    service._selection.set_local(record.file_name, record)
    service._gate = SimpleNamespace(waiting=lambda: [request], answer=lambda *answer: answered.append(answer))
    service._local = SimpleNamespace(by_name={record.file_name: record})
    service._file, service._newest = SimpleNamespace(generation=1), True
    service._objects, service._inbox = SimpleNamespace(policies_revision=7), SimpleNamespace(put=inbox.append)
    service._schedule = lambda: None
    service._on_newest(request, 7)
    service._answer()
    service._answer()
    assert not answered
    inbox.pop()()
    service._answer()
    assert answered == [(request, 1)]
