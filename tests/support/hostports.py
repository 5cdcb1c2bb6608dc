"""Host ports on a temporary host: portmap's verbs for pods that have only a name and addresses, and their rules.

A pod needs no interface, since portmap reads its addresses from prevResult. tests/support/publishing.py has pods that
send packets.
"""

import re
from collections.abc import Sequence
from typing import Any, Self

from tests.support import libcni, xtables
from tests.support.bare_plugin import BarePlugin
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.results import prev_result

OTHER = "10.22.0.3/16"  # the address of another pod


def ports(*texts: str) -> list[dict[str, Any]]:
    """Returns port mappings from texts like "8080:80", "53:53/udp", "192.0.2.1|8080:80"."""
    mappings = []
    for text in texts:
        ip, _, rest = text.rpartition("|")
        numbers, _, protocol = rest.partition("/")
        host, container = numbers.split(":")
        mapping = {"hostPort": int(host), "containerPort": int(container), "protocol": protocol or "tcp"}
        mappings.append(mapping | ({"hostIP": ip} if ip else {}))
    return mappings


class PortmapNetwork(BarePlugin):
    """A network with portmap on one host, and the host ports of one pod."""

    TYPE = "portmap"

    def having(self, *mappings: str, addresses: Sequence[str] = (), ifname: str = "eth0", **keys: Any) -> Self:
        """Returns a copy with other mappings, addresses of the pod, or top-level keys; None removes a key."""
        if mappings:
            keys["runtimeConfig"] = {"portMappings": ports(*mappings)}
        if addresses:
            version = keys.get("cniVersion", self.config["cniVersion"])
            keys["prevResult"] = prev_result(version, *addresses, ifname=ifname)
        return super().having(**keys)

    def run(
        self,
        command: str,
        container_id: str = "cid",
        *mappings: str,
        addresses: Sequence[str] = (),
        ifname: str = "eth0",
        **how: Any,
    ) -> Outcome:
        """Runs one verb to its end; mappings and addresses as in `having`, `how` as in start_plugin."""
        network = self.having(*mappings, addresses=addresses, ifname=ifname)
        return super(PortmapNetwork, network).run(command, container_id, ifname=ifname, **how)

    def add(self, container_id: str = "cid", *mappings: str, **how: Any) -> dict[str, Any]:
        """Runs ADD for a container and returns the result; a failure fails the test."""
        return self.run("ADD", container_id, *mappings, **how).result()

    def delete(self, container_id: str = "cid", *mappings: str, **how: Any) -> None:
        """Runs DEL; a failure fails the test."""
        self.run("DEL", container_id, *mappings, **how).assert_silent()

    def write_cache(self, **containers: bool) -> None:
        """Writes containers to the cache (`with_cache`), each with an existing namespace or a missing one."""
        assert self.bin_dir
        for container_id, is_running in containers.items():
            libcni.write_entry(
                self.bin_dir,
                self.config["name"],
                container_id,
                netns="" if is_running else libcni.MISSING_NETNS,
                result=self.config["prevResult"],
            )

    def rules(self) -> dict[str, list[str]]:
        """Returns table nat of each IP version, as iptables-save prints it."""
        return self.saved()

    def container_rules(self, *tools: str) -> list[str]:
        """Returns the rules and chains of containers, in order, with any backend; of iptables optionally of `tools`."""
        if self.config["backend"] == "nftables":
            chains = [(family, name) for family in ("ip", "ip6") for name in ("hostports", "masquerading")]
            return [f"{family} {name} {rule}" for family, name in chains for rule in chain(self.host, name, family)]
        return [line for tool in tools or xtables.TOOLS for line in self.rules()[tool] if "CNI-DN-" in line]

    def owners(self, port: int = 8080) -> list[str]:
        """Returns the containers to which IPv4 rules forward a port, in order, with any backend."""
        if self.config["backend"] == "nftables":
            rules = [rule for rule in chain(self.host, "hostports") if f"dport {port} dnat" in rule]
            return [rule.partition(' comment "')[2].rstrip('"') for rule in rules]
        jumps = re.findall(r'id: \\"(\w+).* --dports (\S+) ', "\n".join(self.rules()["iptables"]))
        return [container_id for container_id, numbers in jumps if str(port) in numbers.split(",")]


def chain(host: Namespace, name: str, family: str = "ip") -> list[str]:
    """Returns the rules of a chain of table cni_hostport as `nft` prints them, none if the chain is missing."""
    text = host.run("nft", "list", "chain", family, "cni_hostport", name, check=False)
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("table ", "chain ", "type ", "comment ", "}"))]


def dnat_targets(host: Namespace, port: int = 8080, family: str = "ip") -> list[str]:
    """Returns the targets of the DNAT rules for a port, in order."""
    rules = [rule for rule in chain(host, "hostports", family) if f"dport {port} dnat" in rule]
    return [rule.partition(" dnat to ")[2].partition(" comment ")[0] for rule in rules]
