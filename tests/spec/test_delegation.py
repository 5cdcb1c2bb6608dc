"""Delegation inside one process and to another: bridge must not tell the two apart.

host-local or static that is the same file as bridge runs inside bridge's process; a copy of it is another file, so it
is exec'd.
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
NONE_LEFT = {"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.2", "rangeEnd": "10.1.2.2"}
# After a failed ADD another program is given a DEL, in case it left something: this leaves a lock file, and may fail.
_AFTER_ADD = "podwire: could not run DEL of host-local after its failed ADD"
_VETH = re.compile(r"veth[0-9a-f]{8}")
_AGE = re.compile(r"for \d+ seconds")
LISTED = [{"containerID": "cid-1", "ifname": "eth0"}]


def ipam(*subnets, **keys):
    return {"ipam": configs.host_local(Path("STORE"), *subnets) | keys}


def static(*addresses, **keys):
    """Describes the section of static; an address without a gateway has none."""
    own = [dict(zip(("address", "gateway"), item.split(" via "), strict=False)) for item in addresses]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "mtu": 1400}]
    return {"ipam": {"type": "static", "addresses": own, "routes": routes, "dns": {"search": ["s"]}} | keys}


def step(command, keys=None, **how):
    """Describes one invocation; `keys` go over the configuration, STORE in it is the way's lease directory."""
    return command, ipam() if keys is None else keys, how


def in_version(version, keys=None):
    """Describes an attachment under one version of the specification."""
    return [step(command, (keys or ipam()) | {"cniVersion": version}) for command in ("ADD", "DEL")]


GIVEN = static("10.1.2.7/24 via 10.1.2.1", "fd00:1::7/64")
STATIC = {
    **{f"static, version {version}": in_version(version, GIVEN) for version in configs.VERSIONS},
    "static, all verbs": [step(command, GIVEN) for command in ("ADD", "CHECK", "STATUS", "GC", "DEL", "DEL")],
    "static, edited": [step("ADD", GIVEN), step("CHECK", static("10.1.2.7/24 via 10.1.2.9")), step("DEL", static("x"))],
    "static, requested": [
        step("ADD", GIVEN | {"runtimeConfig": {"ips": ["10.1.2.8/24"]}}),
        step("CHECK", GIVEN | {"runtimeConfig": {"ips": ["10.1.2.8/24"]}}),
        step("CHECK", GIVEN | {"capabilities": {"ips": True}}),
        step("CHECK", GIVEN),
    ],
    "static, arguments": [step("ADD", GIVEN, args="IgnoreUnknown=1;IP=10.1.3.8/24;GATEWAY=10.1.3.1")],
    "static, bad arguments": [
        *(step("ADD", GIVEN, args=args) for args in ("IP=10.1.2.8/24", "IgnoreUnknown=1;IP=10.1.2.8", "FOO")),
        *(step("DEL", GIVEN, args=args) for args in ("IgnoreUnknown=1;IP=10.1.2.8", "FOO")),
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
        step("ADD", ipam(ranges=[[NONE_LEFT]])),
        step("ADD", ipam(ranges=[[NONE_LEFT]]), container_id="cid-2", ifname="eth1"),
        step("STATUS", ipam(ranges=[[NONE_LEFT]])),
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
class Way:
    """One of the two ways: its own executables, namespaces and lease directory, and the result of its last ADD."""

    directory: Path
    host: Namespace
    sandbox: Namespace
    result: Any = None

    def run(self, command: str, keys: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
        """Runs one step and returns everything that can be seen of it, free of what differs by chance."""
        if command == "unplug":
            self.sandbox.ip("link", "delete", "eth0")
        elif command == "forget":
            shutil.rmtree(self.directory / "STORE")
        else:
            return self.invoke(command, self.config(command, keys), how)
        return {"status": 0}

    def config(self, command: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Returns the configuration of a step, with this way's lease directory and last result in it."""
        base = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": True}
        chained = {"prevResult": self.result} if command == "CHECK" and self.result else {}
        config: dict[str, Any] = json.loads(json.dumps(base | keys | chained).replace('"STORE"', f'"{self.store}"'))
        return config

    @property
    def store(self) -> Path:
        """The lease directory."""
        return self.directory / "STORE"

    def invoke(self, command: str, config: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
        """Runs bridge and returns what can be seen."""
        how = {"netns": self.sandbox, "container_id": "cid-1", **how}
        outcome = run_plugin("bridge", command, config, host=self.host, bin_dir=self.directory / "bin", **how)
        seen = outcome.json if outcome.stdout else {}
        if command == "ADD" and outcome.status == 0:
            self.result = seen
        return {
            "status": outcome.status,
            "stdout": {key: value for key, value in self.settled(seen).items() if key != "interfaces"},
            "stderr": [line for line in self.settled(outcome.stderr).splitlines() if not line.startswith(_AFTER_ADD)],
            "leases": {file.name: file.read_text() for file in self.store.glob("net/*") if file.name != "lock"},
            "addresses": [link["addresses"] for name, link in netstate.links(self.sandbox).items() if name != "lo"],
        }

    def settled(self, value: Any) -> Any:
        """Replaces in a JSON value what belongs to this way alone: paths, times, and names made by chance."""
        text = json.dumps(value).replace(str(self.directory), "DIR").replace(self.sandbox.path, "SANDBOX")
        return json.loads(_AGE.sub("for N seconds", _VETH.sub("VETH", text)))


@pytest.fixture
def inside(root, bin_dir, tmp_path):
    """Bridge and its IPAM plugins as one file."""
    directory = tmp_path / "inside" / "bin"
    directory.mkdir(parents=True)
    shutil.copy2(bin_dir / "bridge", directory / "bridge")
    for name in DELEGATES:
        (directory / name).hardlink_to(directory / "bridge")
    with temporary_host() as host, temporary() as sandbox:
        yield Way(directory.parent, host, sandbox)


@pytest.fixture
def executed(root, bin_dir, tmp_path):
    """Bridge and its IPAM plugins as several files; calls of the latter are noted."""
    directory = tmp_path / "executed" / "bin"
    (directory / "real").mkdir(parents=True)
    shutil.copy2(bin_dir / "bridge", directory / "bridge")
    for name in DELEGATES:
        shutil.copy2(bin_dir / name, directory / "real" / name)
        wrapper = directory / name
        note = f'echo "{name} $CNI_COMMAND" >> {tmp_path}/calls'
        wrapper.write_text(f"#!/bin/sh\n{note}\nexec {directory}/real/{name}\n")
        wrapper.chmod(0o755)
    with temporary_host() as host, temporary() as sandbox:
        yield Way(directory.parent, host, sandbox)


@pytest.mark.parametrize("case", CASES)
def test_both_ways_are_alike(inside, executed, case):
    """Status, output, leases and the pod's addresses are the same whether IPAM is a second process or not."""
    for number, what in enumerate(CASES[case]):
        one, other = inside.run(*what), executed.run(*what)
        assert one == other, f"step {number}: {what[0]}"
        assert one["status"] in (0, 1)


@pytest.mark.parametrize(("kind", "keys"), [("host-local", None), ("static", GIVEN)])
def test_the_other_way_is_another_process(executed, tmp_path, kind, keys):
    """An IPAM plugin that is another file than bridge is really run, with each verb bridge runs."""
    for command in ("ADD", "CHECK", "DEL"):
        assert executed.run(*step(command, keys))["status"] == 0
    assert (tmp_path / "calls").read_text().splitlines() == [f"{kind} {command}" for command in ("ADD", "CHECK", "DEL")]


def test_delegates_are_found_along_the_path(inside):
    """The first file of the name on CNI_PATH is run, wherever bridge itself lies."""
    elsewhere = inside.directory / "elsewhere"
    elsewhere.mkdir()
    script = elsewhere / "host-local"
    script.write_text('#!/bin/sh\necho \'{"code": 1234, "msg": "from elsewhere"}\'\nexit 1\n')
    script.chmod(0o755)
    own = inside.directory / "bin"
    for path, code in ((f"/no/such:{elsewhere}:{own}", 1234), (f"{own}:{elsewhere}", 0)):
        assert inside.run("ADD", ipam(), {"path": path})["stdout"].get("code", 0) == code
