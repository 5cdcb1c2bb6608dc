"""The DaemonSet's init containers, run with exactly what the manifest grants them: a node before and after."""

import json
import os
import re
import stat

import pytest

from tests.support import api_server, manifests
from tests.support.api_server import NODE, REFUSAL
from tests.support.attaching import reaches
from tests.support.invocation import run_plugin
from tests.support.netlist import NetworkList
from tests.support.netstate import links
from tests.support.processes import output

FILE = "10-podwire.conflist"


def listing(directory):
    """Returns owner, mode and content of all files in a directory."""
    found = {}
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[path.name] = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), content)
    return found


def said(done, status=0):
    """Returns what a container said; another exit status fails the test."""
    text = done.stdout + done.stderr
    assert done.returncode == status, text
    assert "defect" not in text
    return text


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_node_object_is_asked_for(node, serve, address):
    """The first container gets the node's object by the cluster's authority and the account's token, over either IP."""
    (node.path / "node" / "node.json").unlink()
    server = serve(address, (200, NODE))
    said(node.ask(server))
    assert server.requested_paths == ["/api/v1/nodes/worker-1"]
    written = node.path / "node" / "node.json"
    assert json.loads(written.read_text()) == NODE
    assert (written.stat().st_uid, written.stat().st_mode & 0o777) == (65534, 0o644)
    assert "/api/v1/nodes/worker-1" in server.arguments
    assert server.token not in server.arguments


def test_an_api_server_that_is_not_ready_is_asked_again(node, serve):
    """An API server that starts is asked again, and what it said before is not in the file."""
    server = serve("127.0.0.1", (503, {**REFUSAL, "message": "not yet " * 2000}), (200, NODE))
    said(node.ask(server))
    assert len(server.requested_paths) == 2
    assert json.loads((node.path / "node" / "node.json").read_text()) == NODE


def test_what_the_api_server_refuses_is_in_the_log(node, serve):
    """A token that the API server does not know fails the container, whose log has the server's own words."""
    server = serve("127.0.0.1", (200, NODE))
    server.known_token = "another"
    text = said(node.ask(server), status=1)
    assert "401" in text
    assert "Unauthorized" in text


def test_another_authority_is_not_trusted(node, serve):
    """Where the certificate is not of the cluster's authority, no token is sent and the container fails."""
    server = serve("127.0.0.1", (200, NODE))
    other = ("-newkey", "ed25519", "-nodes", "-subj", "/CN=other", "-keyout", "/dev/null")
    server.ca = output("openssl", "req", "-x509", *other)
    assert "certificate" in said(node.ask(server), status=1)
    assert server.requested_paths == []


@pytest.mark.parametrize("spec", [{}, {"podCIDR": None}, {"podCIDR": ""}])
def test_a_node_without_subnets_fails_at_once(node, serve, spec):
    """A node that has no podCIDR yet fails the first container, which kubelet runs again, and not the second."""
    server = serve("127.0.0.1", (200, {**NODE, "spec": spec}))
    assert "node worker-1 has no podCIDR" in said(node.ask(server), status=1)


def test_an_answer_without_end_is_not_stored(node, serve):
    """Nothing is kept of an answer larger than any Node object: beyond the limit of its volume a pod is evicted."""
    server = serve("127.0.0.1", (200, {**NODE, "x": "x" * 3_000_000}))
    assert "Maximum file size exceeded" in said(node.ask(server), status=1)
    assert (node.path / "node" / "node.json").stat().st_size == 0


def test_plugins_and_network_are_put_in_place(node):
    """The second container makes all names and the network, root's, with the node's subnets; again it does nothing."""
    said(node.run("install"))
    before = listing(node.bin_dir), listing(node.net_d)
    names = output(str(node.podwire), "list").split()
    content = node.podwire.read_bytes()
    plugins = {name: entry for name, entry in before[0].items() if name[0] != "."}
    assert plugins == dict.fromkeys([*names, "podwire"], (0, 0, 0o755, content))
    assert list(before[1]) == [FILE]
    assert before[1][FILE][:3] == (0, 0, 0o644)
    network = json.loads((node.net_d / FILE).read_text())
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": subnet}] for subnet in NODE["spec"]["podCIDRs"]]
    assert said(node.run("install")).count("nothing to do") == 2
    assert (listing(node.bin_dir), listing(node.net_d)) == before


def test_what_was_written_is_right(node):
    """The linter has nothing to say about the network that was written."""
    said(node.run("install"))
    lint = (str(node.bin_dir / "podwire"), "lint", "--conf-dir", str(node.net_d), "--bin-dir", str(node.bin_dir))
    assert "1 file: no findings" in output(*lint)


def test_directories_of_another_user(node):
    """Where the directories are another user's, as with Kubespray, the one capability that is granted is enough.

    Without it nothing is done and nothing left.
    """
    for directory in (node.bin_dir, node.net_d):
        os.chown(directory, 999, 999)
        directory.chmod(0o700)
    (node.bin_dir / "bridge").write_text("somebody's")
    os.chown(node.bin_dir / "bridge", 999, 999)
    before = listing(node.bin_dir)
    said(node.run("install"))
    assert (node.net_d / FILE).stat().st_uid == 0
    said(node.run("install", directory=manifests.UNINSTALL))
    assert (listing(node.bin_dir), listing(node.net_d)) == (before, {})


def test_nothing_more_is_granted(node, monkeypatch):
    """Without its only capability the container could not write there: the test above can fail."""
    os.chown(node.bin_dir, 999, 999)
    pod = manifests.pod(manifests.INSTALL)
    del pod["initContainers"][1]["securityContext"]["capabilities"]["add"]
    monkeypatch.setattr(manifests, "pod", lambda directory: pod)
    assert "Permission denied" in said(node.run("install"), status=3)
    assert listing(node.bin_dir) == {}


def test_an_upgrade_replaces_its_own_network_only(node):
    """A network that nobody has changed follows the DaemonSet's; one that somebody has is left, and the log says so."""
    said(node.run("install"))
    template = node.path / "network" / FILE
    template.write_text(template.read_text().replace('"10.0.0.0/8"', '"10.0.0.0/9"'))
    said(node.run("install"))
    path = node.net_d / FILE
    assert "10.0.0.0/9" in path.read_text()
    path.write_text(path.read_text().replace("cni0", "cni9"))
    before = listing(node.net_d)
    template.write_text(template.read_text().replace('"10.0.0.0/9"', '"10.0.0.0/10"'))
    assert re.search(rf"/etc/cni/net.d/{FILE} exists and is different", said(node.run("install"), status=3))
    assert listing(node.net_d) == before


def test_and_back(node):
    """The DaemonSet of deploy/uninstall leaves the node as it was, what had the plugins' names included."""
    (node.bin_dir / "bridge").write_text("somebody's")
    (node.bin_dir / "flannel").write_text("somebody's")
    (node.net_d / "87-other.conflist").write_text("{}")
    before = listing(node.bin_dir), listing(node.net_d)
    said(node.run("install"))
    assert list(listing(node.net_d)) == [FILE, "87-other.conflist"]
    said(node.run("install", directory=manifests.UNINSTALL))
    assert (listing(node.bin_dir), listing(node.net_d)) == before


@pytest.mark.needs("br_netfilter", "ifb", "tbf")
def test_a_pod_on_the_network_that_was_written(node, serve, sandbox, store):
    """From the API server's answer to a pod: both containers, then ADD, CHECK and DEL by what they have written."""
    said(node.ask(serve("127.0.0.1", (200, api_server.NODE))))
    said(node.run("install"))
    network = NetworkList.load(node.net_d / FILE)
    network.plugins[0]["ipam"]["dataDir"] = str(store)

    def run(plugin, command, config):
        how = {"netns": sandbox, "container_id": sandbox.name, "host": node.host, "bin_dir": node.bin_dir}
        return run_plugin(plugin, command, config, **how)

    result = network.add(run)
    assert [ip["address"] for ip in result["ips"]] == ["10.244.3.2/24", "fd00:10:244:3::2/64"]
    assert [reaches(sandbox, ip) for ip in ("10.244.3.1", "fd00:10:244:3::1")] == [True, True]
    network.check(run, result)
    network.delete(run, result)
    assert set(links(node.host)) == {"lo", "cni0"}
