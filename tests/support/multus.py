"""Multus on a host: runs the plugins of a definition for a pod's `net1`, with the calls that Multus makes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from tests.support import libcni
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, Run, runner

IFNAME = "net1"


class Multus:
    """Runs a definition's plugins as Multus does, and stores the result in its cache."""

    def __init__(self, host: Namespace, definition: dict[str, Any], directory: Path) -> None:
        """Uses `directory` for reservations and cache."""
        self.host, self.config = host, copy.deepcopy(definition)
        for plugin in self.config["plugins"]:
            if "ipam" in plugin:
                plugin["ipam"]["dataDir"] = str(directory / "leases")
        self.cache = directory / "cache"  # /var/lib/cni/multus on a node
        (self.cache / "results").mkdir(parents=True)
        self.list = NetworkList(self.config["name"], self.config["cniVersion"], tuple(self.config["plugins"]))

    def add(self, pod: Namespace) -> dict[str, Any]:
        """Adds `net1` and writes the result to the cache."""
        result = self.list.add(run_as_multus(self.host, pod))
        how: dict[str, Any] = {"netns": pod.path, "ifname": IFNAME, "result": result, "config": self.config}
        libcni.write_entry(self.cache, self.list.name, pod.name, **how)
        return result

    def check(self, pod: Namespace, result: dict[str, Any]) -> None:
        """Checks `net1`."""
        self.list.check(run_as_multus(self.host, pod), result)

    def delete(self, pod: Namespace) -> None:
        """Deletes `net1` with the cached result, then the cache entry."""
        (path,) = (self.cache / "results").glob(f"*-{pod.name}-{IFNAME}")
        self.list.delete(run_as_multus(self.host, pod), json.loads(path.read_text())["result"])
        path.unlink()


def run_as_multus(host: Namespace, pod: Namespace, ifname: str = IFNAME) -> Run:
    """Returns a function that runs a plugin for an interface of a pod, with the variables that Multus passes."""
    args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
    return runner(host, pod, netns=pod.path, ifname=ifname, args=args)
