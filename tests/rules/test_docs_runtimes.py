"""The files in the pages on Kubernetes and the runtimes are valid and have the documented effect."""

import json
import re
import tomllib

import pytest

from podwire.lint import directory
from podwire.main import PLUGINS
from tests.rules.test_docs import accept
from tests.support import manifests
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, Document

PAGES = [Document(DOCS / f"{name}.md") for name in ("kubernetes", "kubenet", "runtimes")]
RUNTIMES = PAGES[2]


def table(*path):
    """Returns the tables at a path, of all TOML blocks of the page that have it."""
    tables = []
    for block in RUNTIMES.blocks("toml"):
        value = tomllib.loads(block)
        for key in path:
            value = value.get(key, {})
        if value:
            tables.append(value)
    return tables


def test_runtime_tables_have_the_directories():
    """Each runtime's table has the keys for the directories of plugins and networks, with podwire's values."""
    keys = {"bin_dir": "/opt/cni/bin", "conf_dir": "/etc/cni/net.d", "max_conf_num": 1, "conf_template": ""}
    assert table("plugins", "io.containerd.grpc.v1.cri", "cni") == [keys]
    assert table("plugins", "io.containerd.cri.v1.runtime", "cni") == [{**keys, "use_internal_loopback": False}]
    crio = {"network_dir": "/etc/cni/net.d/", "plugin_dirs": ["/opt/cni/bin/"], "cni_default_network": ""}
    assert table("crio", "network") == [crio]
    (podman,) = table("network")
    assert (podman["network_backend"], podman["cni_plugin_dirs"][0]) == ("cni", "/opt/cni/bin")
    (nerdctl,) = (tomllib.loads(block) for block in RUNTIMES.blocks("toml") if "cni_path" in block)
    assert nerdctl == {"cni_path": "/opt/cni/bin", "cni_netconfpath": "/etc/cni/net.d"}


@pytest.mark.parametrize("cidr", ["10.244.3.0/24", "fd00:10:244:3::/64"])
def test_containerds_template(tmp_path, cidr):
    """With a podCIDR the template equals the DaemonSet's network without an agent, and lint has no findings."""
    (template,) = PAGES[0].blocks("tmpl")
    assert re.findall(r"\{\{.*?\}\}", template) == ["{{.PodCIDR}}"]
    text = template.replace("{{.PodCIDR}}", cidr)
    network = json.loads(text)
    for plugin in network["plugins"]:
        accept({"cniVersion": network["cniVersion"], "name": network["name"], **plugin})
    path = tmp_path / "10-containerd-net.conflist"
    path.write_text(text)
    (page,) = directory.lint_file(str(path), PLUGINS, ()).files
    assert page.findings == []
    installed = json.loads((manifests.INSTALL / "10-podwire.conflist").read_text())
    installed["plugins"][0]["ipam"]["ranges"] = [[{"subnet": cidr}]]
    bridge = installed["plugins"][0]
    del bridge["nonMasqueradeCluster"], bridge["ipMasqBackend"]  # containerd's network is without the agent
    bridge["nonMasqueradeCIDRs"] = ["10.0.0.0/8"]
    assert network == installed


def test_k3s_paths(tmp_path):
    """The kustomization for k3s changes only the two host directories."""
    (text,) = RUNTIMES.blocks("yaml")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "kustomization.yaml").write_text(text)

    def hosts(spec):
        return {one["name"]: one.pop("hostPath")["path"] for one in spec["volumes"] if "hostPath" in one}

    k3s, default = manifests.pod(tmp_path), manifests.pod(manifests.INSTALL)
    start, paths = "/var/lib/rancher/k3s", hosts(default)
    assert hosts(k3s) == paths | {"bin": f"{start}/data/cni", "net-d": f"{start}/agent/etc/cni/net.d"}
    assert (paths["bin"], paths["net-d"]) == ("/opt/cni/bin", "/etc/cni/net.d")
    assert k3s == default
