"""Runs verbs of a chained plugin, podwire's or the reference plugin's, on a temporary host.

A pod's container ID is the name of its namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace


@dataclass(frozen=True)
class ChainedPlugin:
    """A network's chained plugin on one host; `bin_dir` is the plugin's directory, by default podwire's."""

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None

    def having(self, **keys: Any) -> Self:
        """Returns a copy with other top-level keys; None removes a key."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def with_plugin(self, bin_dir: Path | None) -> Self:
        """Returns a copy with the plugin of another directory, None for podwire's."""
        return replace(self, bin_dir=bin_dir)

    def everything(self, pod: Namespace) -> dict[str, Any]:
        """Returns all state that the plugin can change."""
        raise NotImplementedError

    def request(self, prev_result: object = None) -> dict[str, Any]:
        """Returns the configuration of one call."""
        return {**self.config, **({} if prev_result is None else {"prevResult": prev_result})}

    def run(self, command: str, pod: Namespace | str | None = None, prev_result: object = None, **how: Any) -> Outcome:
        """Runs one verb; `how` are arguments of start_plugin()."""
        container_id = {"container_id": pod.name} if isinstance(pod, Namespace) else {}
        defaults = {"host": self.host, "bin_dir": self.bin_dir, "netns": pod, **container_id}
        return run_plugin(str(self.config["type"]), command, self.request(prev_result), **{**defaults, **how})

    def add(self, pod: Namespace, prev_result: object, **how: Any) -> dict[str, Any]:
        """Runs ADD, which must succeed, podwire's without a line on stderr; returns its result."""
        outcome = self.run("ADD", pod, prev_result, **how)
        result = outcome.result()
        assert self.bin_dir or outcome.stderr == ""
        return result

    def add_error(self, pod: Namespace, prev_result: object, **how: Any) -> dict[str, Any]:
        """Runs ADD, which must fail without changing anything; returns its error."""
        before = self.everything(pod)
        error = self.run("ADD", pod, prev_result, **how).error()
        assert self.everything(pod) == before
        return error

    def check(self, pod: Namespace, prev_result: object, **how: Any) -> None:
        """Runs CHECK, which must succeed."""
        self.run("CHECK", pod, prev_result, **how).assert_silent()

    def check_error(self, pod: Namespace, prev_result: object, **how: Any) -> str:
        """Runs CHECK, which must fail; returns its message."""
        return str(self.run("CHECK", pod, prev_result, **how).error()["msg"])

    def delete(self, pod: Namespace | str | None, prev_result: object = None, **how: Any) -> str:
        """Runs DEL, which must succeed; returns its stderr."""
        outcome = self.run("DEL", pod, prev_result, **how)
        outcome.assert_silent()
        return outcome.stderr
