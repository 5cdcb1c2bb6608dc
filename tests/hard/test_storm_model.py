"""A model of two networks that share a node: whatever the runtimes do, in any order, the node is as the model says."""

import functools
import itertools
import re
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

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
CONTAINERS = ("a", "b", "c")  # of both networks, with interfaces of the same name
PORTS = (8080, 8081)
LIMITS = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000}

networks, ids = st.sampled_from(sorted(SUBNETS)), st.sampled_from(CONTAINERS)
runs = itertools.count(1)


@dataclass
class Attachment:
    """What the model knows of an attachment: ADD's result and what was asked for."""

    asked: dict
    by: Path
    port: int = 0
    result: dict = field(default_factory=dict)


class Node(RuleBasedStateMachine):
    """The model, and the node that it is compared with after each step."""

    def __init__(self, backend, reference):
        super().__init__()
        self.backend, self.reference = backend, reference
        self.stack = ExitStack()
        self.host = self.stack.enter_context(namespaces.temporary_host())
        directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.store, self.backups = directory / "leases", directory / "tuning"  # each gets one of ours beside it
        self.pods = {own: namespaces.create() for own in itertools.product(SUBNETS, CONTAINERS)}
        self.attached = {}
        self.ports = {port: [] for port in PORTS}  # the addresses that each leads to, the first one has it

    def teardown(self):
        for pod in self.pods.values():
            pod.delete()
        self.stack.close()

    @rule(
        network=networks,
        name=ids,
        port=st.sampled_from((0, *PORTS)),
        limited=st.booleans(),
        theirs=st.booleans(),
    )
    def add(self, network, name, port, limited, theirs):
        """ADD; of an attachment that is there it is refused, and changes nothing."""
        asked = {"bandwidth": LIMITS} if limited else {}
        if port:
            asked["portMappings"] = [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]
        own = Attachment(asked, self.directory(theirs), port)
        if (network, name) in self.attached:
            assert "already exists" in self.run("bridge", "ADD", network, name, own).error()["msg"]
            return
        for plugin in PLUGINS:
            own.result = self.run(plugin, "ADD", network, name, own).result()
        assert address(own.result).startswith(SUBNETS[network])
        self.attached[network, name] = own
        if port:
            self.ports[port].append(address(own.result))

    @rule(network=networks, name=ids, theirs=st.booleans())
    def check(self, network, name, theirs):
        """CHECK succeeds, except for a host port that another container had first."""
        own = self.attached.get((network, name))
        if own is None:
            return
        self.run("bridge", "CHECK", network, name, own, by=self.directory(theirs)).assert_silent()
        # Of Go's, portmap demands rules of IPv6 for a pod without, and bandwidth panics where there are no limits.
        for plugin in ("bandwidth", "firewall", "tuning"):
            self.run(plugin, "CHECK", network, name, own, by=binaries.directory()).assert_silent()
        outcome = self.run("portmap", "CHECK", network, name, own, by=binaries.directory())
        earlier = self.ports[own.port][: self.ports[own.port].index(address(own.result))] if own.port else []
        # What the container itself has on the other network is not in its way.
        owners = {address(other.result): other_name for (_, other_name), other in self.attached.items()}
        if any(owners[ip] != name for ip in earlier):
            assert "whose rule comes first" in outcome.error()["msg"]
        else:
            outcome.assert_silent()

    @rule(network=networks, name=ids, how=st.sampled_from(("whole", "forgotten", "no sandbox", "no path", "twice")))
    def delete(self, network, name, how):
        """DEL with all, without prevResult, without the sandbox, without being told of it, twice."""
        own = self.attached.get((network, name), Attachment({}, binaries.directory()))
        if how == "no sandbox":
            self.pods[network, name].delete()
        netns = "" if how == "no path" else None
        shown = Attachment({}, own.by) if how == "forgotten" else own
        for plugin in (*reversed(PLUGINS), *(PLUGINS if how == "twice" else ())):
            self.run(plugin, "DEL", network, name, shown, by=binaries.directory(), netns=netns).assert_silent()
        self.forget(network, name)

    @rule(network=networks, name=ids)
    def delete_by_reference(self, network, name):
        """DEL by Go's plugins, of what they or we have made."""
        own = self.attached.get((network, name))
        if own is None or not self.reference:
            return
        for plugin in reversed(PLUGINS):
            # Go's firewall does not know of our records, which would stay until a GC without the container.
            by = own.by if plugin == "firewall" else self.reference
            self.run(plugin, "DEL", network, name, own, by=by).assert_silent()
        self.forget(network, name)

    @rule(network=networks, lost=st.sets(ids))
    def collect(self, network, lost):
        """GC finds what is left of containers whose sandboxes are gone, of this network only."""
        # What Go's plugins make does not tell whose it is everywhere, so that it stays.
        mine = [
            name for name in lost if self.attached.get((network, name), Attachment({}, Path())).by != self.reference
        ]
        for name in mine:
            self.pods[network, name].delete()
        valid = [{"containerID": name, "ifname": "eth0"} for name in CONTAINERS if name not in mine]
        for plugin in PLUGINS:
            keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}
            self.run(plugin, "GC", network, None, keys=keys).assert_silent()
        for name in mine:
            self.forget(network, name)

    @rule(network=networks)
    def status(self, network):
        """STATUS says that pods can be attached, and changes nothing."""
        for plugin in PLUGINS:
            self.run(plugin, "STATUS", network, None, keys={"cniVersion": "1.1.0"}).assert_silent()

    @invariant()
    def leases_are_those_of_the_attached(self):
        """The store of each network has the attached, with their addresses."""
        found = {}
        for network in SUBNETS:
            directory = self.store / network
            for file in directory.iterdir() if directory.is_dir() else ():
                if file.name not in BOOKKEEPING:
                    found[network, file.read_text().split()[0]] = file.name
        assert found == {key: address(own.result) for key, own in self.attached.items()}

    @invariant()
    def backups_are_those_of_the_attached(self):
        """Each network has a file for each attached, that says what the interface was like."""
        found = {
            (network, file.name): file.read_text() for network in SUBNETS for file in (self.backups / network).glob("*")
        }
        wanted = {(network, f"{name}_eth0.json"): '{\n "mtu": 1500\n}' for network, name in self.attached}
        assert found == wanted

    @invariant()
    def links_are_those_of_the_attached(self):
        """The host has the other ends and the ifbs of the attached, each sandbox has its address."""
        found = set(netstate.links(self.host)) - {"lo", "blue0", "green0"}
        ifbs = {
            bandwidth_network.ifb_name(name, network)
            for (network, name), own in self.attached.items()
            if own.asked.get("bandwidth")
        }
        assert found == {host_end(own.result) for own in self.attached.values()} | ifbs
        for key, own in self.attached.items():
            (item,) = netstate.links(self.pods[key])["eth0"]["addresses"]
            assert item["local"] == address(own.result)

    @invariant()
    def rules_are_those_of_the_attached(self):
        """Rules name the addresses of the attached and no other; each port leads to whoever asked, in order."""
        if not self.attached and not self.host.run("nft", "list", "tables"):
            return
        lines = netstate.nft_rules(self.host)
        found = {word for line in lines for word in re.findall(r"10\.[12]\.0\.\d+(?![\d/])", line)}
        assert found == {address(own.result) for own in self.attached.values()}
        if self.backend == "nftables":
            assert {port: hostports.dnat_targets(self.host, port) for port in PORTS} == {
                port: [f"{ip}:80" for ip in each] for port, each in self.ports.items()
            }
            return
        saved = netstate.iptables_rules(self.host)
        order = [line.split()[-1] for line in saved if line.startswith("-A CNI-HOSTPORT-DNAT ")]
        leads = {line.split()[1]: line.split()[-1] for line in saved if "--to-destination" in line}
        ports = {line.split()[1]: re.search(r"--dport (\d+)", line)[1] for line in saved if "--to-destination" in line}
        assert len(leads) == len(order)
        assert {port: [leads[chain] for chain in order if ports[chain] == str(port)] for port in PORTS} == {
            port: [f"{ip}:80" for ip in each] for port, each in self.ports.items()
        }

    def forget(self, network, name):
        own = self.attached.pop((network, name), None)
        if own and own.port:
            self.ports[own.port].remove(address(own.result))
        if not self.pods[network, name].exists():
            while own and host_end(own.result) in netstate.links(self.host):
                time.sleep(0.01)  # the kernel takes a namespace away in its own time
            self.pods[network, name] = namespaces.create()

    def directory(self, theirs):
        return self.reference if theirs and self.reference else binaries.directory()

    def run(self, plugin, command, network, name, own=None, *, by=None, netns=None, keys=None):
        config = {
            "cniVersion": "1.0.0",
            "name": network,
            "type": plugin,
            **self.options(plugin, network),
            **(keys or {}),
        }
        if own and own.asked:
            config["runtimeConfig"] = own.asked
        if own and own.result:
            config["prevResult"] = own.result
        directory = by or (own.by if own else binaries.directory())
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


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("backend", ["nftables", "iptables", "with the reference"])
def test_the_node_is_as_the_model_says(root, bin_dir, reference, nightly, backend):
    """After each of any sequence of verbs, the node has what the model says and nothing else."""
    before = next(runs)
    node = functools.partial(Node, *((("iptables", reference)) if backend == "with the reference" else (backend, None)))
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
