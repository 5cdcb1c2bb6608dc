"""Fixtures of the specification's tests: a plugin that is invoked as a runtime invokes it.

One rule: as root, no plugin runs in the machine's network namespace, not even for an invocation that must fail.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

from tests.spec import configs
from tests.support import dhcp_node, namespaces
from tests.support.invocation import Config, Outcome, run_plugin
from tests.support.namespaces import Namespace


@dataclass(frozen=True)
class Invoker:
    """A plugin with a host to run on, a sandbox for CNI_NETNS and a lease directory."""

    plugin: str
    host: Namespace | None
    sandbox: Namespace | str
    store: Path

    def config(self, version: str = "1.1.0", **keys: Any) -> dict[str, Any]:
        """Returns the plugin's minimal configuration with `keys` set; None removes a key."""
        host_interfaces = [host_veth_name(self.sandbox)] if isinstance(self.sandbox, Namespace) else []
        config = configs.config(self.plugin, version, self.store, *host_interfaces) | keys
        return {key: value for key, value in config.items() if value is not None}

    def __call__(self, command: str | None, config: Config | None = None, **options: Any) -> Outcome:
        """Runs one invocation, by default with the plugin's minimal configuration."""
        arguments: Mapping[str, Any] = {"host": self.host, "netns": self.sandbox, **options}
        return run_plugin(self.plugin, command, self.config() if config is None else config, **arguments)

    def with_sandbox(self, sandbox: Namespace) -> Self:
        """Returns the same invoker for another sandbox, prepared as by an interface plugin.

        For a chained plugin the sandbox has an `eth0`, whose host veth is on the host. For a plugin of
        configs.ON_MASTER the host has the master, and for host-device a device. For dhcp the sandbox has an `eth0`
        on the bridge to the server.
        """
        if self.plugin == "host-device":
            assert self.host
            name = host_veth_name(sandbox)
            self.host.ip("link", "add", name, "type", "veth", "peer", "name", f"p{name[1:]}")
        if self.plugin in configs.ON_MASTER:
            assert self.host
            if f" {configs.MASTER}@" not in self.host.ip("link"):
                self.host.ip("link", "add", configs.MASTER, "type", "veth", "peer", "name", f"{configs.MASTER}-peer")
                for end in (configs.MASTER, f"{configs.MASTER}-peer"):
                    self.host.ip("link", "set", end, "up")
        if self.plugin == "dhcp":
            assert self.host
            name = host_veth_name(sandbox)
            self.host.ip("link", "add", name, "type", "veth", "peer", "name", f"p{name[1:]}")
            self.host.ip("link", "set", name, "master", configs.WIRE, "up")
            place = ("netns", sandbox.name) if sandbox != self.host else ()
            self.host.ip("link", "set", f"p{name[1:]}", *place, "name", "eth0")
        if self.plugin in configs.CHAINED:
            assert self.host
            peer = ("peer", "name", host_veth_name(sandbox), "netns", self.host.name)
            sandbox.ip("link", "add", "eth0", "type", "veth", *peer)
        return replace(self, sandbox=sandbox)

    def with_plugin(self, plugin: str) -> Self:
        """Returns an invoker of another plugin with the same host, sandbox and leases."""
        return replace(self, plugin=plugin)


def host_veth_name(sandbox: Namespace) -> str:
    """Returns the name of a sandbox's host veth."""
    return f"h{sandbox.name[-12:]}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks the suite: on the second kernel it runs only for plugins that the running kernel cannot run."""
    item.add_marker("one_kernel")


@pytest.fixture(scope="session")
def quiet_host() -> Iterator[Namespace | None]:
    """A namespace for invocations that must fail; None without root, as then a plugin cannot change anything."""
    with ExitStack() as stack:
        yield stack.enter_context(namespaces.temporary_host()) if os.geteuid() == 0 else None


@pytest.fixture
def refused(plugin: str, quiet_host: Namespace | None, store: Path) -> Invoker:
    """The plugin under test, for invocations that must fail before any change; needs no root."""
    return Invoker(plugin, quiet_host, "/no/such/netns", store)


@pytest.fixture
def invoke(plugin: str, host: Namespace, sandbox: Namespace, store: Path) -> Iterator[Invoker]:
    """The plugin under test with a real host and sandbox; needs root, and a kernel with the plugin's feature."""
    with ExitStack() as stack:
        if plugin == "dhcp":
            host.ip("link", "add", configs.WIRE, "type", "bridge")
            host.ip("link", "set", configs.WIRE, "up")
            stack.enter_context(dhcp_node.serving(host, configs.WIRE, configs.dhcp_directory(store)))
        yield Invoker(plugin, host, sandbox, store).with_sandbox(sandbox)
