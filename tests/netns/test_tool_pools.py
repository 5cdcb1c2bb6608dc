"""`podwire ipam` shows the addresses of a cluster, as an agent's HTTP server reports them over a Unix socket."""

import json
import os
import re
import shutil
import socket
import threading
from pathlib import Path

import pytest

from agent import http_server
from agent.http_server import Answer
from tests.support import libcni
from tests.support.admin_world import DEFAULT, ONE, SINCE, THREE, TWO, healthy, local_block
from tests.support.attaching import Network, address
from tests.support.pools_tool import printed, serving
from tests.support.store_double import Fault

FIRST = "10.22.0.0/26"
BLOCK = {"subnet": FIRST, "first": "10.22.0.2", "last": "10.22.0.62", "gateway": "10.22.0.1", "state": "granted"}
GRANTS = {"version": 1, "contact": 0, "pools": [{"name": "default", "versions": [4], "blocks": [BLOCK]}]}
RECLAIM = re.compile(r"podwire ipam reclaim --node \w+")


@pytest.fixture
def tool(bin_dir, host, tmp_path):
    """The tool on node worker-1 of a healthy cluster of two nodes."""
    with serving(host, tmp_path / "node", healthy()) as tool:
        yield tool


@pytest.fixture
def pod(tool, sandbox):
    """The address of a pod of this node, in its block."""
    store = tool.directory / "leases"
    grants = store.with_name("leases.podwire") / "podnet.grants"
    grants.parent.mkdir()
    grants.write_text(json.dumps(GRANTS | {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}))
    ipam = {"type": "host-local", "dataDir": str(store), "pool": "default"}
    config = {"cniVersion": "1.1.0", "name": "podnet", "type": "bridge", "bridge": "cni0", "ipam": ipam}
    network = Network(tool.host, config)
    result = network.add(sandbox)
    chain = {"cniVersion": "1.1.0", "name": "podnet", "plugins": [{"type": "bridge", "bridge": "cni0", "ipam": ipam}]}
    (tool.directory / "net.d" / "podnet.conflist").write_text(json.dumps(chain))
    args = {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web"}
    libcni.write_entry(
        tool.directory, "podnet", sandbox.name, netns=sandbox.path, result=result, config=chain, cni_args=args
    )
    return address(result)


def test_pools_are_shown_with_their_numbers(tool):
    """The pools are printed with CIDRs, size of a block, claimed and all blocks, addresses, nodes and epoch."""
    text = tool.text("pools")
    assert re.search(r"default +routed +10.22.0.0/24 +/26 +2 of 4 +124 +-", text)
    assert "2 nodes, epoch e1" in text
    document = tool.json("pools")
    assert document["pools"][0]["versions"][0]["claimed"] == 2
    assert document["space"]["epoch"] == "e1"


def test_pools_of_an_empty_store(tool):
    """Without a space the command that creates one is printed, and works."""
    tool.world.store.put_raw("space", b"")
    text = tool.text("pools")
    command = printed(r"podwire ipam pools --set FILE", text)
    path = tool.write_pools(DEFAULT)
    done = tool.run_printed(command.replace("FILE", path), stdin="yes\n")
    assert done.status == 0, done
    assert "+ pool default" in done.stdout
    assert tool.world.store.read_space().value.pool("default")


def test_blocks_of_a_node_and_of_a_pool(tool):
    """Blocks are printed with pool, node, node ID, generation and time; of one node by name or ID."""
    text = tool.text("blocks")
    assert re.search(rf"10.22.0.64/26 +default +worker-2 +{TWO} +1 +{SINCE} +claimed\n", text)
    for name in ("worker-2", TWO):
        assert [block["block"] for block in tool.json("blocks", "--node", name)["blocks"]] == ["10.22.0.64/26"]
    assert len(tool.json("blocks", "--pool", "default")["blocks"]) == 2
    assert "the pools are: default" in tool.text("blocks", "--pool", "defualt", status=3)
    assert "the store has no node worker-9" in tool.text("blocks", "--node", "worker-9", status=3)
    tool.world.add_node(TWO, fenced=True)
    assert "claimed, node fenced" in tool.text("blocks")


def test_name_of_two_nodes_needs_an_id(tool):
    """A name that two nodes have is refused with both IDs."""
    tool.world.add_node(THREE, name="worker-2")
    assert f"use the ID: {TWO} or {THREE}" in tool.text("blocks", "--node", "worker-2", status=3)


def test_who_has_an_address_of_another_node(tool):
    """Of an address of another node, the node is printed, and the command to run there."""
    text = tool.text("who", "10.22.0.70")
    assert "10.22.0.70: pool default, block 10.22.0.64/26" in text
    assert f"node worker-2 ({TWO}), epoch e1, generation 1, since {SINCE}" in text
    assert "on node worker-2 run: podwire ipam who 10.22.0.70" in text
    assert tool.json("who", "10.22.0.70")["node"] == TWO


def test_who_has_an_address_of_this_node(tool, pod, sandbox):
    """Of an address of this node the pod is printed, also while the store does not answer."""
    text = tool.text("who", pod)
    assert f"pod default/web, network podnet, container {sandbox.name} eth0, running" in text
    reservation = tool.json("who", pod)["reservation"]
    assert (reservation["pod"], reservation["containerID"]) == ("default/web", sandbox.name)
    assert "no pod has the address" in tool.text("who", "10.22.0.60")
    tool.world.store.fail_next(Fault.UNREACHABLE, times=10)
    text = tool.text("who", pod, status=4)
    assert "pod default/web" in text
    assert "not seen: the store does not answer" in text


def test_who_has_an_address_that_is_not_claimed(tool):
    """Of an address in a free block, and of one of no pool, that is printed."""
    assert "no node has claimed the block" in tool.text("who", "10.22.0.200")
    assert "10.99.0.1 is in no pool" in tool.text("who", "10.99.0.1", status=3)
    assert "is not an IP address" in tool.text("who", "10.22.0", status=2)


def test_why_without_a_reason(tool):
    """A node with free addresses has numbers and no reasons."""
    text = tool.text("why")
    assert f"node worker-1 ({ONE}), this node" in text
    assert "network podnet, pool default: 2 of 61 addresses in use in 1 granted block" in text
    assert "podwire-agent reached the store 3 s ago" in text
    assert "no reason: the node has addresses" in text
    assert tool.json("why", "worker-1")["reasons"] == []


def test_why_of_a_full_node_in_a_full_pool(tool):
    """A node whose blocks are full gets numbers, and the nodes that have the pool's blocks."""
    tool.world.grant(local_block(FIRST, used=61))
    tool.world.claim(TWO, "10.22.0.128/26", "10.22.0.192/26")
    reasons = tool.json("why", status=1)["reasons"]
    assert [reason["what"] for reason in reasons] == [
        "all IPv4 addresses of network podnet on this node are in use",
        "all 4 IPv4 blocks of pool default are claimed: worker-2 3, worker-1 1",
    ]


def test_why_of_a_fenced_node_and_of_one_that_waits(tool):
    """A fenced node, a node of an old epoch and a node without an entry are reported, each with a fix that works."""
    tool.world.add_node(TWO, fenced=True)
    assert "the node was declared dead" in tool.text("why", "worker-2", status=1)
    tool.world.set_space(epoch="e2")
    tool.world.add_node(ONE, FIRST, epoch="e2")
    text = tool.text("why", status=1)
    assert "before node worker-2 has registered in it: its record is of epoch e1" in text
    done = tool.run_printed(printed(RECLAIM, text))
    assert done.status == 0
    assert "Nothing was changed" in done.stdout
    tool.world.claim(THREE, "10.22.0.128/26")
    assert f"node {THREE} has no entry in the store" in tool.text("why", THREE, status=1)


def test_why_without_the_store(tool):
    """While the store does not answer, this node's numbers and the cause are printed; of another node the cause."""
    problem = "etcd: connection refused"
    tool.world.report = tool.world.report._replace(contact_s=840.0, problems=(problem,))
    tool.world.store.fail_next(Fault.UNREACHABLE, times=10)
    text = tool.text("why", status=1)
    assert "podwire-agent reached the store 14 min ago" in text
    assert problem in text
    assert "the store does not answer" in text
    assert tool.json("why", status=1)["complete"] is False
    assert "run it on node worker-2: podwire ipam why" in tool.text("why", "worker-2", status=3)


def test_why_without_blocks_networks_or_pool(tool):
    """Networks without a granted block, a misspelt pool and a node without networks are reasons."""
    tool.world.report = tool.world.report._replace(networks=(("podnet", "defualt"),), blocks=())
    text = tool.text("why", status=1)
    assert "network podnet has no granted block of pool defualt" in text
    assert "network podnet uses pool defualt, which does not exist" in text
    tool.world.report = tool.world.report._replace(networks=())
    assert "no network of this node uses a pool" in tool.text("why", status=1)
    tool.world.grant(local_block(FIRST, "lost", used=2))
    assert "has another owner in the store, and pods of this node have 2" in tool.text("why", status=1)


def test_verify_of_a_healthy_cluster(tool, pod):
    """A cluster without faults, and with a running pod, has no findings."""
    text = tool.text("verify", "--cluster")
    assert "2 nodes, 2 blocks, nothing wrong" in text
    assert tool.json("verify", "--cluster") == {"complete": True, "findings": [], "unseen": []}


def test_verify_reports_faults_of_the_cluster(tool):
    """Faults of the store's objects are reported; each command in a fix runs and changes nothing."""
    world = tool.world
    world.claim(THREE, "10.22.0.128/26")
    world.add_node(TWO, FIRST, fenced=True, epoch="e0")
    world.store.put_raw("blocks/0a1600c0-26", b"{}")
    document = tool.json("verify", "--cluster", status=1)
    assert {finding["kind"] for finding in document["findings"]} == {
        "invalid object",
        "no entry",
        "foreign network",
        "old epoch",
    }
    before = dict(world.store.objects)
    commands = {command for finding in document["findings"] for command in RECLAIM.findall(finding["fix"])}
    assert len(commands) == 2
    for command in commands:
        done = tool.run_printed(command)
        assert (done.status, "Nothing was changed" in done.stdout) == (0, True), done
    assert world.store.objects == before


def test_verify_reports_addresses_without_a_block(tool, pod):
    """An address of a running pod that is in no block of this node is reported, and so is one of a lost block."""
    tool.world.grant()
    tool.world.report = tool.world.report._replace(networks=(("podnet", "default"),))
    (finding,) = tool.json("verify", "--cluster", status=1)["findings"]
    assert (finding["kind"], finding["object"]) == ("outside blocks", pod)
    tool.world.grant(local_block(FIRST, "lost", used=1))
    (finding,) = tool.json("verify", "--cluster", status=1)["findings"]
    assert (finding["kind"], finding["object"]) == ("lost block", FIRST)


@pytest.mark.parametrize("deleted", ["the file", "the directory"])
def test_verify_reports_a_deleted_reservation(tool, pod, deleted):
    """An address of a running pod whose reservation is gone is reported, with the container."""
    tool.world.grant(local_block(FIRST))
    assert tool.json("verify", "--cluster")["findings"] == []
    directory = tool.directory / "leases" / "podnet"
    if deleted == "the file":
        (directory / pod).unlink()
    else:
        shutil.rmtree(directory)
    (finding,) = tool.json("verify", "--cluster", status=1)["findings"]
    assert (finding["kind"], finding["object"]) == ("not reserved", pod)
    assert finding["fix"] == "remove the container and create it again"


def test_verify_without_the_store_is_no_success(tool):
    """While the store does not answer, the exit status is 3 and the cause is printed."""
    tool.world.store.fail_next(Fault.UNREACHABLE, times=10)
    assert "the store does not answer" in tool.text("verify", "--cluster", status=3)
    assert tool.run("verify", "--cluster", "podnet").status == 2


def test_agent_that_does_not_run(tool):
    """Without a socket, and with the socket of an agent that has ended, the error has the fix."""
    os.unlink(tool.socket)
    for command in (("pools",), ("why",), ("verify", "--cluster"), ("who", "10.22.0.1")):
        text = tool.text(*command, status=3)
        assert "does not exist" in text
        assert "systemctl status podwire-agent" in text
        assert tool.json(*command, status=3)["code"] == 5
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(tool.socket)
    assert "no program listens on" in tool.text("pools", status=3)


def test_user_without_permission(tool):
    """Another user than root is refused with the fix, not with a traceback."""
    tool.directory.chmod(0o755)
    for parent in tool.directory.parents[:3]:
        parent.chmod(0o755)
    before = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    text = tool.text("pools", status=3, before=before)
    assert "no permission for podwire-agent's socket" in text
    assert "run it as root" in text


def test_agent_without_pools(tool):
    """An agent without pools, as an older one, is reported as such."""
    os.unlink(tool.socket)
    server = http_server.start(tool.socket, {"/readyz": lambda: Answer(200, b"ok")})
    try:
        assert "has no pools" in tool.text("pools", status=3)
    finally:
        server.shutdown()
        server.socket.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\n{}", "in the middle of its answer"),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", "in the middle of its answer"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n{", "unexpected answer with HTTP status 200"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n[]", "unexpected answer with HTTP status 200"),
        (b'HTTP/1.0 200 OK\r\nContent-Length: 17\r\n\r\n{"pools": "none"', "in the middle of its answer"),
        (b'HTTP/1.0 200 OK\r\nContent-Length: 14\r\n\r\n{"pools": "x"}', '"pools" must be a list'),
        (b"HTTP/1.0 500 X\r\nContent-Length: 2\r\n\r\n{}", "unexpected answer with HTTP status 500"),
    ],
)
def test_answers_that_are_not_the_agents(tool, answer, text):
    """Another program behind the socket, or an answer that is cut off, is an error and never half an answer."""
    os.unlink(tool.socket)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(tool.socket)
        listening.listen()

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert text in tool.text("pools", status=3)
        finally:
            thread.join()
