"""Doctor's check of the networks' cniVersion against the runtimes of the node."""

from __future__ import annotations

import json

import pytest

from podwire.doctor.node import Node
from podwire.main import PLUGINS
from podwire.runtimes import Runtime
from process.values import replace
from tests.support.unit_node import run_check

LISTED = {"cniVersions": ["1.0.0", "1.1.0"]}
NEW, BOTH, BOTH_AS_NEW = {"cniVersion": "1.1.0"}, {"cniVersion": "1.0.0", **LISTED}, {"cniVersion": "1.1.0", **LISTED}
CONTAINERD = Runtime("containerd", ("/opt/cni/bin",))
ELSEWHERE = Runtime("containerd", ("/opt/cni/bin",), conf_dir="/etc/other")


@pytest.fixture
def find(tmp_path):
    """A function that returns the findings on a node with a network and a containerd of a version."""

    def run(versions, containerd, *installed):
        (tmp_path / "10.conflist").write_text(json.dumps({"name": "net", "plugins": [{"type": "bridge"}], **versions}))
        program = tmp_path / "containerd"
        program.write_text(f"#!/bin/sh\necho 'containerd github.com/containerd/containerd {containerd} 1'")
        program.chmod(0o755)
        node = Node(PLUGINS, {"PATH": str(tmp_path)}, str(tmp_path), ("/opt/cni/bin",), str(tmp_path))
        node.runtimes = tuple(one if one is ELSEWHERE else replace(one, conf_dir=str(tmp_path)) for one in installed)
        return run_check(node, "versions")

    return run


@pytest.mark.parametrize("versions", [NEW, BOTH_AS_NEW])
@pytest.mark.parametrize("containerd", ["1.6.20~ds1", "v1.7.29"])
def test_containerd_1_refuses_cni_1_1_0(find, versions, containerd):
    """A network whose "cniVersion" is 1.1.0 is a problem if containerd 1 runs plugins, with the keys as the fix."""
    (finding,) = find(versions, containerd, CONTAINERD)
    assert finding.name == "runtime-refuses-version"
    assert f"containerd {containerd.removeprefix('v')} refuses" in finding.text
    assert '"cniVersion": "1.0.0"' in finding.fix


def test_other_runtimes_and_versions_are_no_problem(find):
    """Nothing is found for another version, network, runtime or directory, or a disabled CRI."""
    assert find(NEW, "1.7.24", ELSEWHERE) == []
    assert find(NEW, "v2.1.9", CONTAINERD) == find(NEW, "unknown", CONTAINERD) == []
    assert find(BOTH, "1.7.24", CONTAINERD) == find({"cniVersion": "1.0.0"}, "1.7.24", CONTAINERD) == []
    assert find(NEW, "1.7.24") == find(NEW, "1.7.24", Runtime("CRI-O", ("/opt/cni/bin",))) == []
    assert find(NEW, "1.7.24", Runtime("containerd", ("/opt/cni/bin",), without_cni="disabled")) == []
