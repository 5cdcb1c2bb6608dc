"""`make demo`: attaches two pods to a network and detaches them; prints and checks each step.

One rule: the demo is what happens on a node. The built files read the unchanged conf/10-podwire.conflist and use the
paths of a node, in a network namespace and a mount namespace that the machine does not see and that end with the demo.
"""

import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.process import Invocation, run
from tests.support import binaries, namespaces, private_host
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.netstate import links
from tests.support.processes import output
from tests.support.tcp import PORT, serving, source_address

_LEASES = Path("/var/lib/cni/networks")  # host-local's default
_CONF = binaries.ROOT / "conf"
_RATE, _BURST = 10_000_000, 4_294_967_295  # what containerd sends for "10M", in bits
_LIMITS = {"ingressRate": _RATE, "ingressBurst": _BURST, "egressRate": _RATE, "egressBurst": _BURST}
_NEXT = """\
Next, on a node, as root (README.md, "Install"):
  dist/bin/podwire install --conf --subnet 10.22.0.0/16   # the plugins, and a network
  /opt/cni/bin/podwire doctor                             # checks the node
To work on podwire: CONTRIBUTING.md; make check (40 seconds), make test (7 minutes)."""
_HOST, _CLIENT, _HOST_PORT = "192.0.2.1", "192.0.2.2", 80


@dataclass
class Pod:
    """A pod: its name, which is also its container ID, its network namespace, and the runtime's capability args.

    `lo_result` and `result` are the results of its attachments to loopback and to the network.
    """

    name: str
    sandbox: Namespace
    capability_args: dict[str, Any]
    lo_result: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        address: str = self.result["ips"][0]["address"]
        return address.partition("/")[0]

    def ping(self, address: str, name: str) -> None:
        """Pings `address`, which belongs to `name`, once, and prints the round-trip time."""
        answer = self.sandbox.run("ping", "-c", "1", "-W", "2", "-n", address, check=False)
        match = re.search(r"time=(\S+ ms)", answer)
        expect(match is not None, f"{self.name} reaches {name} at {address}")
        say(f"{self.name:<4} -> {name:<12} {address:<12} {match[1] if match else ''}")

    def run(self, plugin: str, command: str, config: dict[str, Any]) -> Outcome:
        """Runs a plugin's verb for the pod and prints its duration."""
        directory = binaries.directory()
        names = {"CNI_CONTAINERID": self.name, "CNI_IFNAME": "lo" if plugin == "loopback" else "eth0"}
        env = environment(command, CNI_NETNS=self.sandbox.path, CNI_PATH=str(directory), **names)
        done = run(Invocation(str(directory / plugin), env, json.dumps(config).encode()))
        say(f"{self.name:<4} {command:<6} {plugin:<9} {done.ms:6.1f} ms")
        return done.outcome


def main() -> int:
    """Runs the demo; returns 0 if every step had the expected effect."""
    if problem := binaries.explain_missing():
        print(problem, file=sys.stderr)
        return 2
    try:
        with ExitStack() as stack:
            demo = Demo(private_host.enter("/var/lib/cni"), stack)
            for number, (title, step) in enumerate(demo.list_steps(), 1):
                print(f"\n{number}. {title}", flush=True)
                step()
    except PermissionError as error:
        print(f"the demo needs root: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; nothing is left behind", file=sys.stderr)
        return 130
    except (AssertionError, OSError) as error:
        sys.stdout.flush()
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    print(f"\nEvery step had the expected effect.\n\n{_NEXT}")
    return 0


class Demo:
    """The steps of the demo on `host`, a private network namespace; the pods' namespaces end with `stack`."""

    def __init__(self, host: Namespace, stack: ExitStack) -> None:
        self._host = host
        self._loopback = NetworkList.load(_CONF / "99-loopback.conflist")
        self._network = NetworkList.load(_CONF / "10-podwire.conflist")
        mapping = {"hostPort": _HOST_PORT, "containerPort": PORT, "protocol": "tcp"}
        args: dict[str, dict[str, Any]] = {"web": {"portMappings": [mapping], "bandwidth": _LIMITS}, "db": {}}
        self._gateway = ""
        self._pods = [Pod(name, stack.enter_context(namespaces.temporary(name)), args[name]) for name in args]

    def list_steps(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("A private host, the built plugins, the configuration of conf/", self.show_host),
            ("Two pods are attached to loopback, bridge, portmap and bandwidth, as by a runtime", self.attach),
            ("The result that the runtime gets for web", self.show_result),
            ("Addresses and routes of the pods", self.show_pods),
            ("The pods reach each other and their gateway", self.ping),
            (f"Port {_HOST_PORT} of the host is forwarded to web", self.call_host_port),
            ("The traffic that web receives and sends is limited to 10 Mbit/s", self.show_limits),
            ("CHECK succeeds", self.check),
            ("The pods are detached", self.detach),
            ("What remains: bridge, settings, shared rules of host ports, the last allocated address", self.show_rest),
        ]

    def show_host(self) -> None:
        podwire = binaries.directory() / "podwire"
        say(f"{output(str(podwire), '--version').strip()} in {podwire.parent}: {', '.join(binaries.names())}")
        say("\n".join(json.dumps(plugin) for plugin in self._network.plugins))

    def attach(self) -> None:
        for pod in self._pods:
            pod.lo_result = self._loopback.add(pod.run)
        for pod in self._pods:
            pod.result = self._network.with_capabilities(**pod.capability_args).add(pod.run)
        self._gateway = self._pods[0].result["ips"][0]["gateway"]
        addresses = [pod.address for pod in self._pods]
        expect(len({*addresses, self._gateway}) == 3, f"the addresses differ: {addresses}, gateway {self._gateway}")

    def show_result(self) -> None:
        say(json.dumps(self._pods[0].result, indent=2))

    def show_pods(self) -> None:
        for pod in self._pods:
            say(f"{pod.name}:\n{textwrap.indent(pod.sandbox.ip('-br', 'addr') + pod.sandbox.ip('route'), '  ')}")
            actual = [entry["local"] for entry in links(pod.sandbox)["eth0"]["addresses"]]
            expect(actual == [pod.address], f"{pod.name} has {pod.address}, not {actual}")

    def ping(self) -> None:
        for pod, other in itertools.permutations(self._pods, 2):
            pod.ping(other.address, other.name)
            pod.ping(self._gateway, "the gateway")

    def call_host_port(self) -> None:
        """Calls the first pod's server by the host's addresses, from another machine and from the host."""
        pod, host, address = self._pods[0], self._host, self._pods[0].address
        with namespaces.temporary("client") as client, serving(pod.sandbox, address):
            host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", client.name)
            for namespace, ip in ((host, _HOST), (client, _CLIENT)):
                namespace.ip("address", "add", f"{ip}/24", "dev", "up0")
                namespace.ip("link", "set", "up0", "up")
            for caller, name, target in ((client, "client", _HOST), (host, "host", "127.0.0.1")):
                source = source_address(caller, target, _HOST_PORT)
                say(f"{name:<6} -> {target}:{_HOST_PORT} -> {address}:{PORT}; source address {source or 'none'}")
                expect(bool(source), f"{pod.name} answers at {target}:{_HOST_PORT}")
                expect(caller == host or source == _CLIENT, f"the source address is {_CLIENT}, not {source}")
            host.ip("link", "delete", "up0")

    def show_limits(self) -> None:
        limits = [line for line in self._host.run("tc", "qdisc", "show").splitlines() if " tbf " in line]
        say("\n".join(limits))
        expect([" rate 10Mbit " in line for line in limits] == [True, True], "two limits of 10 Mbit/s")

    def check(self) -> None:
        for pod in self._pods:
            self._loopback.check(pod.run, pod.lo_result)
            self._network.with_capabilities(**pod.capability_args).check(pod.run, pod.result)

    def detach(self) -> None:
        for pod in self._pods:
            self._network.with_capabilities(**pod.capability_args).delete(pod.run, pod.result)
            self._loopback.delete(pod.run, pod.lo_result)

    def show_rest(self) -> None:
        """Prints the remaining objects and files; nothing else may remain."""
        host = self._host
        forwarding = host.sysctl("net/ipv4/ip_forward")
        chains = [line for line in host.run("iptables-save", "-t", "nat").splitlines() if "CNI-" in line]
        files = sorted(str(path.relative_to(_LEASES)) for path in _LEASES.rglob("*") if path.is_file())
        say(host.ip("-br", "addr"))
        say(f"net.ipv4.ip_forward = {forwarding}")
        say(f"{_LEASES}: {' '.join(files)}")
        say(f"net.ipv4.conf.cni0.route_localnet = {host.sysctl('net/ipv4/conf/cni0/route_localnet')}")
        guard = "nft list table ip cni_hostport 2>/dev/null || iptables-save -t mangle | grep 127.0.0.0/8"
        say(host.run("sh", "-c", guard))
        say("\n".join(chains))
        remaining = links(host)
        bridge = [f"{item['local']}/{item['prefixlen']}" for item in remaining.get("cni0", {}).get("addresses", [])]
        expect(set(remaining) == {"lo", "cni0"}, f"the host has only lo and cni0: {sorted(remaining)}")
        expect(bridge == [f"{self._gateway}/16"], f"cni0 keeps {self._gateway}/16: {bridge}")
        for pod in self._pods:
            pod_links = links(pod.sandbox)
            expect(set(pod_links) == {"lo"}, f"{pod.name} has only lo: {sorted(pod_links)}")
            expect("UP" not in pod_links["lo"]["flags"], f"lo of {pod.name} is down")
        expect(forwarding == "1", "forwarding stays enabled")
        expect(not any("CNI-DN-" in line for line in chains), "no pod has a host port any more")
        name = self._network.name
        permanent = {f"{name}/lock", f"{name}/last_reserved_ip.0", f".podwire/{name}"}
        expect(set(files) <= permanent, f"no address is reserved any more: {files}")


def expect(condition: bool, expected: str) -> None:
    """Ends the demo unless `condition` holds."""
    assert condition, f"expected: {expected}"


def say(text: str) -> None:
    """Prints below the title of the current step."""
    print(textwrap.indent(text.rstrip(), "   "), flush=True)


if __name__ == "__main__":
    sys.exit(main())
