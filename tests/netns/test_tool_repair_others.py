"""podwire repair among others: pods of the reference, firewalld, and a runtime that deletes and adds meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.netns.test_tool_repair import BACKENDS, node, outside, unordered  # noqa: F401 - fixtures
from tests.support import binaries, firewalld
from tests.support.attaching import reaches
from tests.support.netlist import NetworkList
from tests.support.publishing import CLIENT, NODE
from tests.support.repair_node import Node
from tests.support.sockets import Reached, call, service

ROUNDS = 4
PODS = 6


@pytest.mark.parametrize("node", BACKENDS[1:], indirect=True)
def test_pods_of_the_reference(node, outside, new_sandbox, reference):  # noqa: F811 - fixtures
    """What the Go plugins made is made again, as they made it; one list may have plugins that are not ours."""
    first, *others = node.chain.plugins
    foreign = {"type": "flannel"}
    node = replace(node, bin_dir=reference)
    # The default route is IPAM's: the Go bridge adds none that is there.
    first = {**first, "macspoofchk": False, "isDefaultGateway": False, "isGateway": True}
    made = [first, *({**plugin, "backend": "iptables"} for plugin in others)]
    node = replace(node, chain=replace(node.chain, plugins=tuple(made)))
    pod = new_sandbox()
    result = node.with_ports("8080:80").add(pod)
    asked = node.with_ports("8080:80")
    replace(asked, chain=replace(asked.chain, plugins=(*asked.chain.plugins, foreign))).write_entry(
        pod.path, pod.name, result
    )
    before = uncommented(unordered(node.rules()))
    node.flush()
    with service(pod, "tcp", "0.0.0.0") as tcp:
        assert call([tcp], outside, "tcp", NODE, 8080) is None
        outcome = node.tool("--settle", "0")
        assert b"not in this file: flannel" in outcome.stdout, outcome
        assert call([tcp], outside, "tcp", NODE, 8080) == Reached(pod.name, CLIENT)
    assert reaches(pod, CLIENT)
    after = uncommented(unordered(node.rules()))
    # Ours also notes whose the addresses are, and guards the node's loopback.
    own = {name for name in after if "OWNERS" in name or "chain localnet" in name or "mangle PREROUTING" in name}
    assert {name: lines for name, lines in after.items() if name not in own} == before
    assert node.repair() == {pod.name: "fine"}
    replace(node, chain=asked.chain).delete(pod, result)
    left = [name for name, lines in node.rules().items() if pod.name in str(lines)]
    assert all("OWNERS" in name for name in left), "the note of whose the address was, which the reference cannot read"


def uncommented(rules):
    """Returns rules without what only the comments of the reference's later versions have, and ours."""
    return {name: [line.replace("|isolated", "") for line in lines] for name, lines in rules.items()}


@pytest.mark.needs("nft_inet", "nft_nat")
def test_firewalld(host, bin_dir, store, tmp_path, new_sandbox, client):
    """Sources that a reload or a restart of firewalld forgot are told again, and whatever was flushed with them."""
    if problem := firewalld.missing():
        binaries.skip_or_fail(problem)
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/16"}]]}
    ipam["routes"] = [{"dst": "0.0.0.0/0"}]
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "ipMasq": True, "ipam": ipam}
    chain = NetworkList("net", "1.0.0", (bridge, {"type": "firewall", "backend": "firewalld"}))
    with firewalld.bus() as bus:
        node = Node(host, chain, tmp_path / "cni", bus.env)
        pod = new_sandbox()
        with bus.firewalld(host, "drop") as running:
            node.add(pod)
            assert reaches(pod, CLIENT)
            before = running.sources()
            assert running.command("--reload") == "success"
            assert not reaches(pod, CLIENT, within_s=1)
            assert node.repair() == {pod.name: "repaired"}
            assert running.sources() == before
            assert reaches(pod, CLIENT)
            assert node.repair() == {pod.name: "fine"}
        host.run("nft", "flush", "ruleset")
        with bus.firewalld(host, "drop") as running:
            assert not reaches(pod, CLIENT, within_s=1)
            assert node.repair() == {pod.name: "repaired"}
            assert reaches(pod, CLIENT)
            assert running.sources() == before
        outcome = node.tool("--settle", "0")
        assert (outcome.status, b"firewalld does not run" in outcome.stdout) == (1, True), outcome


def test_a_pod_that_is_being_deleted(node, new_sandbox):  # noqa: F811 - fixture
    """What is made between the DEL of the last plugin and the end of the first one's is taken away again."""
    living, dying, again = new_sandbox(), new_sandbox(), new_sandbox()
    kept = node.with_ports("8080:80").add(living)
    before = node.rules()
    asked = node.with_ports("8081:80")
    result = asked.add(dying)
    run = asked._runner(dying, dying.name)
    for plugin in reversed(asked.chain.plugins[1:]):
        run(plugin["type"], "DEL", asked.chain.request(plugin, result)).assert_silent()
    with asked.start("--settle", "5") as repairing:
        awaited(repairing, f"{dying.name} eth0")
        first = asked.chain.plugins[0]
        run("bridge", "DEL", asked.chain.request(first, result)).assert_silent()
        asked.file(dying.name).unlink()
        awaited(repairing, "deleted meanwhile")
        # Under the same name, as podman starts a container again, while the tool still watches.
        renewed = replace(asked, chain=node.with_ports("8082:80").chain)
        renewed.add(again, dying.name)
        repairing.communicate(timeout=30)
        assert repairing.returncode == 0
    node.with_ports("8080:80").check(living, kept)
    renewed.delete(again, container_id=dying.name)
    assert unordered(node.rules()) == unordered(before)


def awaited(process, text):
    """Reads what a process says up to a line with a text; its end before that fails the test."""
    for line in iter(process.stdout.readline, b""):
        if text in line.decode():
            return
    raise AssertionError(f"it did not say: {text}")


@pytest.mark.crowd
def test_deletions_meanwhile(node, new_sandbox):  # noqa: F811 - fixture
    """While a runtime deletes pods, a repair makes nothing that stays; while it adds one, nothing of it is lost."""
    for number in range(ROUNDS):
        pods = [new_sandbox() for _ in range(PODS)]
        asked = {pod: node.asking(f"{8080 + index}:80") for index, pod in enumerate(pods)}
        results = {pod: asked[pod].add(pod) for pod in pods}
        late = new_sandbox()
        node.flush()
        with ThreadPoolExecutor(PODS) as pool, node.start("--settle", "2") as repairing:
            dels = [pool.submit(asked[pod].delete, pod, results[pod]) for pod in pods]
            added = node.with_ports("9090:80").add(late)
            for one in dels:
                one.result()
            stdout, stderr = repairing.communicate(timeout=60)
            assert repairing.returncode == 0, (stdout.decode(), stderr.decode())
        text = str(node.rules())
        assert [pod.name for pod in pods if pod.name in text] == [], f"round {number}: {stdout.decode()}"
        node.with_ports("9090:80").check(late, added)
        node.with_ports("9090:80").delete(late, added)
