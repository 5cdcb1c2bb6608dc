"""The node agent's Debian package on a machine whose process 1 is systemd, with an API server beside it."""

import json
import os
import re
import shutil
from collections.abc import Iterator

import pytest

from pack.release.agent_image import BASES
from tests.support import certificates, systemd_machine
from tests.support.kubernetes_double import NODES, KubernetesDouble
from tests.support.machine import eventually
from tests.support.systemd_machine import Machine

SERVICE = "podwire-agent"
LIBRARIES = "usr/lib/python3/dist-packages"
NODE_IP = "192.0.2.10"
OPTIONS = "--token-file /etc/podwire/token --ca-file /etc/podwire/ca.crt"


def node(number: int) -> dict[str, object]:
    addresses = [{"type": "InternalIP", "address": f"192.0.2.{number + 9}"}]
    return {
        "metadata": {"name": f"node-{number}"},
        "spec": {"podCIDRs": [f"10.244.{number}.0/24"]},
        "status": {"addresses": addresses},
    }


@pytest.fixture
def machine(root, release, tmp_path) -> Iterator[Machine]:
    """A machine with both packages, configured for an API server on its loopback interface; the service is stopped."""
    (tmp_path / "machine").mkdir()
    certificates.create(tmp_path)
    with systemd_machine.booted(tmp_path / "machine") as booted:
        booted.network.ip("link", "set", "lo", "up")
        booted.network.ip("link", "add", "eth0", "type", "veth", "peer", "name", "wire0")
        booted.network.ip("address", "add", f"{NODE_IP}/24", "dev", "eth0")
        for name in ("eth0", "wire0"):
            booted.network.ip("link", "set", name, "up")
        base = BASES["amd64"]
        for path in (release.one("podwire_*_amd64.deb"), release.one("podwire-agent_*_amd64.deb"), base):
            shutil.copy(path, booted.root / "tmp" / path.name)
        booted.run("tar", "-xf", f"/tmp/{base.name}", "-C", "/", f"./{LIBRARIES}")  # the test root lacks a library
        install(booted)
        with booted.network.entered():
            server = KubernetesDouble(tmp_path)
        with server.running():
            for number in (1, 2):
                server.store.put(f"{NODES}/node-{number}", node(number))
            settings = f'NODE_NAME=node-1\nPODWIRE_API_SERVER={server.url}\nOPTIONS="{OPTIONS}"\n'
            (booted.root / "etc/default/podwire-agent").write_text(settings)
            (booted.root / "etc/podwire/token").write_text("admin\n")
            shutil.copy(tmp_path / "ca.crt", booted.root / "etc/podwire/ca.crt")
            yield booted


def install(machine: Machine) -> None:
    machine.run("sh", "-c", "dpkg --force-depends --force-confold --install /tmp/*.deb")


def is_ready(machine: Machine) -> bool:
    line = ("curl", "--silent", "--fail", "--unix-socket", "/run/podwire/agent.sock", "http://agent/readyz")
    return machine.done(*line).returncode == 0


def pid_of(machine: Machine) -> int:
    return int(machine.run("systemctl", "show", "--property=MainPID", "--value", SERVICE))


def collections(machine: Machine) -> list[dict[str, object]]:
    """Returns the log's lines about `podwire gc`."""
    lines = machine.run("journalctl", "--unit", SERVICE, "--output=cat").splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in parsed if line["msg"].startswith("podwire gc")]


def routes(machine: Machine) -> str:
    return machine.network.ip("route", "show", "proto", "112")


def test_service_works_with_the_units_restrictions(machine):
    """The service is ready, writes the network, removes a deleted pod's lease; it has few capabilities and paths."""
    assert machine.done("systemctl", "is-enabled", SERVICE).stdout == "disabled\n"
    (machine.root / "var/lib/cni/results").mkdir(parents=True)
    machine.run("systemctl", "enable", "--now", SERVICE)
    assert eventually(lambda: is_ready(machine), within_s=100), machine.run("journalctl", "--unit", SERVICE)
    assert "10.244.2.0/24 via 192.0.2.11 dev eth0" in routes(machine)
    for name in ("running", "deleted"):
        machine.run("ip", "netns", "add", name)
        machine.run("podwire", "add", "podwire", name)
    machine.run("ip", "netns", "delete", "deleted")
    leases = machine.root / "var/lib/cni/networks/podwire"
    assert {"10.244.1.2", "10.244.1.3"} <= {path.name for path in leases.iterdir()}
    before = len(collections(machine))
    machine.run("systemctl", "restart", SERVICE)
    assert eventually(lambda: len(collections(machine)) > before, within_s=100)
    assert collections(machine)[-1]["msg"] == "podwire gc: ok", collections(machine)[-1]
    assert {path.name for path in leases.iterdir() if path.name[:2] == "10"} == {"10.244.1.2"}
    pid = pid_of(machine)
    status = machine.run("cat", f"/proc/{pid}/status")
    # DAC_OVERRIDE, NET_ADMIN, SYS_PTRACE, SYS_ADMIN (linux/capability.h)
    expected = sum(1 << number for number in (1, 12, 19, 21))
    assert {int(text, 16) for text in re.findall(r"Cap(?:Prm|Eff|Bnd):\s*(\w+)", status)} == {expected}
    for path in ("/usr/x", "/etc/x", "/var/lib/x"):
        done = machine.done("nsenter", f"--target={pid}", "--mount", "--", "sh", "-c", f"echo 0 >{path}")
        assert "Read-only file system" in done.stderr, path


def test_service_is_upgraded_ended_and_removed(machine):
    """An upgrade restarts the service, a killed one starts again, a removed one leaves the routes to --remove."""
    machine.run("systemctl", "enable", "--now", SERVICE)
    assert eventually(lambda: is_ready(machine), within_s=100), machine.run("journalctl", "--unit", SERVICE)
    before, first = routes(machine), pid_of(machine)
    install(machine)
    second = pid_of(machine)
    assert second not in (0, first)
    assert eventually(lambda: is_ready(machine), within_s=100)
    machine.run("kill", "-KILL", str(second))
    assert eventually(lambda: pid_of(machine) not in (0, second), within_s=100)
    machine.run("dpkg", "--remove", SERVICE)
    assert machine.done("systemctl", "is-active", SERVICE).stdout.strip() in ("inactive", "failed", "unknown")
    assert (routes(machine), before.count("10.244")) == (before, 2)
    install(machine)
    assert machine.done("systemctl", "is-enabled", SERVICE).stdout == "disabled\n"
    machine.run("podwire-agent", "--no-install", "--remove")
    assert routes(machine) == ""
    assert os.path.exists(machine.root / "opt/cni/bin/bridge")
