"""Fixtures of the specification's tests: one plugin, ready to be invoked as a runtime does.

One rule: as root, no plugin runs in the tester's own network namespace, not even one that is expected to refuse.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.spec import configs
from tests.support import namespaces
from tests.support.invocation import Config, Outcome, run_plugin
from tests.support.namespaces import Namespace


@dataclass(frozen=True)
class Invoker:
    """One plugin with a host to run on, a sandbox for CNI_NETNS and a lease directory."""

    plugin: str
    host: Namespace | None
    sandbox: Namespace | str
    store: Path

    def config(self, version: str = "1.1.0", **keys: Any) -> dict[str, Any]:
        """Returns the plugin's small valid configuration, with `keys` put over it; None takes a key away."""
        host_interfaces = [host_end(self.sandbox)] if isinstance(self.sandbox, Namespace) else []
        whole = configs.config(self.plugin, version, self.store, *host_interfaces) | keys
        return {key: value for key, value in whole.items() if value is not None}

    def __call__(self, command: str | None, config: Config | None = None, **how: Any) -> Outcome:
        """Runs one invocation, with the configuration above unless another is given."""
        arguments: Mapping[str, Any] = {"host": self.host, "netns": self.sandbox, **how}
        return run_plugin(self.plugin, command, self.config() if config is None else config, **arguments)

    def into(self, sandbox: Namespace) -> Invoker:
        """Returns the same for another sandbox, after an interface plugin.

        A chained plugin finds an `eth0` there, one end of a pair whose other end is on the host.
        """
        if self.plugin in configs.CHAINED:
            assert self.host
            peer = ("peer", "name", host_end(sandbox), "netns", self.host.name)
            sandbox.ip("link", "add", "eth0", "type", "veth", *peer)
        return replace(self, sandbox=sandbox)

    def of(self, plugin: str) -> Invoker:
        """Returns the same host, sandbox and leases for another plugin."""
        return replace(self, plugin=plugin)


def host_end(sandbox: Namespace) -> str:
    """Returns the name of the host's end of a sandbox's interface."""
    return f"h{sandbox.name[-12:]}"


@pytest.fixture(scope="session")
def quiet_host() -> Iterator[Namespace | None]:
    """A namespace for plugins that are expected to refuse; without root, none: they could not do anything."""
    with ExitStack() as stack:
        yield stack.enter_context(namespaces.temporary_host()) if os.geteuid() == 0 else None


@pytest.fixture
def refused(plugin: str, quiet_host: Namespace | None, store: Path) -> Invoker:
    """The plugin under test, for invocations that it must refuse before it does anything; needs no root."""
    return Invoker(plugin, quiet_host, "/no/such/netns", store)


@pytest.fixture
def invoke(plugin: str, host: Namespace, sandbox: Namespace, store: Path) -> Invoker:
    """The plugin under test with a real host and sandbox; needs root."""
    return Invoker(plugin, host, sandbox, store).into(sandbox)
