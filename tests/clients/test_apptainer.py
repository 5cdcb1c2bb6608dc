"""Instances of apptainer on its own networks, with only podwire's plugins.

One rule: the networks are the files that apptainer's package brings, unchanged. Only Debian sid has apptainer.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients import images
from tests.clients.cri import page
from tests.clients.images import PAGE
from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, BIN_DIR, PEER_ADDRESS, Machine, eventually
from tests.support.namespaces import Namespace
from tests.support.processes import PATH

SETTINGS, NETWORKS = Path("/etc/apptainer/apptainer.conf"), "/etc/apptainer/network"
PORT = "portmap=8080:80/tcp"
ACTION = ".singularity.d/actions/start"  # what an image runs as an instance


class Instance(NamedTuple):
    """A running instance, and the address that apptainer reports."""

    pid: int
    ip: str
    namespace: Namespace


class Apptainer(NamedTuple):
    """apptainer on a machine; `box` is an image, a directory, whose instances are web servers."""

    machine: Machine
    box: Path

    def line(self, network: str) -> list[str]:
        """Returns the command line that starts an instance; this machine's root may lack the dropped capability."""
        options = ("--drop-caps=CAP_SYS_RESOURCE", "--net", f"--network={network}", f"--network-args={PORT}")
        return ["apptainer", "instance", "start", *options, str(self.box), "web"]

    def start(self, network: str) -> Instance:
        """Starts an instance on a network and waits for its web server."""
        self.machine.run(*self.line(network))
        (one,) = json.loads(self.machine.run("apptainer", "instance", "list", "--json"))["instances"]
        instance = Instance(one["pid"], one["ip"], self.machine.namespace(f"/proc/{one['pid']}/ns/net"))
        assert eventually(lambda: page(instance.namespace, "127.0.0.1") == PAGE)
        return instance

    def stop(self) -> None:
        """Stops the instance."""
        self.machine.run("apptainer", "instance", "stop", "web")


@pytest.fixture(scope="module")
def apptainer(empty_machine, bin_dir):
    """Apptainer with podwire's plugins."""
    if not shutil.which("apptainer", path=PATH):
        pytest.skip("this Debian has no apptainer")
    box = empty_machine.scratch / "box"
    images.write_directory(box)
    (box / ACTION).parent.mkdir(parents=True)
    (box / ACTION).write_text(f"#!/bin/sh\nexec {' '.join(images.WEB_SERVER)}\n")
    (box / ACTION).chmod(0o755)
    empty_machine.install(bin_dir)
    text = SETTINGS.read_text().replace("#cni plugin path =", f"cni plugin path = {BIN_DIR}")
    assert str(BIN_DIR) in text
    empty_machine.write(SETTINGS, text)
    return Apptainer(empty_machine, box)


@pytest.fixture(params=["bridge", "ptp"])
def network(request, apptainer):
    """A network that has had an instance; the machine is in the same state before and after the test."""
    apptainer.start(request.param)
    apptainer.stop()
    with apptainer.machine.unchanged():
        yield request.param
        apptainer.machine.done("apptainer", "instance", "stop", "--all")  # a failed test leaves an instance


def test_instance_has_the_network(apptainer, network):
    """An instance has the address that apptainer reports, a host port, and reaches other machines, masqueraded."""
    instance = apptainer.start(network)
    assert [one["local"] for one in netstate.links(instance.namespace)["eth0"]["addresses"]] == [instance.ip]
    assert page(apptainer.machine.network, instance.ip) == PAGE
    assert page(apptainer.machine.peer, ADDRESS, 8080) == PAGE
    assert reaches(instance.namespace, PEER_ADDRESS)
    apptainer.stop()


def test_instance_that_cannot_start_leaves_nothing(apptainer, network):
    """If the program of an instance does not exist, apptainer runs DEL, and nothing remains."""
    action = apptainer.box / ACTION
    hidden = action.rename(action.with_name("hidden"))
    assert apptainer.machine.problem(*apptainer.line(network))
    hidden.rename(action)


def test_killed_instance_is_collected(apptainer, network):
    """`podwire gc` removes what remains of an instance that was killed, and nothing of a running one.

    Nobody sees the namespace at its path: on ptp nothing proves that the instance has ended, and gc refuses.
    """
    machine, instance = apptainer.machine, apptainer.start(network)
    gc = [str(BIN_DIR / "podwire"), "gc", network, f"--conf-dir={NETWORKS}"]
    assert "1 running, 0 no longer running" in machine.run(*gc)
    parent = machine.run("ps", "-o", "ppid=", "-p", str(instance.pid)).strip()
    machine.run("kill", "-9", parent, str(instance.pid))
    assert eventually(lambda: not [name for name in netstate.links(machine.network) if name.startswith("veth")])
    if network == "ptp":
        assert "may be running" in machine.problem(*gc)
        gc.append(f"--force={instance.pid}")
    assert "0 running, 1 no longer running" in machine.run(*gc)
