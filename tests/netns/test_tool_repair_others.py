"""`podwire repair` with pods of the reference plugins, with firewalld, and with a runtime at work."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.netns.test_tool_repair import BACKENDS, external_host, node, unordered  # noqa: F401 - fixtures
from tests.support import binaries, firewalld
from tests.support.attaching import reaches
from tests.support.netlist import NetworkList
from tests.support.publishing import CLIENT, NODE
from tests.support.repair_node import Node
from tests.support.sockets import Reached, call, is_unreachable, service

ROUNDS = 4
PODS = 6


@pytest.mark.parametrize("node", BACKENDS[1:], indirect=True)
def test_pods_of_the_reference_plugins(node, external_host, new_sandbox, reference):  # noqa: F811 - fixtures
    """Rules of the reference plugins are restored unchanged, also in a list with another vendor's plugin."""
    first, *others = node.chain.plugins
    foreign = {"type": "flannel"}
    node = replace(node, bin_dir=reference)
    # IPAM provides the default route: the Go bridge adds none if there is one.
    first = {**first, "macspoofchk": False, "isDefaultGateway": False, "isGateway": True}
    plugins = [first, *({**plugin, "backend": "iptables"} for plugin in others)]
    node = replace(node, chain=replace(node.chain, plugins=tuple(plugins)))
    pod = new_sandbox()
    result = node.with_ports("8080:80").add(pod)
    chain_node = node.with_ports("8080:80")
    replace(chain_node, chain=replace(chain_node.chain, plugins=(*chain_node.chain.plugins, foreign))).write_entry(
        pod.path, pod.name, result
    )
    before = uncommented(unordered(node.rules()))
    node.flush()
    with service(pod, "tcp", "0.0.0.0") as tcp:
        assert is_unreachable([tcp], external_host, "tcp", NODE, 8080)
        outcome = node.tool("--settle", "0")
        assert b"not repaired, since they are not podwire's plugins: flannel" in outcome.stdout, outcome
        assert call([tcp], external_host, "tcp", NODE, 8080) == Reached(pod.name, CLIENT)
    assert reaches(pod, CLIENT)
    after = uncommented(unordered(node.rules()))
    # podwire also records address owners, and guards the node's loopback.
    additional = {name for name in after if "OWNERS" in name or "chain localnet" in name or "mangle PREROUTING" in name}
    assert {name: lines for name, lines in after.items() if name not in additional} == before
    assert node.repair() == {pod.name: "fine"}
    replace(node, chain=chain_node.chain).delete(pod, result)
    remaining = [name for name, lines in node.rules().items() if pod.name in str(lines)]
    assert all("OWNERS" in name for name in remaining), (
        "the record of the address owner, which the reference plugins do not know"
    )


def uncommented(rules):
    """Returns the rules without a suffix that only newer reference plugins and podwire put into comments."""
    return {name: [line.replace("|isolated", "") for line in lines] for name, lines in rules.items()}


@pytest.mark.long
@pytest.mark.needs("nft_inet", "nft_nat")
def test_firewalld_sources_are_restored(host, bin_dir, store, tmp_path, new_sandbox, client):
    """Zone sources that firewalld lost in a reload or restart are added again, and flushed rules are restored."""
    if problem := firewalld.missing():
        binaries.skip_or_fail(problem)
    ipam: dict[str, object] = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.22.0.0/16"}]]}
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


def test_pod_deleted_during_a_repair(node, new_sandbox):  # noqa: F811 - fixture
    """Rules that repair restores between the first and the last DEL of a list are removed again."""
    running, deleted, restarted = new_sandbox(), new_sandbox(), new_sandbox()
    kept = node.with_ports("8080:80").add(running)
    before = node.rules()
    second_node = node.with_ports("8081:80")
    result = second_node.add(deleted)
    run = second_node._runner(deleted, deleted.name)
    for plugin in reversed(second_node.chain.plugins[1:]):
        run(plugin["type"], "DEL", second_node.chain.request(plugin, result)).assert_silent()
    with second_node.start("--settle", "5") as repairing:
        wait_for_line(repairing, f"{deleted.name} eth0")
        first = second_node.chain.plugins[0]
        run("bridge", "DEL", second_node.chain.request(first, result)).assert_silent()
        second_node.file(deleted.name).unlink()
        wait_for_line(repairing, "deleted meanwhile")
        # A container with the same name starts, as with podman, while the tool still watches.
        renewed = replace(second_node, chain=node.with_ports("8082:80").chain)
        renewed.add(restarted, deleted.name)
        repairing.communicate(timeout=30)
        assert repairing.returncode == 0
    node.with_ports("8080:80").check(running, kept)
    renewed.delete(restarted, container_id=deleted.name)
    assert unordered(node.rules()) == unordered(before)


def wait_for_line(process, text):
    """Reads the output of a process up to a line with `text`; the test fails if there is none."""
    for line in iter(process.stdout.readline, b""):
        if text in line.decode():
            return
    raise AssertionError(f"no line with: {text}")


@pytest.mark.long
@pytest.mark.one_kernel
def test_parallel_deletions_and_additions(node, new_sandbox):  # noqa: F811 - fixture
    """A repair leaves no rules of pods that a runtime deletes meanwhile, and keeps those of a pod that it adds."""
    for number in range(ROUNDS):
        pods = [new_sandbox() for _ in range(PODS)]
        nodes = {pod: node.with_ports(f"{8080 + index}:80") for index, pod in enumerate(pods)}
        results = {pod: nodes[pod].add(pod) for pod in pods}
        late = new_sandbox()
        node.flush()
        with ThreadPoolExecutor(PODS) as pool, node.start("--settle", "2") as repairing:
            dels = [pool.submit(nodes[pod].delete, pod, results[pod]) for pod in pods]
            added = node.with_ports("9090:80").add(late)
            for one in dels:
                one.result()
            stdout, stderr = repairing.communicate(timeout=60)
            assert repairing.returncode == 0, (stdout.decode(), stderr.decode())
        text = str(node.rules())
        assert [pod.name for pod in pods if pod.name in text] == [], f"round {number}: {stdout.decode()}"
        node.with_ports("9090:80").check(late, added)
        node.with_ports("9090:80").delete(late, added)
