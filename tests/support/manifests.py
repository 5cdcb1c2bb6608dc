"""The manifests in deploy/, rendered as kustomize renders them.

One rule: only the features of kustomize that these files use are implemented, and any other one fails; if kubectl is
installed, a test compares both results.
"""

from pathlib import Path
from typing import Any

import yaml

from tests.support.binaries import ROOT

DEPLOY = ROOT / "deploy"
INSTALL, UNINSTALL, DHCP = DEPLOY / "install", DEPLOY / "uninstall", DEPLOY / "dhcp"
POOLS, POOLS_POLICY, POOLS_INSTALL = DEPLOY / "pools", DEPLOY / "pools-policy", DEPLOY / "pools-install"
POOLS_STICKY, NETWORK_POLICY = DEPLOY / "pools-sticky", DEPLOY / "network-policy"
# Objects without a namespace.
_CLUSTER = ("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
_KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator", "patches"}

Object = dict[str, Any]


def kustomization(directory: Path) -> Object:
    """Returns a directory's kustomization; AssertionError for keys that `render` does not implement."""
    body: Object = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert body.keys() <= _KNOWN, body.keys() - _KNOWN
    return body


def render(directory: Path) -> list[Object]:
    """Returns the objects of a directory; a generated ConfigMap has no hash in its name."""
    body = kustomization(directory)
    objects = [one for name in body["resources"] for one in _resource(directory / name)]
    for generator in body.get("configMapGenerator", ()):
        generated = _config_map(directory, generator)
        if generator.get("behavior") == "replace":
            objects = [
                one for one in objects if (one["kind"], one["metadata"]["name"]) != ("ConfigMap", generator["name"])
            ]
        objects.append(generated)
    for one in objects:
        if "namespace" in body and one["kind"] not in _CLUSTER:
            one["metadata"]["namespace"] = body["namespace"]
    names = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in body.get("images", ())}
    for container in (container for one in objects for container in containers(one)):
        container["image"] = names.get(container["image"], container["image"])
    for patch in body.get("patches", ()):
        (target,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (*patch["target"].values(),))
        for change in yaml.safe_load(patch["patch"]):
            _change(target, **change)
    return objects


def containers(one: Object) -> list[Object]:
    """Returns all containers of a DaemonSet, [] for another object."""
    pod = one["spec"]["template"]["spec"] if one["kind"] == "DaemonSet" else {}
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def pod(directory: Path) -> Object:
    """Returns the pod of a directory's only DaemonSet."""
    (daemon_set,) = (one for one in render(directory) if one["kind"] == "DaemonSet")
    spec: Object = daemon_set["spec"]["template"]["spec"]
    return spec


def role(directory: Path) -> Object:
    """Returns a directory's only ClusterRole."""
    (only,) = (one for one in render(directory) if one["kind"] == "ClusterRole")
    return only


def rights(directory: Path) -> frozenset[str]:
    """Returns the rights of a directory's ClusterRoles: "list nodes", "patch ipspaces/status"."""
    rules = [rule for one in render(directory) if one["kind"] == "ClusterRole" for rule in one["rules"]]
    return frozenset(f"{verb} {name}" for rule in rules for name in rule["resources"] for verb in rule["verbs"])


def _resource(path: Path) -> list[Object]:
    return render(path.resolve()) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def _config_map(directory: Path, generator: Object) -> Object:
    data = {name: (directory / name).read_text() for name in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}


def _change(target: Object, op: str, path: str, value: object = None) -> None:
    """Applies one operation of a JSON patch (RFC 6902); "add" adds a key to an object, or at a list's end."""
    *parents, last = (int(step) if step.isdigit() else step for step in path.split("/")[1:])
    parent: Any = target
    for step in parents:
        parent = parent[step]
    assert op in ("add", "replace", "remove"), op
    if op == "add" and last == "-":
        parent.append(value)
    elif op == "add":
        assert last not in parent
        parent[last] = value
    elif op == "replace":
        assert parent[last] is not None
        parent[last] = value
    else:
        del parent[last]
