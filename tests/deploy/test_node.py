"""The DaemonSet's init containers run with exactly the manifest's permissions: the node before and after."""

import functools
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
    files = {}
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        files[path.name] = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), content)
    return files


def output_of(done, status=0):
    """Returns a container's output; another exit status fails the test."""
    text = done.stdout + done.stderr
    assert done.returncode == status, text
    assert "defect" not in text
    return text


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_first_container_fetches_the_node_object(node, serve, address):
    """It trusts the cluster's authority, sends the account's token, and works over both address families."""
    (node.path / "node" / "node.json").unlink()
    server = serve(address, (200, NODE))
    output_of(node.fetch_node_object(server))
    assert server.requested_paths == ["/api/v1/nodes/worker-1"]
    path = node.path / "node" / "node.json"
    assert json.loads(path.read_text()) == NODE
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (65534, 0o644)
    assert "/api/v1/nodes/worker-1" in server.arguments
    assert server.token not in server.arguments


def test_request_is_repeated_until_the_api_server_is_ready(node, serve):
    """The container repeats the request if the API server is not ready; the earlier response is not in the file."""
    server = serve("127.0.0.1", (503, {**REFUSAL, "message": "not yet " * 2000}), (200, NODE))
    output_of(node.fetch_node_object(server))
    assert len(server.requested_paths) == 2
    assert json.loads((node.path / "node" / "node.json").read_text()) == NODE


def test_refusal_of_the_api_server_is_in_the_log(node, serve):
    """A token that the API server does not know fails the container; the log contains the server's message."""
    server = serve("127.0.0.1", (200, NODE))
    server.known_token = "another"
    text = output_of(node.fetch_node_object(server), status=1)
    assert "401" in text
    assert "Unauthorized" in text


def test_another_authority_is_not_trusted(node, serve):
    """If the cluster's authority did not sign the certificate, the container sends no token and fails."""
    server = serve("127.0.0.1", (200, NODE))
    other = ("-newkey", "ed25519", "-nodes", "-subj", "/CN=other", "-keyout", "/dev/null")
    server.ca = output("openssl", "req", "-x509", *other)
    assert "certificate" in output_of(node.fetch_node_object(server), status=1)
    assert server.requested_paths == []


@pytest.mark.parametrize("spec", [{}, {"podCIDR": None}, {"podCIDR": ""}])
def test_node_without_pod_cidr_fails_the_first_container(node, serve, spec):
    """Without a podCIDR the first container fails, which kubelet runs again, and not the second."""
    server = serve("127.0.0.1", (200, {**NODE, "spec": spec}))
    assert "node worker-1 has no podCIDR" in output_of(node.fetch_node_object(server), status=1)


def test_oversized_response_is_not_stored(node, serve):
    """A response larger than any Node object is discarded, since a pod that exceeds its volume's limit is evicted."""
    server = serve("127.0.0.1", (200, {**NODE, "x": "x" * 3_000_000}))
    assert "Maximum file size exceeded" in output_of(node.fetch_node_object(server), status=1)
    assert (node.path / "node" / "node.json").stat().st_size == 0


def test_second_container_installs_plugins_and_network(node):
    """It installs all names and the network with the node's subnets, owned by root; a second run does nothing."""
    output_of(node.run("install"))
    before = listing(node.bin_dir), listing(node.net_d)
    names = output(str(node.podwire), "list").split()
    content = node.podwire.read_bytes()
    plugins = {name: entry for name, entry in before[0].items() if name[0] != "."}
    assert plugins == dict.fromkeys([*names, "podwire"], (0, 0, 0o755, content))
    assert list(before[1]) == [FILE]
    assert before[1][FILE][:3] == (0, 0, 0o644)
    network = json.loads((node.net_d / FILE).read_text())
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": subnet}] for subnet in NODE["spec"]["podCIDRs"]]
    assert output_of(node.run("install")).count("nothing to do") == 2
    assert (listing(node.bin_dir), listing(node.net_d)) == before


def test_installed_network_has_no_findings(node):
    """`podwire lint` reports no finding for the installed network."""
    output_of(node.run("install"))
    lint = (str(node.bin_dir / "podwire"), "lint", "--conf-dir", str(node.net_d), "--bin-dir", str(node.bin_dir))
    assert "1 file: no findings" in output(*lint)


def test_directories_of_another_user_are_written(node):
    """The only capability suffices if another user owns the directories, as with Kubespray.

    `uninstall` restores the files.
    """
    for directory in (node.bin_dir, node.net_d):
        os.chown(directory, 999, 999)
        directory.chmod(0o700)
    (node.bin_dir / "bridge").write_text("somebody's")
    os.chown(node.bin_dir / "bridge", 999, 999)
    before = listing(node.bin_dir)
    output_of(node.run("install"))
    assert (node.net_d / FILE).stat().st_uid == 0
    output_of(node.run("install", directory=manifests.UNINSTALL))
    assert (listing(node.bin_dir), listing(node.net_d)) == (before, {})


def test_directories_of_another_user_need_the_capability(node, monkeypatch):
    """Without its only capability the container cannot write to these directories, and changes nothing."""
    os.chown(node.bin_dir, 999, 999)
    pod = manifests.pod(manifests.INSTALL)
    del pod["initContainers"][1]["securityContext"]["capabilities"]["add"]
    monkeypatch.setattr(manifests, "pod", lambda directory: pod)
    assert "Permission denied" in output_of(node.run("install"), status=3)
    assert listing(node.bin_dir) == {}


def test_upgrade_replaces_only_an_unchanged_network(node):
    """An unchanged network follows the DaemonSet's; one that was changed on the node stays, and the log says so."""
    output_of(node.run("install"))
    template = node.path / "network" / FILE
    template.write_text(template.read_text().replace('"10.0.0.0/8"', '"10.0.0.0/9"'))
    output_of(node.run("install"))
    path = node.net_d / FILE
    assert "10.0.0.0/9" in path.read_text()
    path.write_text(path.read_text().replace("cni0", "cni9"))
    before = listing(node.net_d)
    template.write_text(template.read_text().replace('"10.0.0.0/9"', '"10.0.0.0/10"'))
    assert re.search(rf"/etc/cni/net.d/{FILE} exists and is different", output_of(node.run("install"), status=3))
    assert listing(node.net_d) == before


def test_uninstall_restores_the_node(node):
    """The DaemonSet of deploy/uninstall restores the node's files, including those with the plugins' names."""
    (node.bin_dir / "bridge").write_text("somebody's")
    (node.bin_dir / "flannel").write_text("somebody's")
    (node.net_d / "87-other.conflist").write_text("{}")
    before = listing(node.bin_dir), listing(node.net_d)
    output_of(node.run("install"))
    assert list(listing(node.net_d)) == [FILE, "87-other.conflist"]
    output_of(node.run("install", directory=manifests.UNINSTALL))
    assert (listing(node.bin_dir), listing(node.net_d)) == before


@pytest.mark.needs("br_netfilter", "ifb", "tbf")
def test_pod_is_attached_to_the_installed_network(node, serve, sandbox, store):
    """From the API server's response to a pod: both containers, then ADD, CHECK and DEL with the installed files."""
    output_of(node.fetch_node_object(serve("127.0.0.1", (200, api_server.NODE))))
    output_of(node.run("install"))
    network = NetworkList.load(node.net_d / FILE)
    network.plugins[0]["ipam"]["dataDir"] = str(store)

    run = functools.partial(run_plugin, netns=sandbox, container_id=sandbox.name, host=node.host, bin_dir=node.bin_dir)

    result = network.add(run)
    assert [ip["address"] for ip in result["ips"]] == ["10.244.3.2/24", "fd00:10:244:3::2/64"]
    assert [reaches(sandbox, ip) for ip in ("10.244.3.1", "fd00:10:244:3::1")] == [True, True]
    network.check(run, result)
    network.delete(run, result)
    assert set(links(node.host)) == {"lo", "cni0"}
