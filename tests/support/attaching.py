"""Networks on a temporary host, of one plugin or of bridge and a chained plugin: runs verbs for pods as a runtime does.

The container ID of a pod is the name of its namespace.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.support import binaries, netstate
from tests.support.invocation import Outcome, environment, gc_keys, run_plugin, start_plugin
from tests.support.namespaces import Namespace

BOOKKEEPING = ("lock", "last_reserved_ip.0", "last_reserved_ip.1")  # files of host-local that are not leases
DEBUG_LOG = {"PODWIRE_LOG": "stderr", "PODWIRE_LOG_LEVEL": "debug"}  # for list_steps
_LIST_ADDRESSES = ("RTM_GETADDR", "0x16 ")  # as strace prints it


@dataclass(frozen=True)
class Network:
    """A network configuration on one host; `path` is CNI_PATH, `bin_dir` the plugin's directory, by default podwire's.

    `env` are further variables for each verb.
    """

    host: Namespace
    config: Mapping[str, Any]
    path: str | None = None
    bin_dir: Path | None = None
    env: Mapping[str, str] | None = None

    def having(self, **keys: Any) -> Self:
        """Returns the same network with other top-level keys; None removes a key."""
        config = {**self.config, **keys}
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def with_plugin(self, bin_dir: Path | None) -> Self:
        """Returns the same network with the plugin of another directory, None for podwire's."""
        return replace(self, bin_dir=bin_dir)

    def request(self, prev_result: object = None) -> dict[str, Any]:
        """Returns the configuration of one call."""
        return {**self.config, **({} if prev_result is None else {"prevResult": prev_result})}

    def run(self, command: str, pod: Namespace | str | None = None, prev_result: object = None, **how: Any) -> Outcome:
        """Runs one verb to its end; `how` as start_plugin takes it."""
        plugin = str(self.config.get("type", "bridge"))
        return run_plugin(plugin, command, self.request(prev_result), **self._how(pod, how))

    def run_after(
        self, preparation: str, command: str, pod: Namespace, *, wrapper: str = "", prev_result: object = None
    ) -> Outcome:
        """Runs one verb after a shell command in a mount namespace of its own; `wrapper` is a command that runs it."""
        directory = self.bin_dir or binaries.directory()
        names = {"CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
        config = dict(self.config) if prev_result is None else {**self.config, "prevResult": prev_result}
        script = f"{preparation}; exec {wrapper} {directory / self.config['type']}"
        with self.host.entered():
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-ec", script],
                input=json.dumps(config).encode(),
                env=environment(command, CNI_PATH=self.path or str(directory), **names),
                capture_output=True,
                timeout=60,
                check=False,
            )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def start(self, command: str, pod: Namespace, **how: Any) -> subprocess.Popen[bytes]:
        """Starts one verb with its whole input and returns its process; invocation.finish awaits its end."""
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(self.config).encode())
            stdin.seek(0)
            return start_plugin(str(self.config["type"]), command, stdin=stdin, **self._how(pod, how))

    def add(self, pod: Namespace, prev_result: object = None, **how: Any) -> dict[str, Any]:
        """Attaches `pod` and returns the result; a failure fails the test."""
        return self.run("ADD", pod, prev_result, **how).result()

    def check(self, pod: Namespace, result: object, **how: Any) -> None:
        """Checks the attachment of `pod`; a failure fails the test."""
        self.run("CHECK", pod, result, **how).assert_silent()

    def delete(self, pod: Namespace | str | None, result: object = None, **how: Any) -> str:
        """Detaches `pod`, a namespace or the text of CNI_NETNS; a failure fails the test. Returns stderr."""
        outcome = self.run("DEL", pod, result, **how)
        outcome.assert_silent()
        return outcome.stderr

    def gc(self, *valid: Namespace | tuple[str, str], **keys: Any) -> str:
        """Runs GC; a failure fails the test. Returns stderr.

        `valid` are the valid attachments: container ID and interface, or a pod for its eth0.
        """
        pairs = [(one.name, "eth0") if isinstance(one, Namespace) else one for one in valid]
        outcome = self.having(**{**gc_keys(*pairs), **keys}).run("GC", container_id=None, ifname=None)
        outcome.assert_silent()
        return outcome.stderr

    def everything(self, pod: Namespace) -> Any:
        """Returns all state that the plugin can change for a pod; a subclass knows more than the networks' state."""
        return netstate.state(self.host), netstate.state(pod)

    def add_error(self, pod: Namespace, prev_result: object = None, **how: Any) -> dict[str, Any]:
        """Runs ADD, which must fail without changing `everything`; returns its error."""
        before = self.everything(pod)
        error = self.run("ADD", pod, prev_result, **how).error()
        assert self.everything(pod) == before
        return error

    def check_error(self, pod: Namespace, prev_result: object, **how: Any) -> str:
        """Runs CHECK, which must fail; returns its message."""
        return str(self.run("CHECK", pod, prev_result, **how).error()["msg"])

    def leases(self) -> dict[str, str]:
        """Returns the addresses that host-local holds for this network, with the container ID of each."""
        directory = Path(self.config["ipam"]["dataDir"]) / self.config["name"]
        files = directory.iterdir() if directory.is_dir() else ()
        return {file.name: file.read_text().split()[0] for file in files if file.name not in BOOKKEEPING}

    def _how(self, pod: Namespace | str | None, how: dict[str, Any]) -> dict[str, Any]:
        defaults = {"netns": pod, "host": self.host, "path": self.path, "bin_dir": self.bin_dir, "env": self.env}
        return {**defaults, **({"container_id": pod.name} if isinstance(pod, Namespace) else {}), **how}


@dataclass(frozen=True)
class ChainedNetwork:
    """A bridge network with the plugin TYPE after bridge; `keys` are its options, `bin_dir` is its directory.

    `keys` override the network's keys, such as "name"; None omits a key. Without `bin_dir` the plugin is podwire's.
    """

    TYPE: ClassVar[str]

    bridge: Network
    keys: Mapping[str, Any] = field(default_factory=dict)
    bin_dir: Path | None = None

    @property
    def host(self) -> Namespace:
        """The namespace that represents the node."""
        return self.bridge.host

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the chained plugin, without prevResult."""
        network = {key: self.bridge.config[key] for key in ("cniVersion", "name")}
        config = {**network, "type": self.TYPE, **self.keys}
        return {key: value for key, value in config.items() if value is not None}

    @property
    def chained(self) -> Network:
        """The chained plugin alone."""
        return Network(self.host, self.config, bin_dir=self.bin_dir)

    def having(self, **keys: Any) -> Self:
        """Returns the same network with other options of the chained plugin; None omits a key."""
        return replace(self, keys={**self.keys, **keys})


def address(result: Mapping[str, Any], number: int = 0) -> str:
    """Returns an address of a result without its prefix."""
    return str(result["ips"][number]["address"].partition("/")[0])


def host_end(result: Mapping[str, Any]) -> str:
    """Returns the name of the attachment's host interface."""
    return str(result["interfaces"][1]["name"])


def reaches(namespace: Namespace, destination: str, *, within_s: int = 20, options: tuple[str, ...] = ()) -> bool:
    """Returns whether `destination` answers a ping within the time; sends five a second."""
    line = ("ping", "-n", "-c1", "-i0.2", f"-w{within_s}", *options, destination)
    return "bytes from" in namespace.run(*line, check=False)


def list_steps(outcome: Outcome) -> list[str]:
    """Returns the names of the steps of a verb that ran with DEBUG_LOG, in the order in which they ended."""
    return [step["what"] for step in json.loads(outcome.stderr.splitlines()[-1])["steps"]]


def count_messages(network: Network, pod: Namespace) -> int:
    """Attaches a pod and returns how many netlink messages the plugin sent, without those of its IPAM plugin.

    Lists of addresses are not counted: the plugin repeats them until the kernel has tested the IPv6 addresses.
    """
    outcome = network.run("ADD", pod, before=("strace", "-e", "trace=sendto"))
    outcome.result()
    lines = [line for line in outcome.stderr.splitlines() if "sendto(" in line]
    return sum(not any(f"nlmsg_type={name}" in line for name in _LIST_ADDRESSES) for line in lines)
