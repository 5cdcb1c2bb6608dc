"""The operator's tool on a machine where podman's containers live: it finds them all, and nothing wrong; it mends.

One rule: the tool runs with its defaults, as an operator types it.
"""

import json

import pytest

from tests.clients.podman import serving
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, BIN_DIR, PEER_ADDRESS
from tests.support.sockets import Reached, call, is_unreachable

TOOL = str(BIN_DIR / "podwire")
NOTES = {"store-in-memory"}  # of this machine, whose /var/lib/cni is in memory


@pytest.fixture
def tool(podman):
    """A function that runs the tool with `--json`, which must succeed, and returns its document."""
    return lambda *words: json.loads(podman.machine.run(TOOL, *words, "--json"))


@pytest.fixture
def living(podman):
    """Containers on a network of ours, on one of podman's, on both, and on none, by their names."""
    with podman.network("auto", "--subnet=10.68.0.0/24") as auto:
        yield {
            "web": podman.start("web", "--publish=8080:80", "--publish=127.0.0.1:8053:53/udp"),
            "both": podman.start("both", f"--network={auto}", "--publish=8081:80"),
            "default": podman.start("default", network=""),
            "alone": podman.start("alone", network="none"),
        }


def attachments(podman, living):
    """Returns who has which address, as podman knows it."""
    told = podman("ps", "--no-trunc", "--format={{.Names}} {{.ID}}").splitlines()
    ids = dict(line.split() for line in told)
    each = ((name, network, told) for name, container in living.items() for network, told in container.networks.items())
    return {(network, ids[name], name, f"{told['IPAddress']}/{told['IPPrefixLen']}") for name, network, told in each}


def test_all_who_live_are_found_and_nothing_is_wrong(podman, living, tool):
    """Tool and podman agree on who is who; doctor, lint, verify and repair have nothing to say while they live."""
    wrong = [found for found in tool("doctor")["checks"] if found["severity"] != "ok" and found["name"] not in NOTES]
    assert wrong == []
    seen = tool("show")
    found = {(one["network"], one["containerID"], one["pod"], *one["addresses"]) for one in seen["attachments"]}
    assert found == attachments(podman, living)
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


def test_those_who_are_gone_are_forgotten(podman, tool):
    """After `podman rm` the tool knows of nobody, and misses nothing."""
    podman.start("web", "--publish=8080:80")
    assert len(tool("show")["attachments"]) == 1
    podman.remove()
    seen = tool("show")
    assert seen["attachments"] + seen["leaks"] + seen["unseen"] == []
    assert [found for found in tool("doctor")["checks"] if found["severity"] in ("problem", "warning")] == []


@pytest.mark.parametrize("flush", ["nft flush ruleset", "iptables -F; iptables -X; iptables -t nat -F"])
def test_repair_after_a_flush(podman, living, tool, flush):
    """What a flush took from podman's containers `podwire repair` makes again, so that the machine is as before."""
    machine = podman.machine
    before = machine.picture()
    machine.run("sh", "-c", flush)
    assert is_unreachable([], machine.peer, "tcp", ADDRESS, 8080)
    assert "podwire repair" in machine.run(TOOL, "doctor", check=False)
    assert tool("repair")["counts"] == {"repaired": 4}
    assert_same_rules(machine.picture(), before)
    with serving(living["web"], living["both"]) as services:
        assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        assert call(services, machine.peer, "tcp", ADDRESS, 8081) == Reached("both", PEER_ADDRESS)
        assert call(services, machine.network, "tcp", "127.0.0.1", 8080) == Reached("web", "10.22.0.1")
    assert reaches(living["default"].namespace, PEER_ADDRESS)


def assert_same_rules(after, before):
    """Demands the same state; rules of different containers may stand in another order."""
    assert {key: after[key] for key in after if key not in ("nft", "iptables")} == {
        key: before[key] for key in before if key not in ("nft", "iptables")
    }
    for tool in ("iptables", "ip6tables"):
        assert sorted(after["iptables"][tool]) == sorted(before["iptables"][tool])
    assert sorted(after["nft"]) == sorted(before["nft"])


def test_a_namespace_that_is_lost(podman, tool):
    """The tool tells of a container whose namespace was taken, of which podman tells no plugin; gc takes all away."""
    machine = podman.machine
    with machine.unchanged():
        podman.start("web", "--publish=8080:80")
        told = podman("inspect", "--format={{.State.Pid}} {{.NetworkSettings.SandboxKey}}", "web")
        machine.run("sh", "-ec", 'kill -9 "$1"; umount "$2"; rm "$2"', "sh", *told.split())
        machine.run("podman", "rm", "--force", "--time=0", "web")  # which may complain
        seen = json.loads(machine.run(TOOL, "show", "--json", check=False))
        assert [one["state"] for one in seen["attachments"]] == ["gone"]
        assert "podwire gc podwire" in machine.run(TOOL, "doctor", check=False)
        assert len(tool("gc", "podwire")["deleted"]) == 1
