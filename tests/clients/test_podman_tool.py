"""The operator's tool on a machine with running podman containers: it lists them, reports no problem, and repairs.

One rule: the tool runs with its defaults, as an operator types it.
"""

import json

import pytest

from tests.clients.podman import serving
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, BIN_DIR, PEER_ADDRESS, eventually
from tests.support.sockets import Reached, call, is_unreachable

TOOL = str(BIN_DIR / "podwire")
NOTES = {"store-in-memory"}  # of this machine, whose /var/lib/cni is in memory


@pytest.fixture
def tool(podman):
    """A function that runs the tool with `--json`, which must succeed, and returns the document."""
    return lambda *words: json.loads(podman.machine.run(TOOL, *words, "--json"))


@pytest.fixture
def containers(podman):
    """Containers on podwire's network, on podman's, on both, and on none, by their names."""
    with podman.network("auto", "--subnet=10.68.0.0/24") as auto:
        yield {
            "web": podman.start("web", "--publish=8080:80", "--publish=127.0.0.1:8053:53/udp"),
            "both": podman.start("both", f"--network={auto}", "--publish=8081:80"),
            "default": podman.start("default", network=""),
            "alone": podman.start("alone", network="none"),
        }


def attachments(podman, containers):
    """Returns network, container ID, name and address of each attachment, as podman reports them."""
    ids = dict(line.split() for line in podman("ps", "--no-trunc", "--format={{.Names}} {{.ID}}").splitlines())
    return {
        (network, ids[name], name, f"{settings['IPAddress']}/{settings['IPPrefixLen']}")
        for name, container in containers.items()
        for network, settings in container.networks.items()
    }


def test_tool_lists_running_containers_and_no_problem(podman, containers, tool):
    """Tool and podman list the same attachments; doctor, lint, verify and repair report nothing."""
    checks = tool("doctor")["checks"]
    assert [check for check in checks if check["severity"] != "ok" and check["name"] not in NOTES] == []
    seen = tool("show")
    listed = {(one["network"], one["containerID"], one["pod"], *one["addresses"]) for one in seen["attachments"]}
    assert listed == attachments(podman, containers)
    assert {one["state"] for one in seen["attachments"]} == {"ok"}
    ports = [
        (one["pod"], port["hostPort"], port["confirmed"]) for one in seen["attachments"] for port in one["hostPorts"]
    ]
    assert {*ports} == {("web", 8080, True), ("web", 8053, True), ("both", 8081, True)}
    assert seen["leaks"] + seen["unseen"] == []
    lint = tool("lint")
    assert [lint[kind] for kind in ("errors", "warnings", "notes")] == [0, 0, 0]
    assert {one["network"] for one in lint["files"]} == {"podwire", "auto"}
    assert tool("ipam", "verify") == {"findings": [], "unseen": [], "complete": True}
    assert tool("repair", "--dry-run")["counts"] == {"fine": 4}


@pytest.mark.parametrize("flush", ["nft flush ruleset", "iptables -F; iptables -X; iptables -t nat -F"])
def test_repair_after_a_flush(podman, containers, tool, flush):
    """After a flush `podwire repair` adds the rules of podman's containers again, so that the state is as before."""
    machine = podman.machine
    before = machine.picture()
    machine.run("sh", "-c", flush)
    assert is_unreachable([], machine.peer, "tcp", ADDRESS, 8080)
    assert "podwire repair" in machine.run(TOOL, "doctor", check=False)
    assert tool("repair")["counts"] == {"repaired": 4}
    after = machine.picture()  # the order of rules of different containers may differ
    assert {key: after[key] for key in after if key not in ("nft", "iptables")} == {
        key: before[key] for key in before if key not in ("nft", "iptables")
    }
    for tool in ("iptables", "ip6tables"):
        assert sorted(after["iptables"][tool]) == sorted(before["iptables"][tool])
    assert sorted(after["nft"]) == sorted(before["nft"])
    with serving(containers["web"], containers["both"]) as services:
        assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        assert call(services, machine.peer, "tcp", ADDRESS, 8081) == Reached("both", PEER_ADDRESS)
        assert call(services, machine.network, "tcp", "127.0.0.1", 8080) == Reached("web", "10.22.0.1")
    assert reaches(containers["default"].namespace, PEER_ADDRESS)


def states(machine):
    """Returns the states of all attachments, as the tool shows them."""
    shown = json.loads(machine.run(TOOL, "show", "--json", check=False))
    return [one["state"] for one in shown["attachments"]]


@pytest.mark.usefixtures("machine_unchanged")
def test_container_with_deleted_namespace_is_collected(podman, tool):
    """The tool reports a container with a deleted namespace, for which podman runs no DEL; gc removes the rest."""
    machine = podman.machine
    podman.start("web", "--publish=8080:80")
    process = podman("inspect", "--format={{.State.Pid}} {{.NetworkSettings.SandboxKey}}", "web")
    machine.run("sh", "-ec", 'umount "$2"; rm "$2"; kill -9 "$1"', "sh", *process.split())
    machine.run("podman", "rm", "--force", "--time=0", "web", check=False)  # may print an error
    # The kernel deletes the namespace and its links in the background; until then they are a proof of life.
    assert eventually(lambda: states(machine) == ["gone"]), states(machine)
    assert "podwire gc podwire" in machine.run(TOOL, "doctor", check=False)
    assert len(tool("gc", "podwire")["deleted"]) == 1
