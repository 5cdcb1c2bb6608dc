"""`make demo`: two pods join a network and leave it again, each step shown and checked.

One rule: it is what happens on a node. The built files read conf/10-podwire.conflist as it is, and everything stands
where it would stand there, in a network and mount namespace that the machine never sees and that end with the demo.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

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
_RATE, _BURST = 10_000_000, 4_294_967_295  # what containerd makes of "10M", in bits
_LIMITS = {"ingressRate": _RATE, "ingressBurst": _BURST, "egressRate": _RATE, "egressBurst": _BURST}
_NEXT = """\
Next, on a node, as root (README.md, "Install"):
  dist/bin/podwire install --conf --subnet 10.22.0.0/16   # the plugins, and a network
  /opt/cni/bin/podwire doctor                             # checks the node
To work on podwire: CONTRIBUTING.md; make check (under a minute), make test (everything)."""
_HOST, _CLIENT, _HOST_PORT = "192.0.2.1", "192.0.2.2", 80


class UnexpectedError(Exception):
    """Something is not as it should be."""


class Pod(NamedTuple):
    """A pod: its name, which is also its container ID, its network namespace, and what it needs of the runtime."""

    name: str
    sandbox: Namespace
    wants: dict[str, Any]

    def attach(self, network: NetworkList) -> dict[str, Any]:
        """Adds the pod to a network, returns the result."""
        return self._asking(network).add(self._run)

    def check(self, network: NetworkList, result: dict[str, Any]) -> None:
        """Has the attachment checked."""
        self._asking(network).check(self._run, result)

    def detach(self, network: NetworkList, result: dict[str, Any]) -> None:
        """Takes the pod from a network."""
        self._asking(network).delete(self._run, result)

    def ping(self, address: str, whose: str) -> None:
        """Pings once and tells how long it took."""
        answer = self.sandbox.run("ping", "-c", "1", "-W", "2", "-n", address, check=False)
        found = re.search(r"time=(\S+ ms)", answer)
        expect(found is not None, f"{self.name} reaches {whose} at {address}")
        say(f"{self.name:<4} -> {whose:<12} {address:<12} {found[1] if found else ''}")

    def _asking(self, network: NetworkList) -> NetworkList:
        return network.asking(**self.wants)

    def _run(self, plugin: str, command: str, config: dict[str, Any]) -> Outcome:
        directory = binaries.directory()
        env = environment(
            command,
            CNI_CONTAINERID=self.name,
            CNI_NETNS=self.sandbox.path,
            CNI_IFNAME="lo" if plugin == "loopback" else "eth0",
            CNI_PATH=str(directory),
        )
        done = run(Invocation(str(directory / plugin), env, json.dumps(config).encode()))
        say(f"{self.name:<4} {command:<6} {plugin:<9} {done.ms:6.1f} ms")
        return done.outcome


def main() -> int:
    """Runs the demo; returns 0 when everything was as it should be."""
    if problem := binaries.explain_missing():
        print(problem, file=sys.stderr)
        return 2
    try:
        with ExitStack() as stack:
            _demo(stack)
    except PermissionError as error:
        print(f"the demo needs root: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; nothing is left behind", file=sys.stderr)
        return 130
    except (UnexpectedError, AssertionError, OSError) as error:
        sys.stdout.flush()
        print(f"\nNOT AS IT SHOULD BE: {error}", file=sys.stderr)
        return 1
    print(f"\nEverything was as it should be.\n\n{_NEXT}")
    return 0


def _demo(stack: ExitStack) -> None:
    host = private_host.enter("/var/lib/cni")
    number = itertools.count(1)

    def step(title: str) -> None:
        print(f"\n{next(number)}. {title}", flush=True)

    step("A host of its own, the plugins as built, the configuration as in conf/")
    podwire = binaries.directory() / "podwire"
    say(f"{output(str(podwire), '--version').strip()} in {podwire.parent}: {', '.join(binaries.names())}")
    loopback, network = (NetworkList.load(_CONF / name) for name in ("99-loopback.conflist", "10-podwire.conflist"))
    say("\n".join(json.dumps(plugin) for plugin in network.plugins))

    step("Two pods join: loopback, bridge, portmap and bandwidth each, as a runtime starts them")
    mapping = {"hostPort": _HOST_PORT, "containerPort": PORT, "protocol": "tcp"}
    wants = {"web": {"portMappings": [mapping], "bandwidth": _LIMITS}, "db": {}}
    pods = [Pod(name, stack.enter_context(namespaces.temporary(name)), needs) for name, needs in wants.items()]
    lo_results = [pod.attach(loopback) for pod in pods]
    results = [pod.attach(network) for pod in pods]
    addresses = [result["ips"][0]["address"].partition("/")[0] for result in results]
    gateway = results[0]["ips"][0]["gateway"]
    expect(len({*addresses, gateway}) == 3, f"the addresses differ: {addresses}, gateway {gateway}")

    step(f"What the runtime is told about {pods[0].name}")
    say(json.dumps(results[0], indent=2))

    step("What the pods have")
    for pod in pods:
        say(f"{pod.name}:\n{textwrap.indent(pod.sandbox.ip('-br', 'addr') + pod.sandbox.ip('route'), '  ')}")
    for pod, address in zip(pods, addresses, strict=True):
        found = [entry["local"] for entry in links(pod.sandbox)["eth0"]["addresses"]]
        expect(found == [address], f"{pod.name} has {address}, not {found}")

    step("They reach each other and their gateway")
    for (pod, _), (other, address) in itertools.permutations(zip(pods, addresses, strict=True), 2):
        pod.ping(address, other.name)
        pod.ping(gateway, "the gateway")

    step(f"Port {_HOST_PORT} of the host leads to {pods[0].name}")
    _call(host, pods[0], addresses[0])

    step(f"What {pods[0].name} receives and sends is limited to 10 Mbit/s")
    limits = [line for line in host.run("tc", "qdisc", "show").splitlines() if " tbf " in line]
    say("\n".join(limits))
    expect([" rate 10Mbit " in line for line in limits] == [True, True], "two limits of 10 Mbit/s")

    step("CHECK finds all in order")
    for pod, lo_result, result in zip(pods, lo_results, results, strict=True):
        pod.check(loopback, lo_result)
        pod.check(network, result)

    step("The pods leave")
    for pod, lo_result, result in zip(pods, lo_results, results, strict=True):
        pod.detach(network, result)
        pod.detach(loopback, lo_result)

    step("What is left: the bridge and its address, settings, what host ports share, the last address given")
    _show_rest(host, [pod.sandbox for pod in pods], f"{gateway}/16", network.name)


def _call(host: Namespace, pod: Pod, address: str) -> None:
    """Has somebody elsewhere, and the host itself, call the pod's server by the host's addresses."""
    with namespaces.temporary("client") as client, serving(pod.sandbox, address):
        host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", client.name)
        for namespace, own in ((host, _HOST), (client, _CLIENT)):
            namespace.ip("address", "add", f"{own}/24", "dev", "up0")
            namespace.ip("link", "set", "up0", "up")
        for caller, who, called in ((client, "client", _HOST), (host, "host", "127.0.0.1")):
            seen = source_address(caller, called, _HOST_PORT)
            say(f"{who:<6} -> {called}:{_HOST_PORT} -> {address}:{PORT}, which sees {seen or 'nobody'}")
            expect(bool(seen), f"{pod.name} answers at {called}:{_HOST_PORT}")
            expect(caller == host or seen == _CLIENT, f"{pod.name} sees {_CLIENT}, not {seen}")
        host.ip("link", "delete", "up0")


def _show_rest(host: Namespace, sandboxes: list[Namespace], gateway: str, network: str) -> None:
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
    left = links(host)
    bridge = [f"{entry['local']}/{entry['prefixlen']}" for entry in left.get("cni0", {}).get("addresses", [])]
    expect(set(left) == {"lo", "cni0"}, f"only lo and cni0 are left on the host: {sorted(left)}")
    expect(bridge == [gateway], f"cni0 keeps {gateway}: {bridge}")
    expect(forwarding == "1", "forwarding stays on")
    expect(not any("CNI-DN-" in line for line in chains), "no pod has a host port any more")
    by_design = {f"{network}/lock", f"{network}/last_reserved_ip.0", f".podwire/{network}"}
    expect(set(files) <= by_design, f"no address is reserved any more: {files}")
    for sandbox in sandboxes:
        inside = links(sandbox)
        expect(set(inside) == {"lo"}, f"only lo is left in the pod: {sorted(inside)}")
        expect("UP" not in inside["lo"]["flags"], "lo is down in the pod")


def expect(condition: bool, what: str) -> None:
    """Ends the demo unless `condition` holds."""
    if not condition:
        raise UnexpectedError(f"expected: {what}")


def say(text: str) -> None:
    """Prints below the current step."""
    print(textwrap.indent(text.rstrip(), "   "), flush=True)


if __name__ == "__main__":
    sys.exit(main())
