"""`podwire install --conf` with other addresses than before: printed, and refused while pods of the network run."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.namespaces import Namespace
from tests.support.tool import Tool

OLD, NEW = "10.22.0.0/16", "10.30.0.0/16"
FILE = "10-net.conflist"


@pytest.fixture
def install(tool: Tool, tmp_path: Path) -> Callable[..., str]:
    """Returns a function that installs a network with a subnet and returns its output."""
    for file in (tool.directory / "net.d").iterdir():
        file.unlink()
    (tmp_path / "template").mkdir()

    def install(subnet: str, *words: str, bridge: str = "cni0", status: int = 0) -> str:
        plugin = tool.bridge(bridge=bridge)
        del plugin["ipam"]["ranges"]
        template = tmp_path / "template" / FILE
        template.write_text(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]}))
        line = [f"{tool.bin_dir}/podwire", "install", f"--bin-dir={tmp_path}/bin", f"--cache-dir={tmp_path}/cache"]
        line += [f"--conf={template}", "--subnet", subnet, "--conf-dir", f"{tmp_path}/net.d", *words]
        with tool.host.entered():
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return install


@pytest.fixture
def running(tool: Tool, install: Callable[..., str], sandbox: Namespace) -> Namespace:
    """A running pod of the network with the old subnet."""
    install(OLD)
    tool.succeed("add", "net", sandbox.path, "--container-id", sandbox.name)
    return sandbox


def read_network_file(tool: Tool) -> str:
    """Returns the text of the network's file."""
    return (tool.directory / "net.d" / FILE).read_text()


def test_uninstall_beside_running_pods(tool: Tool, running: Namespace, tmp_path: Path) -> None:
    """It refuses while pods run whose DEL would fail without the removed plugins, also those in Multus' cache."""
    line = [f"{tool.bin_dir}/podwire", "uninstall", f"--bin-dir={tmp_path}/bin", f"--conf-dir={tmp_path}/net.d"]
    multus = {"cniVersion": "1.0.0", "name": "multus", "type": "multus", "cniDir": str(tmp_path / "cache")}
    (tmp_path / "net.d" / "00-multus.conf").write_text(json.dumps(multus))
    bridge, has_no_plugins = tmp_path / "bin" / "bridge", f"{tmp_path}/bin has no other plugins for their DEL"
    for cache, option, stream, text in (
        ("cache", "--dry-run", "stdout", "their DEL fails until"),
        ("cache", "--color=never", "stderr", has_no_plugins),
        ("runtime", "--color=never", "stderr", has_no_plugins),
        ("runtime", "--force", "stdout", "their DEL fails until"),
    ):
        assert bridge.exists()
        line_of_cache = [*line, f"--cache-dir={tmp_path}/{cache}", option]
        done = subprocess.run(line_of_cache, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) == (text == has_no_plugins), done
        assert f"1 attachment may be running, and {text}" in getattr(done, stream), done
    assert not bridge.exists()


@pytest.mark.long
def test_change_is_refused_while_pods_run(tool: Tool, install: Callable[..., str], running: Namespace) -> None:
    """While a pod is running, another subnet is refused with both ranges, and nothing is written."""
    before = read_network_file(tool)
    text = install(NEW, status=3)
    assert f'1 pod runs in network "net" with addresses of {OLD}; the new file has {NEW}' in text
    assert "--force" in text
    assert read_network_file(tool) == before
    assert f"{OLD} -> {NEW}" not in install(OLD)


@pytest.mark.long
def test_forced_change_is_printed(tool: Tool, install: Callable[..., str], running: Namespace) -> None:
    """With --force the file is written, and the printed doctor command reports the bridge's old gateway."""
    text = install(NEW, "--force")
    (line,) = (line for line in text.splitlines() if " -> " in line)
    assert line.startswith(f'addresses of network "net": {OLD} -> {NEW}; ')
    assert NEW in read_network_file(tool)
    command = line.rpartition(": ")[2]
    assert command.startswith("podwire doctor net --conf-dir ")
    assert "already has an IP address different from 10.30.0.1/16" in tool.fail(1, "doctor", "net")


def test_change_without_pods_is_printed(tool: Tool, install: Callable[..., str], running: Namespace) -> None:
    """Without pods the change is made and printed, and the fix of doctor lets the next pod start."""
    tool.succeed("del", "net", running.path, "--container-id", running.name)
    assert f"{OLD} -> {NEW}" in install(NEW)
    (finding,) = (one for one in tool.json("doctor", "net", status=1)["checks"] if one["name"] == "not-ready")
    tool.host.run("sh", "-ec", finding["cure"].rpartition(": ")[2])
    tool.succeed("add", "net", running.path, "--container-id", running.name)


@pytest.mark.long
def test_another_bridge_is_not_refused(install: Callable[..., str], running: Namespace) -> None:
    """A network with new addresses on another bridge is written, since running pods keep their gateway."""
    text = install(NEW, bridge="cni5")
    assert f"{OLD} -> {NEW}" in text
    assert "doctor" not in text
