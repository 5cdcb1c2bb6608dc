"""A network configuration list and what libcni does with it: each verb through all plugins of the list.

One rule: a plugin is asked exactly what libcni would ask it (name, cniVersion, prevResult added to its object, and of
what the runtime has for pods that for which the plugin declares the capability).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.invocation import Outcome

Run = Callable[[str, str, dict[str, Any]], Outcome]  # plugin, CNI_COMMAND, configuration


@dataclass(frozen=True)
class NetworkList:
    """One *.conflist file; `capability_args` is what the runtime has for a pod, by capability."""

    name: str
    cni_version: str
    plugins: tuple[dict[str, Any], ...]
    capability_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> NetworkList:
        """Reads a file; the keys every list must have must be there."""
        body = json.loads(path.read_text())
        assert body["plugins"], f"{path}: no plugins in list"
        return cls(body["name"], body["cniVersion"], tuple(body["plugins"]))

    def asking(self, **capability_args: Any) -> NetworkList:
        """Returns the same list for a pod that needs something of the runtime: `asking(portMappings=[...])`."""
        return replace(self, capability_args=capability_args)

    def add(self, run: Run) -> dict[str, Any]:
        """Adds an attachment: each plugin in turn, the result of one being prevResult of the next; returns the last."""
        result: dict[str, Any] | None = None
        for plugin in self.plugins:
            result = run(plugin["type"], "ADD", self.request(plugin, result)).result()
        assert result is not None
        return result

    def check(self, run: Run, result: dict[str, Any]) -> None:
        """Checks an attachment with the final result of its ADD."""
        for plugin in self.plugins:
            run(plugin["type"], "CHECK", self.request(plugin, result)).assert_silent()

    def delete(self, run: Run, result: dict[str, Any] | None) -> None:
        """Deletes an attachment, the last plugin first; None where the runtime has no result of ADD."""
        for plugin in reversed(self.plugins):
            run(plugin["type"], "DEL", self.request(plugin, result)).assert_silent()

    def collect(self, run: Run, valid: Sequence[Mapping[str, str]]) -> None:
        """Has every plugin collect what belongs to none of the `valid` attachments."""
        for plugin in self.plugins:
            run(plugin["type"], "GC", self.collection(plugin, valid)).assert_silent()

    def collection(self, plugin: dict[str, Any], valid: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Returns what a plugin is asked with GC."""
        own = {key: value for key, value in plugin.items() if key != "capabilities"}
        return {**own, "name": self.name, "cniVersion": self.cni_version, "cni.dev/valid-attachments": list(valid)}

    def request(self, plugin: dict[str, Any], prev_result: dict[str, Any] | None) -> dict[str, Any]:
        """Returns what a plugin is asked with ADD, CHECK and DEL."""
        request = {**plugin, "name": self.name, "cniVersion": self.cni_version}
        declared = plugin.get("capabilities", {})
        if runtime := {name: value for name, value in self.capability_args.items() if declared.get(name)}:
            request["runtimeConfig"] = runtime
        return request if prev_result is None else {**request, "prevResult": prev_result}
