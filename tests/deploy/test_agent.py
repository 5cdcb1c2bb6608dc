"""The agent's container runs with exactly the manifest's permissions: the node before and after."""

import json
import os
import stat

import pytest

from tests.support import manifests
from tests.support.agent_container import FILE, POD_CIDRS, node_object
from tests.support.attaching import reaches
from tests.support.kubernetes_store import SPACES
from tests.support.machine import eventually
from tests.support.namespaces import delete_and_wait
from tests.support.netstate import links
from tests.support.processes import output

pytestmark = pytest.mark.timeout(2000)  # the first test packs the image

ROUTES = {"10.244.1.0/24": "unreachable", "10.244.2.0/24": "192.0.2.11", "10.244.3.0/24": "10.244.3.0"}


def listing(directory):
    """Returns owner, mode and content of all files in a directory."""
    files = {}
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        files[path.name] = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), content)
    return files


def kernel_state(node):
    """Returns the agent's routes, the entries of its tunnel, and the sets of networks."""
    return (
        node.host.ip("route", "show", "protocol", "112"),
        node.host.ip("-6", "route", "show", "protocol", "112"),
        sorted(node.host.ip("neighbour", "show", "nud", "permanent").splitlines()),
        node.host.run("nft", "list", "sets"),
    )


def give_to_another_user(*directories):
    """Makes another user the owner of directories, which only that user may write."""
    for directory in directories:
        os.chown(directory, 999, 999)
        directory.chmod(0o700)


def test_node_becomes_ready(node):
    """The agent installs plugins and network, makes routes of both kinds and fills sets; a restart changes nothing."""
    with node.running() as agent:
        agent.wait_ready()
        names = output(str(node.image / "opt/podwire/podwire"), "list").split()
        content = (node.image / "opt/podwire/podwire").read_bytes()
        plugins = {name: entry for name, entry in listing(node.bin_dir).items() if name[0] != "."}
        assert plugins == dict.fromkeys([*names, "podwire"], (0, 0, 0o755, content))
        assert {name: entry[:3] for name, entry in listing(node.net_d).items()} == {FILE: (0, 0, 0o644)}
        network = json.loads((node.net_d / FILE).read_text())
        assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": subnet}] for subnet in POD_CIDRS[1]]
        assert node.list_routes().keys() == ROUTES.keys()
        assert node.list_routes()["10.244.2.0/24"] == "192.0.2.11"
        assert "198.51.100.3" in node.host.run("bridge", "fdb", "show", "dev", "podwire-vxlan")
        assert "fd00:10:244:2::/63" in node.host.run("nft", "list", "sets"), "the podCIDRs of both other nodes"
        before = kernel_state(node), listing(node.bin_dir), listing(node.net_d)
        assert agent.stop() == 0
    with node.running() as agent:
        agent.wait_ready()
        assert [line["changes"] for line in agent.log if "changes" in line] == []
        assert (kernel_state(node), listing(node.bin_dir), listing(node.net_d)) == before


def test_installed_network_has_no_findings(node):
    """`podwire lint` reports no finding for the installed network."""
    node.run_once()
    lint = (str(node.bin_dir / "podwire"), "lint", "--conf-dir", str(node.net_d), "--bin-dir", str(node.bin_dir))
    assert "1 file: no findings" in output(*lint)


def test_directories_of_another_user_are_written(node):
    """The capabilities suffice if another user owns the directories, as with Kubespray."""
    give_to_another_user(node.bin_dir, node.net_d, node.state)
    node.run_once()
    assert (node.net_d / FILE).stat().st_uid == 0


def test_dac_override_is_for_directories_of_another_user(node):
    """Without DAC_OVERRIDE the agent installs nothing in such directories, and says why."""
    give_to_another_user(node.bin_dir)
    with node.running(without=["DAC_OVERRIDE"]) as agent:
        agent.wait_for("Permission denied")
        assert "[-]network: podwire install failed" in agent.get("/readyz")[1]
    assert listing(node.bin_dir) == {}


def test_net_admin_is_for_routes_and_sets(node):
    """Without NET_ADMIN there are neither routes nor sets, and /readyz says so."""
    with node.running(without=["NET_ADMIN"]) as agent:
        agent.wait_for("operation not permitted")
        text = agent.get("/readyz")[1]
        assert "[-]routes: " in text
        assert "[-]masquerade: " in text
    assert node.list_routes() == {}


def leak(node, new_sandbox):
    """Attaches three pods and deletes two without DEL, one of which is not in the runtime's cache either.

    Returns their addresses: of the running pod, of the deleted one, and of the one that the runtime does not know.
    """
    with node.running(args=["--gc-interval", "0"]) as agent:
        agent.wait_ready()
    pods = [new_sandbox() for _ in range(3)]
    addresses = [node.add(pod)["ips"][0]["address"].partition("/")[0] for pod in pods]
    (node.state / "results" / f"podwire-{pods[2].name}-eth0").unlink()
    for pod in pods[1:]:
        delete_and_wait(pod, node.host)
    for path in (node.state / "networks" / "podwire").iterdir():
        os.utime(path, (1, 1))  # a new reservation may be of an ADD that has not ended
    assert node.list_leases() == addresses
    return addresses


@pytest.mark.parametrize(
    ("without", "outcome", "kept"),
    [
        ([], "podwire gc: ok", [0]),
        (["SYS_ADMIN"], "", [0, 2]),
        (["netns"], "", [0, 2]),
        (["state"], "podwire gc: incomplete", [0, 1, 2]),
    ],
    ids=["all", "without SYS_ADMIN", "without namespaces", "without the cache"],
)
def test_garbage_of_deleted_pods_is_removed(node, new_sandbox, without, outcome, kept):
    """`podwire gc` in the container releases the addresses of deleted pods, and not that of the running pod.

    Without SYS_ADMIN or the namespaces one that the cache lacks stays, as its pod may run; without the cache all stay.
    """
    addresses = leak(node, new_sandbox)
    with node.running(without=without) as agent:
        agent.wait_ready()
        collection = json.dumps(agent.collection())
    assert (outcome in collection, node.list_leases()) == (True, [addresses[number] for number in kept]), collection


@pytest.mark.parametrize(
    ("volume", "symptom"),
    [
        ("bin", "Read-only file system"),
        ("net-d", "Read-only file system"),
        ("run", "cannot open /run/podwire/agent.lock: Read-only file system"),
        ("tmp", "No usable temporary directory"),
        ("network", "/etc/podwire/10-podwire.conflist"),
        ("credentials", "/var/run/secrets/kubernetes.io/serviceaccount"),
    ],
)
def test_volume_is_needed(volume, symptom, node):
    """Without one of these volumes the agent installs nothing, and reports the path."""
    with node.running(without=[volume]) as agent:
        agent.wait_for(symptom)
    assert not (node.net_d / FILE).exists()


def test_service_account_has_no_other_rights(node):
    """The requests of the agent need the ClusterRole's rights only; without `watch` it is not refused silently."""
    node.server.tokens = {token: rights - {"watch nodes"} for token, rights in node.server.tokens.items() if rights}
    with node.running() as agent:
        agent.wait_for("cannot watch resource")


@pytest.mark.needs("br_netfilter", "ifb", "tbf")
def test_pod_is_attached_to_the_installed_network(node, sandbox):
    """From the API server to a pod: the agent, then ADD, CHECK and DEL with the installed files."""
    node.run_once()
    before = links(node.host).keys()
    network, run = node.network(), node.runner(sandbox)
    result = network.add(run)
    assert [ip["address"] for ip in result["ips"]] == ["10.244.1.2/24", "fd00:10:244:1::2/64"]
    assert [reaches(sandbox, ip) for ip in ("10.244.1.1", "fd00:10:244:1::1")] == [True, True]
    network.check(run, result)
    network.delete(run, result)
    assert links(node.host).keys() - before == {"cni0"}


POOLS = {"pools": [{"name": "default", "cidrs": ["10.22.0.0/20", "fd00:22::/116"]}]}


@pytest.mark.needs("br_netfilter", "ifb", "tbf")
@pytest.mark.parametrize("is_applied", [True, False], ids=["kubectl apply", "kubectl exec"])
def test_pools_from_nothing(node, sandbox, is_applied):
    """The DaemonSet with pools waits for them; an object, or the tool in its pod, creates them, and a pod starts."""
    node.apply(manifests.POOLS_INSTALL)
    with node.running(manifests.POOLS_INSTALL, args=["--machine", "machine-1"]) as agent:
        agent.wait_for("the store has no pools: apply an IPSpace object")
        assert listing(node.bin_dir) == {}
        if is_applied:
            document = {"metadata": {"name": "default"}, "kind": "IPSpace", "spec": POOLS}
            node.server.store.put(f"{SPACES}/default", document)
        else:
            line = ("/opt/podwire/podwire", "ipam", "pools", "--set", "/dev/stdin", "--yes")
            assert "changed" in node.execute(manifests.POOLS_INSTALL, *line, stdin=json.dumps(POOLS))
        agent.wait_ready()
        assert node.server.store.objects[f"{SPACES}/default"]["spec"]["pools"][0]["name"] == "default"
        result = node.network().add(node.runner(sandbox))
        assert [ip["address"].partition(":")[0][:5] for ip in result["ips"]] == ["10.22", "fd00"]


@pytest.mark.needs("br_netfilter", "ifb", "tbf")
def test_a_machine_without_an_identity_is_reported(node):
    """Without a product UUID, and with a virtual link only, the agent ends, and names both options."""
    node.apply(manifests.POOLS_INSTALL)
    with node.running(manifests.POOLS_INSTALL) as agent:
        assert agent.process.wait(200) == 1
    text = (node.path / "log").read_text()
    assert "nothing identifies this machine" in text
    assert "no link with a permanent MAC address has 192.0.2.10" in text
    assert "set --machine-address to its address on a network card, or --machine" in text


@pytest.mark.needs("br_netfilter", "ifb", "tbf")
def test_upgrade_from_the_daemonset_without_an_agent(node, new_sandbox):
    """Pods of the former DaemonSet's network keep address and network; the new files delete them; new pods follow."""
    network = json.loads((manifests.INSTALL / FILE).read_text())
    del network["plugins"][0]["nonMasqueradeCluster"]
    network["plugins"][0]["nonMasqueradeCIDRs"] = ["10.0.0.0/8", "fd00::/8"]
    (node.path / "network" / FILE).write_text(json.dumps(network))
    (node.path / "network" / "node.json").write_text(json.dumps(node_object("worker-1")))
    install = ("/opt/podwire/podwire", "install", f"--conf=/etc/podwire/{FILE}", "--node=/etc/podwire/node.json")
    node.execute(manifests.INSTALL, *install)
    node.apply(manifests.INSTALL)
    old, new = new_sandbox(), new_sandbox()
    former, result = node.network(), node.add(old)
    before = old.ip("-br", "address")
    with node.running(args=["--gc-interval", "0"]) as agent:
        agent.wait_ready()
        assert "nonMasqueradeCluster" in (node.net_d / FILE).read_text()
        assert (old.ip("-br", "address"), reaches(old, "10.244.1.1")) == (before, True)
        assert node.add(new)["ips"][0]["address"] == "10.244.1.3/24"
        assert reaches(new, "10.244.1.2")
        former.check(node.runner(old), result)
        node.network().delete(node.runner(old), result)
    assert node.list_leases() == ["10.244.1.3"]


def test_upgrade_replaces_only_an_unchanged_network(node):
    """An unchanged network follows the DaemonSet's; one that was changed on the node stays, and /readyz says so."""
    template = node.path / "network" / FILE
    node.run_once()
    template.write_text(template.read_text().replace('"hairpinMode": true', '"hairpinMode": false'))
    node.run_once()
    path = node.net_d / FILE
    assert json.loads(path.read_text())["plugins"][0]["hairpinMode"] is False
    path.write_text(path.read_text().replace("cni0", "cni9"))
    before = listing(node.net_d)
    template.write_text(template.read_text().replace('"hairpinMode": false', '"hairpinMode": true'))
    with node.running() as agent:
        agent.wait_for(f"/etc/cni/net.d/{FILE} exists and is different")
    assert listing(node.net_d) == before


def test_uninstall_restores_the_node(node):
    """The DaemonSet of deploy/uninstall removes routes and sets, and restores the files of the plugins' names."""
    (node.bin_dir / "bridge").write_text("another program's")
    (node.bin_dir / "flannel").write_text("another program's")
    (node.net_d / "87-other.conflist").write_text("{}")
    before = listing(node.bin_dir), listing(node.net_d)
    with node.running() as agent:
        agent.wait_ready()
        assert list(listing(node.net_d)) == [FILE, "87-other.conflist"]
    with node.running(manifests.UNINSTALL) as remover:
        assert eventually(lambda: "podwire uninstall" in remover.log_path.read_text(), within_s=60)
        assert remover.process.poll() is None, "it waits, so that kubelet does not restart it"
    assert (listing(node.bin_dir), listing(node.net_d)) == before
    assert node.list_routes() == {}
    assert "podwire-vxlan" not in links(node.host)
    assert "podwire_cluster" not in node.host.run("nft", "list", "sets")
