"""The manifests of deploy/ are valid for every supported Kubernetes, complete, and without unneeded permissions."""

import json
import shutil

import kubernetes_validate
import pytest
import yaml

from agent.pools.space import parse_space
from agent.settings import parse
from tests.support import manifests
from tests.support.binaries import ROOT
from tests.support.manifests import (
    DEPLOY,
    DHCP,
    INSTALL,
    NETWORK_POLICY,
    POOLS,
    POOLS_INSTALL,
    POOLS_POLICY,
    POOLS_STICKY,
    UNINSTALL,
)

# The validator's oldest and newest versions, and two between them.
VERSIONS = ("1.25", "1.29", "1.33", "1.37")
AGENT = ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet", "ConfigMap"]
DIRECTORIES = (INSTALL, UNINSTALL, DHCP, POOLS, POOLS_INSTALL, POOLS_POLICY, POOLS_STICKY, NETWORK_POLICY)
KINDS = {
    INSTALL: AGENT,
    UNINSTALL: AGENT,
    DHCP: ["Namespace", "DaemonSet"],
    POOLS: ["CustomResourceDefinition"] * 3 + ["ClusterRole", "ClusterRoleBinding"],
    POOLS_POLICY: ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],  # since 1.30
}


@pytest.mark.parametrize("directory", KINDS, ids=lambda directory: directory.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(directory, version):
    """Each object is valid in that version of Kubernetes, without unknown keys."""
    objects = manifests.render(directory)
    assert [one["kind"] for one in objects] == KINDS[directory]
    for one in objects if directory != POOLS_POLICY or version >= "1.30" else ():
        kubernetes_validate.validate(one, version, strict=True)


def test_the_sample_of_pools_is_valid():
    """The agents accept the pools of deploy/pools.yaml, and the network of deploy/pools-install/ names one of them."""
    sample = yaml.safe_load((DEPLOY / "pools.yaml").read_text())
    (kind,) = (one for one in manifests.render(POOLS) if one["metadata"]["name"] == "ipspaces.podwire.io")
    group, (version,) = kind["spec"]["group"], kind["spec"]["versions"]
    assert (sample["apiVersion"], sample["kind"]) == (f"{group}/{version['name']}", kind["spec"]["names"]["kind"])
    assert sample["metadata"]["name"] == parse([], {"NODE_NAME": "worker-1"}).pools.space
    assert parse_space(sample["spec"]).pool("default")
    page = (ROOT / "docs" / "pools.md").read_text()
    assert yaml.safe_load(page.partition("```yaml")[2].partition("```")[0]) == sample


def test_the_daemon_set_with_pools():
    """With pools the agent gets --store, a directory for the node's ID, and a network that names a pool."""
    pod, plain = manifests.pod(POOLS_INSTALL), manifests.pod(INSTALL)
    (agent,), (plain_agent,) = pod["containers"], plain["containers"]
    added = ["--store", "kubernetes", "--machine-address", "$(HOST_IP)"]
    assert agent["args"] == [*plain_agent["args"], *added]
    assert agent["env"][-1] == {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    args = [word.replace("$(HOST_IP)", "192.0.2.10") for word in agent["args"]]
    options = parse(args, {"NODE_NAME": "worker-1"}).pools
    assert str(options.machine_address) == "192.0.2.10"
    *volumes, added_volume = pod["volumes"]
    assert volumes == plain["volumes"]
    assert added_volume["hostPath"]["path"] == options.state_dir, "the ID outlives the container"
    assert agent["volumeMounts"][-1] == {"name": added_volume["name"], "mountPath": options.state_dir}
    bridge, plain_bridge = bridge_of(POOLS_INSTALL), bridge_of(INSTALL)
    assert bridge == {**plain_bridge, "ipam": {"type": "host-local", "pool": "default"}}


def bridge_of(directory):
    """Returns the plugin bridge in the network of a directory."""
    (network,) = (one for one in manifests.render(directory) if one["kind"] == "ConfigMap")
    return json.loads(network["data"]["10-podwire.conflist"])["plugins"][0]


def test_the_daemon_set_with_network_policies():
    """With policies the agent gets the option and reads three more kinds; the network's bridge gets the key."""
    (agent,), (plain,) = (manifests.pod(directory)["containers"] for directory in (NETWORK_POLICY, INSTALL))
    assert agent == {**plain, "args": [*plain["args"], "--network-policy"]}
    assert parse(agent["args"], {"NODE_NAME": "worker-1"}).network_policy == "on"
    assert bridge_of(NETWORK_POLICY) == {**bridge_of(INSTALL), "networkPolicy": True}
    kinds = ("pods", "namespaces", "networkpolicies")
    read = {f"{verb} {kind}" for kind in kinds for verb in ("get", "list", "watch")}
    assert manifests.rights(NETWORK_POLICY) == manifests.rights(INSTALL) | read


def test_network_policies_with_pools(tmp_path):
    """Network policies with pools, as the page of deploy/ says, have the options, rights and keys of both."""
    directory = shutil.copytree(DEPLOY, tmp_path / "deploy") / NETWORK_POLICY.name
    for name, old, new in (
        ("kustomization.yaml", "- ../install", "- ../pools-install"),
        ("10-podwire.conflist", '"host-local"', '"host-local", "pool": "default"'),
    ):
        text = (directory / name).read_text()
        assert text.count(old) == 1
        (directory / name).write_text(text.replace(old, new))
    (agent,), (with_pools,) = (manifests.pod(each)["containers"] for each in (directory, POOLS_INSTALL))
    assert agent == {**with_pools, "args": [*with_pools["args"], "--network-policy"]}
    assert bridge_of(directory) == {**bridge_of(POOLS_INSTALL), "networkPolicy": True}
    assert manifests.rights(directory) == manifests.rights(POOLS_INSTALL) | manifests.rights(NETWORK_POLICY)


def test_rights_to_pools():
    """Agents change blocks and entries only, delete nothing, and have these rights under the account of install/."""
    role, binding = manifests.render(POOLS)[-2:]
    assert role["rules"] == [
        {"apiGroups": ["podwire.io"], "resources": ["ipspaces"], "verbs": ["get", "list", "watch", "create", "patch"]},
        {"apiGroups": ["podwire.io"], "resources": ["ipspaces/status"], "verbs": ["patch"]},
        {"apiGroups": ["podwire.io"], "resources": ["ipblocks"], "verbs": ["get", "list", "create", "patch"]},
        {"apiGroups": ["podwire.io"], "resources": ["ipnodes"], "verbs": ["get", "list", "watch", "create", "patch"]},
    ]
    (account,) = (one["metadata"] for one in manifests.render(INSTALL) if one["kind"] == "ServiceAccount")
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert binding["subjects"] == [subject]
    (condition,) = manifests.render(POOLS_POLICY)[0]["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{account['namespace']}:{account['name']}'" in condition["expression"]


def test_every_file_is_used():
    """Each file of a directory is named in its kustomization."""
    for directory in DIRECTORIES:
        body = manifests.kustomization(directory)
        named = [*body["resources"], *(file for one in body.get("configMapGenerator", ()) for file in one["files"])]
        files = [name for name in named if not (directory / name).is_dir()]
        assert sorted([*files, "kustomization.yaml"]) == sorted(path.name for path in directory.iterdir())
    others = {"Containerfile", "README.md", "agent.Containerfile", "pools.yaml", "prometheus", "systemd"}
    assert {path.name for path in DEPLOY.iterdir()} == {*others, *(directory.name for directory in DIRECTORIES)}


def test_referenced_objects_are_defined():
    """The manifests define the volumes, the ConfigMap and its file, the account and the role that they refer to."""
    objects = {one["kind"]: one for one in manifests.render(INSTALL)}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    for directory in (INSTALL, UNINSTALL):
        spec = manifests.pod(directory)
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounted = [mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]]
        assert sorted(mounted) == sorted(volumes)
    (network,) = (volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume)
    assert network == objects["ConfigMap"]["metadata"]["name"]
    (agent,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    settings = parse(agent["args"], {"NODE_NAME": "worker-1"})
    assert [f"{mounts['network']}/{name}" for name in objects["ConfigMap"]["data"]] == [settings.conf]
    assert settings.token_file == f"{mounts['credentials']}/token"
    assert [settings.bin_dir, settings.conf_dir] == [mounts["bin"], mounts["net-d"]]
    assert [settings.cache_dir, settings.run_dir] == [mounts["state"], mounts["run"]]
    probes = [agent[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert {f"{probe['host']}:{probe['port']}" for probe in probes} == {settings.listen}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert hosts == {name: mounts[name] for name in hosts}, "podwire uninstall on the node finds the installed files"
    account = objects["ServiceAccount"]["metadata"]
    assert account["name"] == pod["serviceAccountName"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert objects["ClusterRoleBinding"]["subjects"] == [subject]
    assert objects["ClusterRoleBinding"]["roleRef"]["name"] == objects["ClusterRole"]["metadata"]["name"]
    assert objects["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    assert {one["metadata"]["namespace"] for one in objects.values() if "namespace" in one["metadata"]} == {
        objects["Namespace"]["metadata"]["name"]
    }


AGENTS_RIGHTS = (
    ["NET_ADMIN", "SYS_ADMIN", "DAC_OVERRIDE"],
    ["/etc/cni/net.d", "/opt/cni/bin", "/run/netns", "/run/podwire", "/var/lib/cni"],
    {"credentials", "network"},
)
DHCP_RIGHTS = (["NET_ADMIN", "NET_RAW", "SYS_ADMIN"], ["/run/cni", "/var/lib/cni/dhcp"], {"namespaces", "machine-id"})


@pytest.mark.parametrize(
    ("directory", "rights"),
    [(INSTALL, AGENTS_RIGHTS), (UNINSTALL, AGENTS_RIGHTS), (DHCP, DHCP_RIGHTS)],
    ids=["install", "uninstall", "dhcp"],
)
def test_container_has_no_other_rights(directory, rights):
    """The container is not privileged, has three capabilities and no token, and writes few directories of the host."""
    pod = manifests.pod(directory)
    assert "initContainers" not in pod
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert not context.get("privileged")
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    capabilities, written, read_only = rights
    assert context["capabilities"] == {"drop": ["ALL"], "add": capabilities}
    assert {one["name"] for one in container["volumeMounts"] if one.get("readOnly")} == read_only
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert sorted(path for name, path in paths.items() if name not in read_only) == written


def test_service_of_the_package_has_the_same_rights():
    """The package's unit has the container's capabilities, and SYS_PTRACE: process 1 is another program there."""
    (agent,) = manifests.pod(INSTALL)["containers"]
    unit = (DEPLOY / "systemd" / "podwire-agent.service").read_text()
    names = " ".join(f"CAP_{name}" for name in (*agent["securityContext"]["capabilities"]["add"], "SYS_PTRACE"))
    assert f"CapabilityBoundingSet={names}\n" in unit


def test_network_equals_the_sample():
    """The network is kubenet's sample with the node's addresses, on cni0, for both address families."""
    network = json.loads((INSTALL / "10-podwire.conflist").read_text())
    sample = json.loads((ROOT / "conf" / "40-kubenet.conflist").read_text())
    bridge = sample["plugins"][0]
    bridge |= {"bridge": "cni0", "ipam": {"type": "host-local"}}
    bridge |= {"ipMasqBackend": "nftables", "nonMasqueradeCluster": True}
    del bridge["nonMasqueradeCIDRs"]
    assert network == {**sample, "name": "podwire"}


def test_podwire_is_on_the_path_of_the_image():
    """`kubectl exec` finds the tool also in an image of the containerfile."""
    assert 'ENV PATH="$PATH:/opt/podwire"' in (DEPLOY / "agent.Containerfile").read_text().splitlines()
