"""`podwire show` describes attachments that the built plugins and the reference plugins created."""

import json
from xml.etree import ElementTree

import pytest

from tests.netns.conftest import NFTABLES
from tests.support.attaching import address, host_end
from tests.support.namespaces import delete_and_wait
from tests.support.node import NET, Node


@pytest.fixture(params=[NFTABLES, "iptables"])
def node(request, bin_dir, host, tmp_path):
    """A node with a list of all plugins, for each backend."""
    return Node(host, tmp_path / "node", backend=request.param)


@pytest.fixture(params=[NFTABLES])
def nft_node(request, bin_dir, host, tmp_path):
    """A node with a list of all plugins, with nftables."""
    return Node(host, tmp_path / "node", backend=request.param)


def only(document, key):
    (item,) = document[key]
    return item


def test_attachment_is_described_completely(node, sandbox):
    """The document has an attachment's pod, interfaces, addresses, host ports and limits."""
    result = node.attach(sandbox, "8080:80", "127.0.0.1|8053:53/udp", name="web")
    node_state = node.show()
    assert node_state["leaks"] == []
    network = only(node_state, "networks")
    assert (network["name"], network["bridges"], network["attachments"]) == ("podnet", ["cni0"], 1)
    assert network["plugins"] == ["bridge", "portmap", "bandwidth", "firewall", "tuning"]
    (ranges,) = network["ranges"]
    assert (ranges["size"], ranges["inUse"]) == (253, 1)
    pod = only(node_state, "attachments")
    assert pod == {
        "network": "podnet",
        "containerID": sandbox.name,
        "ifname": "eth0",
        "pod": "default/web",
        "netns": sandbox.path,
        "state": "ok",
        "leaked": False,
        "kind": "veth",
        "hostInterface": host_end(result),
        "bridge": "cni0",
        "master": "",
        "mode": "",
        "addresses": [f"{address(result)}/24"],
        "hostPorts": [
            {"hostIP": "", "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "confirmed": True},
            {"hostIP": "127.0.0.1", "hostPort": 8053, "containerPort": 53, "protocol": "udp", "confirmed": True},
        ],
        "limits": {"receives": 10_000_000, "sends": 2_500_000},
        "problems": [],
    }
    bridge = only(node_state, "bridges")
    assert bridge == {"name": "cni0", "addresses": [f"{NET}.1/24"], "ports": [host_end(result)]}


def test_text_output(nft_node, sandbox):
    """Without --json a table has pod, veth, address, host port and limits."""
    result = nft_node.attach(sandbox, "8080:80", name="web")
    done = nft_node.tool("show")
    assert done.status == 0
    for text in ("default/web", host_end(result), address(result), "8080->80/tcp", "receives 10 Mbit/s", "2.5 Mbit/s"):
        assert text in done.stdout, text
    assert "LEAKED" not in done.stdout


def test_host_port_without_rules_is_not_confirmed(node, sandbox):
    """A host port whose rules were flushed is not confirmed; the table marks it, and the fix is below."""
    node.attach(sandbox, "8080:80")
    assert "podwire repair" not in node.tool("show").stdout
    node.host.run("sh", "-c", "nft flush ruleset; iptables -t nat -F; iptables -t nat -X")
    (port,) = only(node.show(), "attachments")["hostPorts"]
    assert port["confirmed"] is False
    done = node.tool("show")
    assert (done.status, "8080->80/tcp!" in done.stdout, "podwire repair" in done.stdout) == (1, True, True), done
    assert "check failed" in done.stdout


def test_objects_of_a_stopped_pod_are_leaked(node, sandbox, new_sandbox):
    """After a namespace vanished without DEL, all its objects are leaks, no other pod's are, and GC removes them."""
    stopped = new_sandbox()
    node.attach(sandbox, "8081:80")
    node.attach(stopped, "8080:80")
    assert node.leaked_kinds() == set()
    delete_and_wait(stopped, node.host)
    done = node.tool("show", "--json")
    assert done.status == 1
    leaks = done.json["leaks"]
    kinds = {"reservation", "cache", "host port", "masquerade", "firewall", "ifb", "backup"}
    assert {leak["kind"] for leak in leaks} == kinds
    assert sandbox.name not in json.dumps(leaks)
    states = {pod["containerID"]: (pod["state"], pod["leaked"]) for pod in done.json["attachments"]}
    assert states == {sandbox.name: ("ok", False), stopped.name: ("gone", True)}
    assert "8080/tcp" in json.dumps(leaks)
    node.gc(sandbox)
    assert node.leaked_kinds() == set()
    assert len(node.show()["attachments"]) == 1


def test_objects_of_an_unknown_attachment_are_leaked(node, sandbox, new_sandbox):
    """Objects of an attachment that is neither in the cache nor in the store are leaks, also its veth."""
    other = new_sandbox()
    result = node.attach(sandbox)
    lost_result = node.attach(other, "8080:80")
    node.entry(other).unlink()
    # While the address is reserved, its ADD may still be running.
    assert node.leaked_kinds() == set()
    (node.store / address(lost_result)).unlink()
    leaks = node.show()["leaks"]
    assert {leak["kind"] for leak in leaks} == {"veth", "host port", "masquerade", "firewall", "ifb", "backup"}
    named = {leak["containerID"] for leak in leaks if leak["kind"] != "veth"}
    assert named == {other.name}
    (veth,) = [leak for leak in leaks if leak["kind"] == "veth"]
    assert veth["what"].startswith(f"{host_end(lost_result)} on cni0")
    assert veth["cure"] == f"ip link delete {host_end(lost_result)}"
    assert host_end(result) not in json.dumps(leaks)
    node.host.ip("link", "delete", host_end(lost_result))
    node.gc(sandbox)
    assert node.leaked_kinds() == set()


def test_pods_of_the_reference_plugins(bin_dir, reference, host, sandbox, new_sandbox, tmp_path):
    """Pods of the reference plugins are described like podwire's; a stopped one's objects that name it are leaks."""
    node = Node(host, tmp_path / "node", bin_dir=reference)
    stopped = new_sandbox()
    result = node.attach(sandbox, "8081:80", name="web")
    node_state = node.show()
    assert node_state["leaks"] == []
    pod = only(node_state, "attachments")
    assert (pod["state"], pod["pod"], pod["hostInterface"]) == ("ok", "default/web", host_end(result))
    assert pod["limits"] == {"receives": 10_000_000, "sends": 2_500_000}
    assert [port["confirmed"] for port in pod["hostPorts"]] == [True]
    node.attach(stopped, "8080:80")
    assert node.leaked_kinds() == set()
    delete_and_wait(stopped, node.host)
    leaks = node.show()["leaks"]
    assert {leak["kind"] for leak in leaks} == {"reservation", "cache", "host port", "masquerade", "ifb"}
    assert sandbox.name not in json.dumps(leaks)


def test_control_characters_are_escaped(nft_node, sandbox):
    """Control characters in cache, store and interface aliases are escaped, and replaced in the picture."""
    result = nft_node.attach(sandbox)
    entry = json.loads(nft_node.entry(sandbox).read_text())
    entry["containerId"] = "evil\x1b[2Jid"
    entry["ifName"] = "\x1b]0;x\x07"
    entry["cniArgs"] = [["K8S_POD_NAMESPACE", "\x1b[31m"], ["K8S_POD_NAME", "<b>\x00&"]]
    entry["netns"] = "/run/netns/\x1b[1m"
    (nft_node.directory / "results" / "podnet-evil-eth0").write_text(json.dumps(entry))
    (nft_node.store / f"{NET}.99").write_bytes(b"dead\x1b[5m\r\n\x1b[7m")
    nft_node.host.ip("link", "add", "bwp123456789012", "type", "ifb")
    nft_node.host.ip("link", "set", "bwp123456789012", "alias", "podwire podnet \x1b[41mid eth0")
    for words in (["show"], ["ipam", "list"], ["ipam", "verify"], ["show", "--svg", "-"]):
        done = nft_node.tool(*words)
        assert done.status in (0, 1, 4), done
        assert all(char.isprintable() or char == "\n" for char in done.stdout + done.stderr), words
    ElementTree.fromstring(done.stdout)
    assert address(result) in done.stdout


def test_without_root_the_output_is_incomplete(nft_node, sandbox):
    """Without root the output has no unproven leaks, and lists what could not be inspected."""
    result = nft_node.attach(sandbox, "8080:80")
    for path in (nft_node.directory, *nft_node.directory.parents[:3]):
        path.chmod(0o755)
    done = nft_node.tool("show", "--json", before=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"))
    assert done.status == 4, done
    assert done.json["unseen"]
    assert done.json["leaks"] == []
    pod = only(done.json, "attachments")
    assert (pod["hostInterface"], pod["state"]) == (host_end(result), "not checked")
    assert pod["hostPorts"][0]["confirmed"] is None
