"""The calls with which containerd (go-cni) and CRI-O (ocicni) attach the pods of a node through libcni.

One rule: the same calls in the same order. The caller is a process on the node: the network, /run and /var/lib/cni are
the node's.
"""

import json
import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import libcni, private_host
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace

CACHE = Path("/var/lib/cni")
PODS = 110  # kubelet's limit for a node

_LOOPBACK = {"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}  # built into go-cni
_NO_BURST = 2**32 - 1  # containerd's value for a burst
_TIMEOUT_S = 60

Run = Callable[[str, Mapping[str, str], bytes], Outcome]  # program, environment, stdin
Conf = Mapping[str, Any]


@dataclass(frozen=True)
class Sandbox:
    """A pod sandbox, as its runtime knows it; `order` rotates CNI_ARGS, which go-cni does not sort."""

    pod: str
    id: str
    netns: str
    capabilities: Conf = field(default_factory=dict)
    order: int = 0

    @property
    def args(self) -> str:
        """The value of CNI_ARGS."""
        pairs = [f"{key}={value}" for key, value in self.pairs.items()]
        first = self.order % len(pairs)
        return ";".join(pairs[first:] + pairs[:first])

    @property
    def pairs(self) -> dict[str, str]:
        """The pairs of CNI_ARGS."""
        return {
            "IgnoreUnknown": "1",
            "K8S_POD_NAMESPACE": "default",
            "K8S_POD_NAME": self.pod,
            "K8S_POD_INFRA_CONTAINER_ID": self.id,
            "K8S_POD_UID": f"uid-{self.pod}",
        }


def capabilities(*host_ports: int, limited: bool = False) -> dict[str, object]:
    """Returns the capabilities of a pod as containerd 1.6 sends them: Go's names, all annotations, the DNS settings."""
    sent: dict[str, object] = {
        "dns": {"Servers": ["10.96.0.10"], "Searches": ["default.svc.cluster.local"], "Options": ["ndots:5"]},
        "io.kubernetes.cri.pod-annotations": {"kubernetes.io/config.source": "api"},
    }
    if host_ports:
        sent["portMappings"] = [
            {"HostPort": port, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""} for port in host_ports
        ]
    if limited:
        rates = {"IngressRate": 10_000_000, "IngressBurst": _NO_BURST, "EgressRate": 0, "EgressBurst": 0}
        sent["bandwidth"] = rates
    return sent


def typical_sandbox(number: int, netns: str, first_port: int) -> Sandbox:
    """Returns one of a node's typical pods: every second one has a host port, every tenth one a rate limit."""
    runtime_capabilities = capabilities(*[first_port + number] * (number % 2), limited=number % 10 == 0)
    return Sandbox(f"pod-{number}", f"{number:064x}", netns, runtime_capabilities, number)


def conflist(name: str, bridge: str, subnet: str, **portmap_keys: object) -> dict[str, Any]:
    """Returns a network's list, with every capability that a runtime offers."""
    ranges, routes = [[{"subnet": subnet}]], [{"dst": "0.0.0.0/0"}]
    ipam = {"type": "host-local", "dataDir": str(CACHE / "networks"), "ranges": ranges, "routes": routes}
    offered = {"dns": True, "io.kubernetes.cri.pod-annotations": True, "cgroupPath": True}
    bridge_keys = {"isGateway": True, "ipMasq": True, "hairpinMode": True, "capabilities": offered, "ipam": ipam}
    plugins: list[dict[str, object]] = [
        {"type": "bridge", "bridge": bridge, **bridge_keys},
        {"type": "portmap", "capabilities": {"portMappings": True}, **portmap_keys},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ]
    return {"cniVersion": "1.0.0", "name": name, "plugins": plugins}


def run_on_node(function: Callable[[Namespace], Any]) -> Any:
    """Runs a function in a child process that is a node, and returns its result, which must be serializable as JSON."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(readable)
            host = private_host.enter("/var/lib/cni")
            (CACHE / "results").mkdir(parents=True)
            os.write(writable, json.dumps(function(host)).encode())
            os._exit(0)
        except BaseException:
            os.write(writable, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(writable)
    try:
        with open(readable, "rb") as pipe:
            output = pipe.read().decode()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    assert status == 0, output
    return json.loads(output)


def _run(program: str, env: Mapping[str, str], stdin: bytes) -> Outcome:
    done = subprocess.run([program], input=stdin, env=env, capture_output=True, timeout=_TIMEOUT_S, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


@dataclass(frozen=True)
class Runtime:
    """A runtime on a node that has one network and the plugins of `bin_dir`."""

    bin_dir: Path
    network: Conf
    run: Run = _run

    def set_up(self, sandbox: Sandbox) -> dict[str, Any]:
        """Attaches a sandbox to loopback and the network in parallel, and returns the network's result."""
        with ThreadPoolExecutor(1) as executor:
            loopback = executor.submit(self._add, _LOOPBACK, sandbox, "lo")
            try:
                return self._add(self.network, sandbox, "eth0")
            finally:
                loopback.result()

    def tear_down(self, sandbox: Sandbox, netns: str | None = None) -> None:
        """Detaches a sandbox from both, sequentially; `netns` is the present path, "" for a missing namespace."""
        path = sandbox.netns if netns is None else netns
        self._delete(_LOOPBACK, sandbox, "lo", path)
        self._delete(self.network, sandbox, "eth0", path)

    def check(self, sandbox: Sandbox) -> None:
        """Checks the network of a sandbox with the cached result."""
        for plugin in self.network["plugins"]:
            request = _request(self.network, plugin, sandbox, self._cached(self.network, sandbox, "eth0"))
            self._call("CHECK", plugin, request, sandbox, "eth0", sandbox.netns).assert_silent()

    def _add(self, network: Conf, sandbox: Sandbox, ifname: str) -> dict[str, Any]:
        result: dict[str, Any] | None = None
        for plugin in network["plugins"]:
            request = _request(network, plugin, sandbox, result)
            result = self._call("ADD", plugin, request, sandbox, ifname, sandbox.netns).result()
        assert result is not None
        libcni.write_entry(
            CACHE,
            network["name"],
            sandbox.id,
            netns=sandbox.netns,
            ifname=ifname,
            result=result,
            config=network,
            capability_args=sandbox.capabilities,
            cni_args=sandbox.pairs,
        )
        return result

    def _delete(self, network: Conf, sandbox: Sandbox, ifname: str, netns: str) -> None:
        # DEL has prevResult since version 0.4.0
        cached = None if network["cniVersion"] == "0.3.1" else self._cached(network, sandbox, ifname)
        for plugin in reversed(network["plugins"]):
            request = _request(network, plugin, sandbox, cached)
            self._call("DEL", plugin, request, sandbox, ifname, netns).assert_silent()
        _entry(network, sandbox, ifname).unlink(missing_ok=True)

    def _cached(self, network: Conf, sandbox: Sandbox, ifname: str) -> Any:
        path = _entry(network, sandbox, ifname)
        return json.loads(path.read_text())["result"] if path.exists() else None

    def _call(self, verb: str, plugin: Conf, request: Conf, sandbox: Sandbox, ifname: str, netns: str) -> Outcome:
        """Runs VERSION of a plugin, then a verb."""
        program = str(self.bin_dir / plugin["type"])
        version_request = json.dumps({"cniVersion": request["cniVersion"]}).encode()
        dummies = dict.fromkeys(("CNI_NETNS", "CNI_IFNAME", "CNI_PATH"), "dummy")
        versions = self.run(program, environment("VERSION", CNI_CONTAINERID="", **dummies), version_request).json
        assert request["cniVersion"] in versions["supportedVersions"], versions
        variables = {
            "CNI_CONTAINERID": sandbox.id,
            "CNI_NETNS": netns,
            "CNI_ARGS": sandbox.args,
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(self.bin_dir),
        }
        return self.run(program, environment(verb, **variables), json.dumps(request).encode())


def _request(network: Conf, plugin: Conf, sandbox: Sandbox, prev_result: object) -> dict[str, Any]:
    """Returns a plugin's stdin as libcni builds it; runtimeConfig has the capabilities that the plugin declares."""
    declared: Sequence[str] = [key for key, enabled in plugin.get("capabilities", {}).items() if enabled]
    runtime_config = {key: sandbox.capabilities[key] for key in declared if key in sandbox.capabilities}
    return {
        **plugin,
        "name": network["name"],
        "cniVersion": network["cniVersion"],
        **({"runtimeConfig": runtime_config} if runtime_config else {}),
        **({"prevResult": prev_result} if prev_result is not None else {}),
    }


def _entry(network: Conf, sandbox: Sandbox, ifname: str) -> Path:
    return CACHE / "results" / f"{network['name']}-{sandbox.id}-{ifname}"
