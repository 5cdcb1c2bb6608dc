"""The doctor's checks of the installed runtimes: their directories, and the versions that they refuse."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cni.errors import CniError
from podwire.doctor.finding import Severity
from podwire.doctor.node import CheckedNode
from podwire.layers import Layer
from podwire.main import PLUGINS
from podwire.node.records import Directories
from podwire.runtimes import Runtime
from process.values import replace
from tests.support.unit_node import run_check


def create_plugin(path: Path, content: str = "a plugin") -> None:
    """Creates an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)


def test_plugin_that_cannot_start(node, tmp_path, capfd):
    """The finding has what a broken plugin prints, such as a missing library, and nothing else is printed."""
    create_plugin(tmp_path / "bin" / "bridge", "#!/bin/sh\necho libc.so.9 is missing >&2; exit 3\n")
    (finding,) = (one for one in run_check(node, "programs") if one.subject == "bridge")
    assert "exit status 3, libc.so.9 is missing" in finding.text
    assert capfd.readouterr().err == ""


def set_runtime(node: CheckedNode, *places: Path, **keys: Any) -> None:
    """Gives the node a runtime that searches these directories."""
    node.runtimes = (Runtime("containerd", tuple(map(str, places)), **{"conf_dir": node.conf_dir, **keys}),)


def check_directories(node: CheckedNode) -> list[tuple[str, str]]:
    """Returns name and fix of the findings about runtimes' directories."""
    return [(one.name, one.fix) for one in run_check(node, "directories")]


def test_runtime_with_another_plugin_directory(node, tmp_path):
    """If doctor checks podwire's plugins, the fix installs podwire in the runtime's directory."""
    lib, bin_dir = tmp_path / "lib", tmp_path / "bin"
    set_runtime(node, lib)
    fix = [("runtime-looks-elsewhere", f"podwire install --bin-dir {lib}")]
    create_plugin(bin_dir / "bridge")
    create_plugin(bin_dir / "host-local")
    assert check_directories(node) == [("runtime-looks-elsewhere", f'install "bridge" into {lib}')]
    create_plugin(bin_dir / "podwire")
    assert check_directories(node) == fix
    create_plugin(lib / "bridge", "the reference's")
    assert check_directories(node) == fix
    create_plugin(lib / "bridge")
    assert check_directories(node) == fix
    create_plugin(lib / "host-local")
    assert check_directories(node) == []


def test_plugins_of_a_package_are_replaced_by_no_command(node, tmp_path):
    """A command installs into the runtime's directory only if that has no plugins; else it is advice."""
    lib, bin_dir = tmp_path / "lib", tmp_path / "bin"
    set_runtime(node, lib)
    for name in ("bridge", "host-local", "podwire"):
        create_plugin(bin_dir / name)
    (finding,) = run_check(node, "directories")
    assert finding.commands == (f"podwire install --bin-dir {lib}",)
    create_plugin(lib / "portmap", "a distribution's")
    (finding,) = run_check(node, "directories")
    assert finding.commands == ()
    assert finding.all_advice.startswith(f"it replaces the plugins in {lib}")


def test_runtime_that_does_not_run(node, tmp_path):
    """Differences to an installed runtime whose daemon does not listen on its socket are only a note."""
    set_runtime(node, tmp_path / "lib")
    create_plugin(tmp_path / "lib" / "bridge")
    (finding,) = run_check(node, "directories")
    assert finding.severity is Severity.NOTE
    with socket.socket(socket.AF_UNIX) as daemon:
        (tmp_path / "containerd").mkdir()
        daemon.bind(str(tmp_path / "containerd" / "containerd.sock"))
        daemon.listen()
        (finding,) = run_check(node, "directories")
    assert finding.severity is Severity.WARNING


def test_runtime_with_plugins_that_doctor_does_not_check(node, tmp_path):
    """If only the runtime's directory has plugins, the fix runs doctor for that directory."""
    lib = tmp_path / "lib"
    set_runtime(node, tmp_path / "absent", lib)
    create_plugin(lib / "bridge")
    text = f"podwire doctor --bin-dir {tmp_path}/absent:{lib}"
    assert check_directories(node) == [("runtime-looks-elsewhere", text)]


def test_runtime_with_a_shadowing_directory(node, tmp_path):
    """The fix installs into the directory whose plugin shadows podwire's."""
    set_runtime(node, tmp_path / "absent", tmp_path / "lib", tmp_path / "bin")
    for name in ("bridge", "host-local", "podwire"):
        create_plugin(tmp_path / "bin" / name)
    assert check_directories(node) == []
    create_plugin(tmp_path / "lib" / "host-local", "the reference's")
    assert check_directories(node) == [("runtime-looks-elsewhere", f"podwire install --bin-dir {tmp_path}/lib")]


def test_runtime_with_other_networks(node, tmp_path):
    """A runtime with another directory of networks is reported, unless it is the same directory by another path."""
    (tmp_path / "link").symlink_to(node.conf_dir)
    set_runtime(node, conf_dir=f"{tmp_path}/link/")
    assert check_directories(node) == []
    set_runtime(node, conf_dir="/etc/b")
    assert check_directories(node) == [("runtime-looks-elsewhere", "podwire doctor --conf-dir /etc/b")]


def test_invalid_runtime_settings(node):
    """Settings of an installed runtime that are not TOML are a warning that names the file."""
    node.runtimes = (Runtime("containerd", problem=CniError(6, "/etc/x is not TOML: line 1", "correct the file")),)
    (finding,) = run_check(node, "directories")
    assert (finding.name, finding.text) == ("runtime-settings-unreadable", "/etc/x is not TOML: line 1")


def test_runtime_without_cni(node):
    """A runtime that runs no CNI plugins is only a note."""
    set_runtime(node, Path("/opt/other"), without_cni="network_backend is netavark")
    assert check_directories(node) == [("runtime-without-cni", "")]


def test_install_dir_is_the_runtimes(node, tmp_path):
    """A missing plugin is installed into the runtime's directory if doctor checks that directory."""
    (tmp_path / "bin").mkdir()
    node.bin_dirs = (str(tmp_path / "opt"), str(tmp_path / "bin"))
    set_runtime(node, tmp_path / "bin")
    assert node.install_dir == str(tmp_path / "bin")
    set_runtime(node, tmp_path / "lib")
    assert node.install_dir == str(tmp_path / "opt")


LISTED = {"cniVersions": ["1.0.0", "1.1.0"]}
NEW, BOTH, BOTH_AS_NEW = {"cniVersion": "1.1.0"}, {"cniVersion": "1.0.0", **LISTED}, {"cniVersion": "1.1.0", **LISTED}
CONTAINERD = Runtime("containerd", ("/opt/cni/bin",))
ELSEWHERE = Runtime("containerd", ("/opt/cni/bin",), conf_dir="/etc/other")


@pytest.fixture
def find(tmp_path):
    """A function that returns the findings on a node with a network and a containerd of a version."""

    def run(versions, containerd, *installed):
        (tmp_path / "10.conflist").write_text(json.dumps({"name": "net", "plugins": [{"type": "bridge"}], **versions}))
        script = f"#!/bin/sh\necho 'containerd github.com/containerd/containerd {containerd} 1'"
        create_plugin(tmp_path / "containerd", script)
        directories = Directories(str(tmp_path), (Layer(str(tmp_path)),))
        node = CheckedNode(PLUGINS, {"PATH": str(tmp_path)}, directories, ("/opt/cni/bin",))
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
