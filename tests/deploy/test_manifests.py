"""The manifests of deploy/ are valid for every supported Kubernetes, complete, and without unneeded permissions."""

import json
import re
import shutil

import kubernetes_validate
import pytest
import yaml

from podwire import __version__
from tests.support import manifests
from tests.support.binaries import ROOT
from tests.support.manifests import DEPLOY, DHCP, INSTALL, UNINSTALL
from tests.support.processes import output

# The validator's oldest and newest versions, and two between them.
VERSIONS = ("1.25", "1.29", "1.33", "1.37")
BOTH = pytest.mark.parametrize("directory", [INSTALL, UNINSTALL], ids=lambda directory: directory.name)


@BOTH
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(directory, version):
    """Each object is valid in that version of Kubernetes, without unknown keys."""
    objects = manifests.render(directory)
    assert [one["kind"] for one in objects] == [
        "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet", "ConfigMap",
    ]  # fmt: skip
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_of_the_dhcp_daemon_is_valid(version):
    """The daemon's namespace and DaemonSet are valid in that version of Kubernetes, without unknown keys."""
    objects = manifests.render(DHCP)
    assert [one["kind"] for one in objects] == ["Namespace", "DaemonSet"]
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)


def test_dhcp_daemon_has_no_other_rights():
    """The daemon's container is not privileged, has three capabilities and no token, and writes two directories."""
    pod = manifests.pod(DHCP)
    (daemon,) = pod["containers"]
    rights = daemon["securityContext"]
    assert not rights.get("privileged")
    assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostIPC"} & pod.keys()
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    written = [paths[mount["name"]] for mount in daemon["volumeMounts"] if not mount.get("readOnly")]
    assert written == ["/var/lib/cni/dhcp", "/run/cni"]


def test_validator_refuses_misspelt_keys_and_wrong_types():
    """The validator refuses a misspelt key and a value of a wrong type: the test above can fail."""
    (daemon_set,) = (one for one in manifests.render(INSTALL) if one["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    for wrong in ({"hostNetwrok": True}, {"hostNetwork": "true"}):
        daemon_set["spec"]["template"]["spec"] = {**pod, **wrong}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(daemon_set, VERSIONS[-1], strict=True)


def test_every_file_is_used():
    """Each file of a directory is named in its kustomization."""
    for directory in (INSTALL, UNINSTALL, DHCP):
        body = manifests.kustomization(directory)
        named = [*body["resources"], *(file for one in body.get("configMapGenerator", ()) for file in one["files"])]
        files = [name for name in named if not (directory / name).is_dir()]
        assert sorted([*files, "kustomization.yaml"]) == sorted(path.name for path in directory.iterdir())
    others = {"Containerfile", "README.md", "systemd"}
    assert {path.name for path in DEPLOY.iterdir()} == {*others, "dhcp", "install", "uninstall"}


@BOTH
def test_rendered_objects_equal_kubectls(directory):
    """If kubectl is installed, `kubectl kustomize` makes the same objects, except for the ConfigMap's hash."""
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl: Debian 12 has one of 2021, whose kustomize is too old")
    text = output("kubectl", "kustomize", str(directory))
    objects = yaml.safe_load_all(re.sub(r"\bnetwork-[a-z0-9]{10}\b", "network", text))

    def by_name(items):
        return {(one["kind"], one["metadata"]["name"]): one for one in items}

    assert by_name(objects) == by_name(manifests.render(directory))


def test_referenced_objects_are_defined():
    """The manifests define the volumes, the ConfigMap and its file, the account and the role that they refer to."""
    objects = {one["kind"]: one for one in manifests.render(INSTALL)}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    for directory in (INSTALL, UNINSTALL):
        spec = manifests.pod(directory)
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounted = [mount["name"] for one in spec["initContainers"] for mount in one["volumeMounts"]]
        assert {*mounted} <= volumes
    (network,) = (volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume)
    assert network == objects["ConfigMap"]["metadata"]["name"]
    install = pod["initContainers"][1]
    mounts = {mount["name"]: mount["mountPath"] for mount in install["volumeMounts"]}
    words = install["args"]
    assert [f"{mounts['network']}/{name}" for name in objects["ConfigMap"]["data"]] == [
        words[words.index("--conf") + 1]
    ]
    assert words[words.index("--node") + 1] == f"{mounts['node']}/node.json"
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert hosts == {name: mounts[name] for name in hosts}, "podwire uninstall on the node finds the installed files"
    account = objects["ServiceAccount"]["metadata"]
    assert account["name"] == pod["serviceAccountName"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert objects["ClusterRoleBinding"]["subjects"] == [subject]
    assert objects["ClusterRoleBinding"]["roleRef"]["name"] == objects["ClusterRole"]["metadata"]["name"]
    assert objects["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert {one["metadata"]["namespace"] for one in objects.values() if "namespace" in one["metadata"]} == {
        objects["Namespace"]["metadata"]["name"]
    }


@BOTH
def test_only_the_install_container_is_root(directory):
    """The remaining container has no capability, host file or token; of the init containers only one is root."""
    pod = manifests.pod(directory)
    (done,) = pod["containers"]
    assert "volumeMounts" not in done
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    hosts = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    secrets = {volume["name"] for volume in pod["volumes"] if "projected" in volume}
    roots = []
    for one in [*pod["initContainers"], done]:
        rights = {**pod["securityContext"], **one["securityContext"]}
        assert not rights.get("privileged")
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert rights["capabilities"]["drop"] == ["ALL"]
        mounted = {mount["name"] for mount in one.get("volumeMounts", ())}
        assert not (mounted & hosts and mounted & secrets)
        if rights["runAsUser"] == 0:
            roots.append(one["name"])
            assert rights["capabilities"]["add"] == ["DAC_OVERRIDE"]
            assert not mounted & secrets
        else:
            assert rights["runAsNonRoot"]
            assert "add" not in rights["capabilities"]
            assert not mounted & hosts
    assert roots == ["install"]


def test_network_equals_the_sample():
    """The network is kubenet's sample with the node's addresses, on cni0, for both address families."""
    network = json.loads((INSTALL / "10-podwire.conflist").read_text())
    sample = json.loads((ROOT / "conf" / "40-kubenet.conflist").read_text())
    bridge = sample["plugins"][0]
    bridge |= {"bridge": "cni0", "ipam": {"type": "host-local"}, "nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"]}
    assert network == {**sample, "name": "podwire"}


def test_images_have_versions():
    """Every image has a version as its tag, and podwire's is the present version."""
    images = [
        one["image"] for one in (*manifests.pod(INSTALL)["initContainers"], *manifests.pod(INSTALL)["containers"])
    ]
    assert images[1] == f"registry.example/podwire:{__version__}"
    assert [image for image in images if not re.fullmatch(r"[a-z0-9./-]+:[0-9][0-9.]*", image)] == []
    assert __version__ in (DEPLOY / "Containerfile").read_text()
