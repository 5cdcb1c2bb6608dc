"""The agent's page and question about network policies on a Unix socket, over a selection that a test fills.

One rule: a real loop in a thread is the agent's main thread; HTTP server, inbox and selection are the agent's.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any

from agent import http_server
from agent.inbox import Inbox
from agent.policy.admin import FilterState, PolicyAdmin
from agent.policy.objects import parse_namespace, parse_pod, parse_policy
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from process.loop import Loop
from tests.support.policy_world import NODE, record_of


class _EndOfLoop(BaseException):
    """Raised out of the loop."""


class PolicyAgent:
    """The selection with a few events, and what is in force: `drops` by chain, `problem`."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.selection = PolicySelection()
        self.plan = FilterPlan(self.selection)
        self.drops: dict[str, int] = {}
        self.problem = ""
        self.threads: set[int] = set()  # that have read the state
        inbox: Inbox[Any] = Inbox(self.loop, lambda call: call())
        self.call = inbox.put
        self.admin = PolicyAdmin(self.selection, NODE, inbox.put, self.state)

    def state(self) -> FilterState:
        """Returns what is in force, as the service does."""
        self.threads.add(threading.get_ident())
        return FilterState(self.plan.update()[0], self.drops, self.problem)

    def namespace(self, name: str, **labels: str) -> None:
        """Creates a namespace."""
        self.selection.set_namespace(parse_namespace({"metadata": {"name": name, "labels": labels}}))

    def pod(
        self, namespace: str, name: str, *addresses: str, here: bool = True, recorded: bool = True, **spec: Any
    ) -> None:
        """Creates a pod; with `here` it is on this node, and with `recorded` has a record there."""
        metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}", "labels": {"app": name}}
        status = {"phase": "Running", "podIPs": [{"ip": one} for one in addresses]}
        spec = {"nodeName": NODE if here else "n2", **spec}
        self.selection.set_pod(parse_pod({"metadata": metadata, "spec": spec, "status": status}))
        if here and recorded:
            self.record(namespace, name, addresses)

    def record(self, namespace: str, name: str, addresses: Sequence[str]) -> None:
        """Writes the record of a pod, whose object may be unknown."""
        record = record_of(namespace, name, f"uid-{name}", map(ip_address, addresses), f"c{name}")
        self.selection.set_local(record.file_name, record)

    def policy(self, namespace: str, name: str, **spec: Any) -> None:
        """Creates a policy."""
        document = {"metadata": {"namespace": namespace, "name": name}, "spec": {"podSelector": {}, **spec}}
        self.selection.set_policy(parse_policy(document))


def shop() -> PolicyAgent:
    """Returns the agent of a namespace where web-0 may connect to TCP port 5432 of db-0, and nothing else."""
    agent = PolicyAgent()
    agent.namespace("shop")
    agent.pod("shop", "web-0", "10.0.0.1", "fd00:1::1")
    agent.pod("shop", "db-0", "10.0.0.2", "fd00:1::2")
    agent.pod("shop", "far-0", "10.0.0.3", here=False)
    peers = [{"podSelector": {"matchLabels": {"app": "web-0"}}}]
    rule = {"from": peers, "ports": [{"port": 5432}]}
    agent.policy("shop", "db", podSelector={"matchLabels": {"app": "db-0"}}, ingress=[rule])
    agent.policy("shop", "default-deny", policyTypes=["Ingress"])
    return agent


@contextmanager
def serving(agent: PolicyAgent, path: str) -> Iterator[None]:
    """Serves the page and the question on a socket."""

    def run() -> None:
        with suppress(_EndOfLoop):
            agent.loop.run()

    def end() -> None:
        raise _EndOfLoop

    main = threading.Thread(target=run)
    main.start()
    server = http_server.start(path, agent.admin.pages(), agent.admin.actions())
    try:
        yield
    finally:
        server.shutdown()
        server.socket.close()
        agent.call(end)
        main.join()
