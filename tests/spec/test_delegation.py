"""Delegation to an IPAM plugin in the same process and in another process: both must have the same outcome.

An IPAM plugin that is the same file as bridge runs inside bridge's process; a copy is another file and is executed.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.spec import configs
from tests.support import netstate
from tests.support.invocation import run_plugin
from tests.support.namespaces import Namespace, temporary, temporary_host

DELEGATES = ("host-local", "static")
DUAL = ["10.1.2.0/24", "fd00:1::/64"]
NO_ADDRESS = {"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.2"}
# After a failed ADD, bridge runs DEL of an executed IPAM plugin; that leaves a lock file, and may fail.
_AFTER_ADD = "podwire: could not run DEL of host-local after its failed ADD"
_VETH = re.compile(r"veth[0-9a-f]{8}")
_AGE = re.compile(r"for \d+ seconds")
LISTED = [{"containerID": "cid-1", "ifname": "eth0"}]


def ipam(*subnets, **keys):
    return {"ipam": configs.host_local(Path("STORE"), *subnets) | keys}


def static(*addresses, **keys):
    """Returns the `ipam` section of static, from texts like "10.1.2.7/24 via 10.1.2.1"."""
    objects = [dict(zip(("address", "gateway"), item.split(" via "), strict=False)) for item in addresses]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "mtu": 1400}]
    return {"ipam": {"type": "static", "addresses": objects, "routes": routes, "dns": {"search": ["s"]}} | keys}


def step(command, keys=None, **parameters):
    """Returns one invocation: verb, keys of the configuration (STORE means the lease directory), other parameters."""
    return command, ipam() if keys is None else keys, parameters


def in_version(version, keys=None):
    """Returns ADD and DEL with one version of the specification."""
    return [step(command, (keys or ipam()) | {"cniVersion": version}) for command in ("ADD", "DEL")]


TWO_ADDRESSES = static("10.1.2.7/24 via 10.1.2.1", "fd00:1::7/64")
STATIC = {
    **{f"static, version {version}": in_version(version, TWO_ADDRESSES) for version in configs.VERSIONS},
    "static, all verbs": [step(command, TWO_ADDRESSES) for command in ("ADD", "CHECK", "STATUS", "GC", "DEL", "DEL")],
    "static, edited": [
        step("ADD", TWO_ADDRESSES),
        step("CHECK", static("10.1.2.7/24 via 10.1.2.9")),
        step("DEL", static("x")),
    ],
    "static, requested": [
        step("ADD", TWO_ADDRESSES | {"runtimeConfig": {"ips": ["10.1.2.8/24"]}}),
        step("CHECK", TWO_ADDRESSES | {"runtimeConfig": {"ips": ["10.1.2.8/24"]}}),
        step("CHECK", TWO_ADDRESSES | {"capabilities": {"ips": True}}),
        step("CHECK", TWO_ADDRESSES),
    ],
    "static, arguments": [step("ADD", TWO_ADDRESSES, args="IgnoreUnknown=1;IP=10.1.3.8/24;GATEWAY=10.1.3.1")],
    "static, bad arguments": [
        *(step("ADD", TWO_ADDRESSES, args=args) for args in ("IP=10.1.2.8/24", "IgnoreUnknown=1;IP=10.1.2.8", "FOO")),
        *(step("DEL", TWO_ADDRESSES, args=args) for args in ("IgnoreUnknown=1;IP=10.1.2.8", "FOO")),
    ],
    "static, no prefix": [step(command, static("10.1.2.8")) for command in ("ADD", "CHECK", "STATUS", "DEL", "GC")],
    "static, no address": [
        *(step(command, static()) for command in ("ADD", "CHECK", "STATUS", "DEL")),
        *(step("ADD", static() | {"cniVersion": version}) for version in ("0.2.0", "0.4.0")),
    ],
    "static, two of a family, first version": [
        step(command, static("10.1.2.7/24", "10.1.2.8/24") | {"cniVersion": "0.2.0"}) for command in ("ADD", "DEL")
    ],
    "static, wrong types": [
        step("ADD", static(addresses="x")),
        step("ADD", static("10.1.2.7/24", routes=[{}])),
        step("DEL", static(addresses="x")),
    ],
}

CASES = {
    **STATIC,
    **{f"version {version}": in_version(version) for version in configs.VERSIONS},
    "two families": [step("ADD", ipam(*DUAL)), step("CHECK", ipam(*DUAL)), step("DEL", ipam(*DUAL))],
    "two families, first version": [step("ADD", ipam(*DUAL) | {"cniVersion": "0.2.0"})],
    "again": [step("ADD"), step("ADD"), step("DEL"), step("DEL"), step("ADD")],
    "duplicate allocation": [step("ADD"), step("unplug"), step("ADD"), step("DEL")],
    "lease lost": [step("ADD"), step("CHECK"), step("forget"), step("CHECK"), step("DEL")],
    "other interface": [step("ADD"), step("ADD", ifname="eth1"), step("DEL"), step("DEL", ifname="eth1")],
    "exhausted": [
        step("ADD", ipam(ranges=[[NO_ADDRESS]])),
        step("ADD", ipam(ranges=[[NO_ADDRESS]]), container_id="cid-2", ifname="eth1"),
        step("STATUS", ipam(ranges=[[NO_ADDRESS]])),
    ],
    "requested": [
        step("ADD", args="IgnoreUnknown=1;IP=10.1.2.77"),
        step("ADD", args="IgnoreUnknown=1;IP=10.1.2.77", ifname="eth1"),
    ],
    "requested elsewhere": [step("ADD", args="IgnoreUnknown=1;IP=10.9.9.9")],
    "unknown arguments": [step("ADD", args="FOO=1"), step("ADD", args="IgnoreUnknown=1;FOO=1")],
    "malformed arguments": [step("ADD", args="FOO"), step("DEL", args="FOO")],
    "too small": [step("ADD", ipam("10.1.2.0/31")), step("DEL", ipam("10.1.2.0/31"))],
    "host bits": [step("ADD", ipam("10.1.2.3/24"))],
    "no ranges": [step("ADD", ipam(ranges=[])), step("CHECK", ipam(ranges=[])), step("DEL", ipam(ranges=[]))],
    "wrong type": [step("ADD", ipam(ranges="x")), step("DEL", ipam(dataDir=5))],
    "two sets, first version": [step("ADD", ipam("10.1.2.0/24", "10.1.3.0/24") | {"cniVersion": "0.2.0"})],
    "missing resolv.conf": [step("ADD", ipam(resolvConf="/no/such/file"))],
    "check without lease": [step("CHECK")],
    "delete without lease": [step("DEL"), step("DEL", netns=None)],
    "status": [step("STATUS"), step("STATUS", ipam(ranges=[]))],
    "collect": [
        step("ADD"),
        step("ADD", container_id="cid-2", ifname="eth1"),
        step("GC", ipam() | {"cni.dev/valid-attachments": LISTED}),
        step("GC", ipam() | {"cni.dev/valid-attachments": []}),
        step("GC"),
    ],
    "unknown type": [step(command, {"ipam": {"type": "nope"}}) for command in ("ADD", "DEL", "CHECK", "STATUS", "GC")],
    "type is a path": [step("ADD", {"ipam": {"type": "../host-local"}})],
}


@dataclass
class Setup:
    """Executables, namespaces and a lease directory for one kind of delegation, and the result of the last ADD."""

    directory: Path
    host: Namespace
    sandbox: Namespace
    result: Any = None

    def run(self, command: str, keys: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """Runs one step and returns its observable outcome without random parts."""
        if command == "unplug":
            self.sandbox.ip("link", "delete", "eth0")
        elif command == "forget":
            shutil.rmtree(self.directory / "STORE")
        else:
            return self.invoke(command, self.config(command, keys), parameters)
        return {"status": 0}

    def config(self, command: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Returns the configuration of a step, with this setup's lease directory and last result."""
        base = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": True}
        chained = {"prevResult": self.result} if command == "CHECK" and self.result else {}
        config: dict[str, Any] = json.loads(json.dumps(base | keys | chained).replace('"STORE"', f'"{self.store}"'))
        return config

    @property
    def store(self) -> Path:
        """The lease directory."""
        return self.directory / "STORE"

    def invoke(self, command: str, config: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """Runs bridge and returns the observable outcome."""
        parameters = {"netns": self.sandbox, "container_id": "cid-1", **parameters}
        outcome = run_plugin("bridge", command, config, host=self.host, bin_dir=self.directory / "bin", **parameters)
        answer = outcome.json if outcome.stdout else {}
        if command == "ADD" and outcome.status == 0:
            self.result = answer
        return {
            "status": outcome.status,
            "stdout": {key: value for key, value in self.normalize(answer).items() if key != "interfaces"},
            "stderr": [line for line in self.normalize(outcome.stderr).splitlines() if not line.startswith(_AFTER_ADD)],
            "leases": {file.name: file.read_text() for file in self.store.glob("net/*") if file.name != "lock"},
            "addresses": [link["addresses"] for name, link in netstate.links(self.sandbox).items() if name != "lo"],
        }

    def normalize(self, value: Any) -> Any:
        """Replaces the paths, times and random names in a JSON value."""
        text = json.dumps(value).replace(str(self.directory), "DIR").replace(self.sandbox.path, "SANDBOX")
        return json.loads(_AGE.sub("for N seconds", _VETH.sub("VETH", text)))


@pytest.fixture
def same_process(root, bin_dir, tmp_path):
    """A setup in which bridge and its IPAM plugins are one file."""
    directory = tmp_path / "same_process" / "bin"
    directory.mkdir(parents=True)
    shutil.copy2(bin_dir / "bridge", directory / "bridge")
    for name in DELEGATES:
        (directory / name).hardlink_to(directory / "bridge")
    with temporary_host() as host, temporary() as sandbox:
        yield Setup(directory.parent, host, sandbox)


@pytest.fixture
def other_process(root, bin_dir, tmp_path):
    """A setup in which bridge and its IPAM plugins are several files; calls of IPAM plugins are recorded."""
    directory = tmp_path / "other_process" / "bin"
    (directory / "real").mkdir(parents=True)
    shutil.copy2(bin_dir / "bridge", directory / "bridge")
    for name in DELEGATES:
        shutil.copy2(bin_dir / name, directory / "real" / name)
        wrapper = directory / name
        note = f'echo "{name} $CNI_COMMAND" >> {tmp_path}/calls'
        wrapper.write_text(f"#!/bin/sh\n{note}\nexec {directory}/real/{name}\n")
        wrapper.chmod(0o755)
    with temporary_host() as host, temporary() as sandbox:
        yield Setup(directory.parent, host, sandbox)


@pytest.mark.parametrize("case", CASES)
def test_delegation_in_the_same_and_in_another_process_is_equal(same_process, other_process, case):
    """Exit status, output, leases and the pod's addresses are the same whether IPAM is another process or not."""
    for number, invocation in enumerate(CASES[case]):
        one, other = same_process.run(*invocation), other_process.run(*invocation)
        assert one == other, f"step {number}: {invocation[0]}"
        assert one["status"] in (0, 1)


@pytest.mark.parametrize(("kind", "keys"), [("host-local", None), ("static", TWO_ADDRESSES)])
def test_executed_ipam_plugin_is_another_process(other_process, tmp_path, kind, keys):
    """An IPAM plugin that is another file than bridge is executed for each verb."""
    for command in ("ADD", "CHECK", "DEL"):
        assert other_process.run(*step(command, keys))["status"] == 0
    assert (tmp_path / "calls").read_text().splitlines() == [f"{kind} {command}" for command in ("ADD", "CHECK", "DEL")]


def test_delegates_are_searched_on_cni_path(same_process):
    """The first file of the name on CNI_PATH is run, whatever the directory of bridge is."""
    elsewhere = same_process.directory / "elsewhere"
    elsewhere.mkdir()
    script = elsewhere / "host-local"
    script.write_text('#!/bin/sh\necho \'{"code": 1234, "msg": "from elsewhere"}\'\nexit 1\n')
    script.chmod(0o755)
    bin_directory = same_process.directory / "bin"
    for path, code in ((f"/no/such:{elsewhere}:{bin_directory}", 1234), (f"{bin_directory}:{elsewhere}", 0)):
        assert same_process.run("ADD", ipam(), {"path": path})["stdout"].get("code", 0) == code
