"""A network configuration list, run as by libcni: each verb by all plugins of the list.

One rule: a plugin gets exactly the configuration that libcni would pass: its object with name, cniVersion, prevResult,
and the runtime's values for the capabilities that it declares.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace

Run = Callable[[str, str, dict[str, Any]], Outcome]  # plugin, CNI_COMMAND, configuration


@dataclass(frozen=True)
class NetworkList:
    """One *.conflist file; `capability_args` are the runtime's values for a pod, by capability."""

    name: str
    cni_version: str
    plugins: tuple[dict[str, Any], ...]
    capability_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file, which must have the keys that every list needs."""
        body = json.loads(path.read_text())
        assert body["plugins"], f"{path}: no plugins in list"
        return cls(body["name"], body["cniVersion"], tuple(body["plugins"]))

    @property
    def config(self) -> dict[str, Any]:
        """The list as libcni stores it in its cache."""
        return {"cniVersion": self.cni_version, "name": self.name, "plugins": list(self.plugins)}

    def with_capabilities(self, **capability_args: Any) -> Self:
        """Returns the same list with the runtime's values of capabilities: `with_capabilities(portMappings=[...])`."""
        return replace(self, capability_args=capability_args)

    def add(self, run: Run) -> dict[str, Any]:
        """Adds an attachment: runs each plugin with the previous one's result as prevResult; returns the last one."""
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
        """Deletes an attachment, the last plugin first; `result` is None if the runtime has no result of ADD."""
        for plugin in reversed(self.plugins):
            run(plugin["type"], "DEL", self.request(plugin, result)).assert_silent()

    def collect(self, run: Run, valid: Sequence[Mapping[str, str]]) -> None:
        """Runs GC of every plugin with the `valid` attachments."""
        for plugin in self.plugins:
            run(plugin["type"], "GC", self.collection(plugin, valid)).assert_silent()

    def collection(self, plugin: dict[str, Any], valid: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Returns a plugin's configuration for GC."""
        conf = {key: value for key, value in plugin.items() if key != "capabilities"}
        return {**conf, "name": self.name, "cniVersion": self.cni_version, "cni.dev/valid-attachments": list(valid)}

    def request(self, plugin: dict[str, Any], prev_result: dict[str, Any] | None) -> dict[str, Any]:
        """Returns a plugin's configuration for ADD, CHECK and DEL."""
        request = {**plugin, "name": self.name, "cniVersion": self.cni_version}
        declared = plugin.get("capabilities", {})
        if runtime := {name: value for name, value in self.capability_args.items() if declared.get(name)}:
            request["runtimeConfig"] = runtime
        return request if prev_result is None else {**request, "prevResult": prev_result}


def runner(host: Namespace, pod: Namespace | None, **how: Any) -> Run:
    """Returns a function that runs a plugin's verb for a pod, or for none; `how` are arguments of start_plugin()."""
    container_id = pod.name if pod else None
    arguments = {"host": host, "netns": pod, "container_id": container_id, "ifname": "eth0" if pod else None, **how}
    return lambda plugin, command, config: run_plugin(plugin, command, config, **arguments)
