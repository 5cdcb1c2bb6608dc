"""A chained plugin without the plugins before it: its verbs for pods that have only a container ID and a prevResult.

portmap and firewall need no interface: they read names and addresses from prevResult.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.support import libcni, xtables
from tests.support.invocation import Outcome, feed, finish, gc_keys, run_plugin, start_plugin
from tests.support.namespaces import Namespace

IPV4, IPV6 = "10.22.0.2/16", "fd00:22::2/64"
DUAL = (IPV4, IPV6)


@dataclass(frozen=True)
class BarePlugin:
    """The plugin TYPE of one network on one host, for one pod.

    `bin_dir` has the plugin, by default podwire's; `tools` has the programs of iptables, by default the machine's;
    `netns` is the pod's namespace.
    """

    TYPE: ClassVar[str]
    TABLE: ClassVar[str] = "nat"  # of iptables, with the plugin's rules

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None
    tools: Path | None = None
    netns: Namespace | str = "/run/netns/x"

    def having(self, **keys: Any) -> Self:
        """Returns a copy with other top-level keys; None removes a key."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def without_result(self) -> Self:
        """Returns a copy without prevResult and capabilities, as for a runtime that has lost its cache."""
        return self.having(prevResult=None, runtimeConfig=None)

    def run(self, command: str, container_id: str = "cid", **how: Any) -> Outcome:
        """Runs one verb to its end; `how` are arguments of start_plugin()."""
        return run_plugin(self.TYPE, command, self.config, **self.arguments(container_id, **how))

    def check(self, container_id: str = "cid", *words: str, **how: Any) -> None:
        """Runs CHECK; a failure fails the test. `words` are further arguments of the subclass's `run`."""
        self.run("CHECK", container_id, *words, **how).assert_silent()

    def gc(self, *valid: str, ifname: str = "eth0", **how: Any) -> str:
        """Runs GC with `ifname` of the `valid` containers as valid attachments; a failure fails. Returns stderr."""
        keys = gc_keys(*((container_id, ifname) for container_id in valid))
        outcome = self.without_result().having(**keys).run("GC", **how)
        outcome.assert_silent()
        return outcome.stderr

    def with_cache(self, directory: Path) -> Self:
        """Returns a copy whose plugin uses `<directory>/results`, which is empty, as libcni's cache."""
        return replace(self, bin_dir=libcni.install_with_cache(directory, self.TYPE, bin_dir=self.bin_dir))

    def saved(self) -> dict[str, list[str]]:
        """Returns the table of each IP version, as iptables-save prints it."""
        return xtables.saved(self.host, self._tools(), self.TABLE)

    def load(self, *lines: str, tool: str = "iptables") -> None:
        """Applies lines to the table; a failure fails the test."""
        xtables.load(self.host, self._tools(), *lines, tool=tool, table=self.TABLE)

    def arguments(self, container_id: str, **how: Any) -> dict[str, Any]:
        """Returns the arguments of start_plugin() for a container."""
        env = xtables.path(self.tools) if self.tools else None
        defaults = {"host": self.host, "netns": self.netns, "bin_dir": self.bin_dir, "env": env}
        return {**defaults, "container_id": container_id, **how}

    def _tools(self) -> Path:
        assert self.tools, "a test with iptables sets tools"
        return self.tools


def run_in_parallel(*calls: tuple[str, str, BarePlugin]) -> list[Outcome]:
    """Runs verbs in parallel, each for a container ID and its plugin; returns the outcomes in that order."""
    started = [start_plugin(plugin.TYPE, verb, **plugin.arguments(name)) for verb, name, plugin in calls]
    for process, (_, _, plugin) in zip(started, calls, strict=True):
        feed(process, plugin.config)
    return [finish(process) for process in started]
