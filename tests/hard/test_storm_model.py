"""A model of two networks on one node: after any sequence of verbs the node's state equals the model."""

import functools
import itertools
import re
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests import promises
from tests.support import bandwidth_network, binaries, hostports, namespaces, netstate
from tests.support.attaching import BOOKKEEPING, address, host_end
from tests.support.invocation import run_plugin

PLUGINS = ("bridge", "portmap", "bandwidth", "firewall", "tuning")
SUBNETS = {"blue": "10.1.0", "green": "10.2.0"}
CONTAINERS = ("a", "b", "c")  # both networks have containers of these names, with the same interface name
PORTS = (8080, 8081)
LIMITS = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000}

networks, ids = st.sampled_from(sorted(SUBNETS)), st.sampled_from(CONTAINERS)
runs = itertools.count(1)


@dataclass
class Attachment:
    """An attachment in the model: its runtimeConfig, the plugins' directory and ADD's result."""

    runtime_config: dict[str, Any]
    by: Path
    port: int = 0
    result: dict[str, Any] = field(default_factory=dict)


class Node(RuleBasedStateMachine):
    """The model, and the node whose state is compared with it after each step."""

    def __init__(self, backend, reference):
        super().__init__()
        self.backend, self.reference = backend, reference
        self.stack = ExitStack()
        self.host = self.stack.enter_context(namespaces.temporary_host())
        directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.store, self.backups = (
            directory / "leases",
            directory / "tuning",
        )  # podwire creates another directory beside each
        self.pods = {key: namespaces.create() for key in itertools.product(SUBNETS, CONTAINERS)}
        self.attached = {}
        self.ports: dict[int, list[str]] = {
            port: [] for port in PORTS
        }  # pod addresses, the one that gets packets first

    def teardown(self):
        for pod in self.pods.values():
            pod.delete()
        self.stack.close()

    @rule(network=networks, name=ids, port=st.sampled_from((0, *PORTS)), limited=st.booleans(), theirs=st.booleans())
    def add(self, network, name, port, limited, theirs):
        """ADD succeeds; for an existing attachment it fails and changes nothing."""
        runtime_config: dict[str, Any] = {"bandwidth": LIMITS} if limited else {}
        if port:
            runtime_config["portMappings"] = [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]
        attachment = Attachment(runtime_config, self.directory(theirs), port)
        if (network, name) in self.attached:
            assert "already exists" in self.run("bridge", "ADD", network, name, attachment).error()["msg"]
            return
        for plugin in PLUGINS:
            attachment.result = self.run(plugin, "ADD", network, name, attachment).result()
        assert address(attachment.result).startswith(SUBNETS[network])
        self.attached[network, name] = attachment
        if port:
            self.ports[port].append(address(attachment.result))

    @rule(network=networks, name=ids, theirs=st.booleans())
    def check(self, network, name, theirs):
        """CHECK succeeds, except for a host port that another container published earlier."""
        attachment = self.attached.get((network, name))
        if attachment is None:
            return
        self.run("bridge", "CHECK", network, name, attachment, by=self.directory(theirs)).assert_silent()
        # Reference portmap requires IPv6 rules even for an IPv4 pod, and reference bandwidth panics without limits.
        for plugin in ("bandwidth", "firewall", "tuning"):
            self.run(plugin, "CHECK", network, name, attachment, by=binaries.directory()).assert_silent()
        outcome = self.run("portmap", "CHECK", network, name, attachment, by=binaries.directory())
        earlier = (
            self.ports[attachment.port][: self.ports[attachment.port].index(address(attachment.result))]
            if attachment.port
            else []
        )
        # The same container's port on the other network is no conflict.
        owners = {address(other.result): other_name for (_, other_name), other in self.attached.items()}
        if any(owners[ip] != name for ip in earlier):
            assert "rule comes first" in outcome.error()["msg"]
        else:
            outcome.assert_silent()

    @rule(network=networks, name=ids, how=st.sampled_from(("complete", "forgotten", "no sandbox", "no path", "twice")))
    def delete(self, network, name, how):
        """DEL with prevResult, without it, without the sandbox, without CNI_NETNS, or twice."""
        attachment = self.attached.get((network, name), Attachment({}, binaries.directory()))
        if how == "no sandbox":
            self.pods[network, name].delete()
        netns = "" if how == "no path" else None
        known = Attachment({}, attachment.by) if how == "forgotten" else attachment
        for plugin in (*reversed(PLUGINS), *(PLUGINS if how == "twice" else ())):
            self.run(plugin, "DEL", network, name, known, by=binaries.directory(), netns=netns).assert_silent()
        self.forget(network, name)

    @rule(network=networks, name=ids)
    def delete_by_reference(self, network, name):
        """DEL by the reference plugins, of an attachment by any plugins."""
        attachment = self.attached.get((network, name))
        if attachment is None or not self.reference:
            return
        for plugin in reversed(PLUGINS):
            # The reference firewall ignores podwire's records, which would remain until a GC without the container.
            by = attachment.by if plugin == "firewall" else self.reference
            self.run(plugin, "DEL", network, name, attachment, by=by).assert_silent()
        self.forget(network, name)

    @rule(network=networks, lost=st.sets(ids))
    def collect(self, network, lost):
        """GC collects the containers of this network whose sandboxes are missing, and nothing else."""
        # Some objects of the reference plugins do not name their owner, so GC cannot collect them.
        collected = [
            name for name in lost if self.attached.get((network, name), Attachment({}, Path())).by != self.reference
        ]
        for name in collected:
            self.pods[network, name].delete()
        valid = [{"containerID": name, "ifname": "eth0"} for name in CONTAINERS if name not in collected]
        for plugin in PLUGINS:
            keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}
            self.run(plugin, "GC", network, None, keys=keys).assert_silent()
        for name in collected:
            self.forget(network, name)

    @rule(network=networks)
    def status(self, network):
        """STATUS reports that pods can be attached, and changes nothing."""
        for plugin in PLUGINS:
            self.run(plugin, "STATUS", network, None, keys={"cniVersion": "1.1.0"}).assert_silent()

    @invariant()
    def leases_are_those_of_the_attached(self):
        """The store of each network contains the attached containers and their addresses."""
        leases = {}
        for network in SUBNETS:
            directory = self.store / network
            for file in directory.iterdir() if directory.is_dir() else ():
                if file.name not in BOOKKEEPING:
                    leases[network, file.read_text().split()[0]] = file.name
        assert leases == {key: address(attachment.result) for key, attachment in self.attached.items()}

    @invariant()
    def backups_are_those_of_the_attached(self):
        """Each network has one file of original settings for each attached container."""
        backups = {
            (network, file.name): file.read_text() for network in SUBNETS for file in (self.backups / network).glob("*")
        }
        expected = {(network, f"{name}_eth0.json"): '{\n "mtu": 1500\n}' for network, name in self.attached}
        assert backups == expected

    @invariant()
    def links_are_those_of_the_attached(self):
        """The host has the host veths and ifbs of the attached containers, and each sandbox has its address."""
        links = set(netstate.links(self.host)) - {"lo", "blue0", "green0"}
        ifbs = {
            bandwidth_network.ifb_name(name, network)
            for (network, name), attachment in self.attached.items()
            if attachment.runtime_config.get("bandwidth")
        }
        assert links == {host_end(attachment.result) for attachment in self.attached.values()} | ifbs
        for key, attachment in self.attached.items():
            (item,) = netstate.links(self.pods[key])["eth0"]["addresses"]
            assert item["local"] == address(attachment.result)

    @invariant()
    def rules_are_those_of_the_attached(self):
        """Rules contain the addresses of attached containers only; each port has its targets, in the order of ADD."""
        if not self.attached and not self.host.run("nft", "list", "tables"):
            return
        lines = netstate.nft_rules(self.host)
        addresses = {word for line in lines for word in re.findall(r"10\.[12]\.0\.\d+(?![\d/])", line)}
        assert addresses == {address(attachment.result) for attachment in self.attached.values()}
        if self.backend == "nftables":
            assert {port: hostports.dnat_targets(self.host, port) for port in PORTS} == {
                port: [f"{ip}:80" for ip in each] for port, each in self.ports.items()
            }
            return
        saved = netstate.iptables_rules(self.host)
        order = [line.split()[-1] for line in saved if line.startswith("-A CNI-HOSTPORT-DNAT ")]
        targets = {line.split()[1]: line.split()[-1] for line in saved if "--to-destination" in line}
        ports = {line.split()[1]: dport(line) for line in saved if "--to-destination" in line}
        assert len(targets) == len(order)
        assert {port: [targets[chain] for chain in order if ports[chain] == str(port)] for port in PORTS} == {
            port: [f"{ip}:80" for ip in each] for port, each in self.ports.items()
        }

    def forget(self, network, name):
        attachment = self.attached.pop((network, name), None)
        if attachment and attachment.port:
            self.ports[attachment.port].remove(address(attachment.result))
        if not self.pods[network, name].exists():
            while attachment and host_end(attachment.result) in netstate.links(self.host):
                time.sleep(0.01)  # the kernel deletes a namespace in the background
            self.pods[network, name] = namespaces.create()

    def directory(self, theirs):
        return self.reference if theirs and self.reference else binaries.directory()

    def run(self, plugin, command, network, name, attachment=None, *, by=None, netns=None, keys=None):
        config = {
            "cniVersion": "1.0.0",
            "name": network,
            "type": plugin,
            **self.options(plugin, network),
            **(keys or {}),
        }
        if attachment and attachment.runtime_config:
            config["runtimeConfig"] = attachment.runtime_config
        if attachment and attachment.result:
            config["prevResult"] = attachment.result
        directory = by or (attachment.by if attachment else binaries.directory())
        path = self.pods[network, name].path if name and netns is None else netns
        next(runs)
        return run_plugin(plugin, command, config, netns=path, container_id=name, host=self.host, bin_dir=directory)

    def options(self, plugin, network):
        if plugin == "bandwidth":
            return {"capabilities": {"bandwidth": True}}
        if plugin == "portmap":
            return {"capabilities": {"portMappings": True}, "backend": self.backend}
        if plugin == "firewall":
            return {"backend": self.backend, "ingressPolicy": "same-bridge"}
        if plugin == "tuning":
            return {"mtu": 1400, "dataDir": str(self.backups / network)}
        ranges = [[{"subnet": f"{SUBNETS[network]}.0/24"}]]
        ipam = {"type": "host-local", "dataDir": str(self.store), "ranges": ranges}
        masquerading = {"ipMasq": True, "ipMasqBackend": self.backend}
        return {"bridge": f"{network}0", "isDefaultGateway": True, **masquerading, "ipam": ipam}


def dport(line):
    """Returns the port that a rule of iptables matches."""
    match = re.search(r"--dport (\d+)", line)
    assert match, line
    return match[1]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("backend", ["nftables", "iptables", "with the reference"])
def test_node_equals_the_model(root, bin_dir, reference, nightly, backend):
    """After each verb of any sequence, the node has exactly the objects of the model."""
    before = next(runs)
    arguments = ("iptables", reference) if backend == "with the reference" else (backend, None)
    node = cast(type[RuleBasedStateMachine], functools.partial(Node, *arguments))
    run_state_machine_as_test(
        node,
        settings=settings(
            max_examples=60 if nightly else 3,
            stateful_step_count=40 if nightly else 20,
            derandomize=not nightly,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # shrinking would take an hour
            suppress_health_check=list(HealthCheck),
        ),
    )
    promises.record("model", verbs=next(runs) - before)
