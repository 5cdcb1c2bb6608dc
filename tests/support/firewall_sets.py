"""firewall's verbs on a throwaway host, for pods that are only names and addresses, and what they made in nftables.

One rule: an earlier plugin's result says all that firewall needs to know of a pod: bridge, port, addresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.invocation import Outcome, feed, finish, run_plugin, start_plugin
from tests.support.namespaces import Namespace

IPV4, IPV6 = "10.22.0.2/16", "fd00:22::2/64"
_TABLES = ("inet podwire_firewall", "bridge podwire_firewall")


def bridged(*addresses: str, bridge: str = "cni0", port: str = "veth2", ifname: str = "eth0") -> dict[str, Any]:
    """Returns the keys of what `bridge` tells of a pod: bridge, port (left out if ""), interface of the pod."""
    ports = [{"name": port, "mac": "02:00:00:00:00:02"}] if port else []
    return {
        "interfaces": [
            {"name": bridge, "mac": "02:00:00:00:00:01"},
            *ports,
            {"name": ifname, "mac": "02:00:00:00:00:03", "sandbox": "/run/netns/x"},
        ],
        "ips": [{"interface": 1 + len(ports), "address": address} for address in addresses],
    }


@dataclass(frozen=True)
class Firewall:
    """A network's firewall on one host, and what is asked of it for one pod; `bin_dir` is ours unless given."""

    host: Namespace
    config: Mapping[str, Any]
    bin_dir: Path | None = None

    def having(self, **keys: Any) -> Firewall:
        """Returns the same with other top-level keys; None leaves a key out."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def pod(self, *addresses: str, **ends: str) -> Firewall:
        """Returns the same for a pod with `addresses`, as `bridged` takes them."""
        own = {"cniVersion": self.config["cniVersion"], **bridged(*addresses, **ends)}
        return self.having(prevResult=own)

    def run(self, command: str, container_id: str = "cid", *, ifname: str = "eth0", **how: Any) -> Outcome:
        """Runs one verb to its end; `how` as start_plugin takes it."""
        return run_plugin("firewall", command, self.config, **self._how(container_id, ifname), **how)

    def add(self, container_id: str = "cid", **how: Any) -> str:
        """Makes what is wanted for a container, and returns what is said on stderr; a failure fails the test."""
        outcome = self.run("ADD", container_id, **how)
        wanted = {"dns": {}, **self.config["prevResult"]}
        assert {"dns": {}, "ips": [], **outcome.result()} == wanted
        return outcome.stderr

    def check(self, container_id: str = "cid", **how: Any) -> None:
        """Checks it; a failure fails the test."""
        self.run("CHECK", container_id, **how).assert_silent()

    def refusal(self, container_id: str = "cid") -> str:
        """Returns what CHECK has to complain of."""
        error = self.run("CHECK", container_id).error()
        assert error["code"] == 999
        return str(error["msg"])

    def delete(self, container_id: str = "cid", **how: Any) -> None:
        """Takes it away as a runtime that knows nothing but names does; a failure fails the test."""
        self.having(prevResult=None).run("DEL", container_id, **how).assert_silent()

    def gc(self, *valid: str, ifname: str = "eth0") -> None:
        """Collects what belongs to none of the `valid` containers' interfaces; a failure fails the test."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id in valid]
        keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments}
        self.having(prevResult=None, **keys).run("GC").assert_silent()

    def _how(self, container_id: str, ifname: str) -> dict[str, Any]:
        return {"host": self.host, "bin_dir": self.bin_dir, "container_id": container_id, "ifname": ifname} | {
            "netns": "/run/netns/x"
        }


def at_once(*calls: tuple[str, str, Firewall]) -> list[Outcome]:
    """Runs verbs at once: command, container and what is asked for it; returns the outcomes in that order."""
    started = [start_plugin("firewall", command, **own._how(name, "eth0")) for command, name, own in calls]
    for process, (_, _, own) in zip(started, calls, strict=True):
        feed(process, own.config)
    return [finish(process) for process in started]


def sets(host: Namespace, *, comments: bool = False) -> dict[str, list[str]]:
    """Returns the elements of each of our sets that has any, as `nft -j list` tells them, with or without comments."""
    found: dict[str, list[str]] = {}
    for table in _TABLES:
        text = host.run("nft", "-j", "list", "table", *table.split(), check=False)
        for item in json.loads(text)["nftables"] if text else ():
            elements = item.get("set", {}).get("elem", ())
            if elements:
                found[item["set"]["name"]] = sorted(_shown(element, comments=comments) for element in elements)
    return found


def _shown(element: Any, *, comments: bool) -> str:
    own = element.get("elem", {"val": element}) if isinstance(element, dict) else {"val": element}
    value = own["val"]
    text = " . ".join(value["concat"]) if isinstance(value, dict) else value
    return f"{text}: {own['comment']}" if comments and "comment" in own else text


def rules(host: Namespace, chain: str, family: str = "inet") -> list[str]:
    """Returns the rules of one of our chains as `nft` prints them."""
    lines = host.run("nft", "list", "chain", family, "podwire_firewall", chain).splitlines()
    return [
        line.strip()
        for line in lines
        if line.startswith("\t\t") and "type filter" not in line and "comment" not in line
    ]


def of(names: Sequence[str], bridge: str = "cni0") -> list[str]:
    """Returns members of a bridge as `sets` tells them."""
    return [f"{bridge} . {name}" for name in names]
