"""`podwire install` beside the runtimes of Debian 12, whose containerd runs plugins from /usr/lib/cni."""

import re
import shlex
from pathlib import Path

import pytest

OURS, DEBIANS = "/opt/cni/bin", "/usr/lib/cni"
SETTINGS = Path("/etc/containerd/config.toml")
CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'
CNI = '[plugins."io.containerd.grpc.v1.cri".cni]\n'
# What containerd 1.6 itself makes of its files (`containerd config dump`) is compared with what podwire reads.
FILES = {
    "version 1": {"config.toml": '[plugins.cri.cni]\n  bin_dir = "/v1"\n'},
    "no version": {"config.toml": f'{CNI}bin_dir = "/ignored"\n'},
    "version 2": {"config.toml": f'version = 2\n{CNI}bin_dir = "/v2"\nconf_dir = "/c"\n'},
    "a drop-in": {
        "config.toml": f'version = 2\nimports = ["/etc/containerd/d/*.toml"]\n{CNI}bin_dir = "/v2"\n',
        "d/a.toml": f'{CNI}bin_dir = "/dropin"\n',
    },
    "a drop-in that replaces": {
        "config.toml": f'version = 2\nimports = ["/etc/containerd/d/a.toml"]\n{CNI}bin_dir = "/v2"\n',
        "d/a.toml": f'version = 2\n{CRI}sandbox_image = "x"\n',
    },
}


@pytest.fixture
def machine(needs_programs, empty_machine):
    """A machine with Debian's containerd, its settings, and an empty /usr/lib/cni."""
    needs_programs("containerd")
    empty_machine.run(
        "sh", "-ec", f"mountpoint -q {DEBIANS} || mount -t tmpfs podwire {DEBIANS}; rm -rf /etc/containerd"
    )
    return empty_machine


def findings(machine, tool):
    """Returns what doctor finds wrong with containerd's directories."""
    found = machine.done(tool, "doctor").stdout
    return re.findall(r"warning runtime: containerd: (.*)\n  \w+: (.*)", found)


def test_install_and_doctor_name_the_command_that_works(machine, bin_dir):
    """Both print `podwire install --bin-dir /usr/lib/cni`; once it has run, neither has anything more to say."""
    machine.write(SETTINGS, SETTINGS.read_text())
    text = machine.run(str(bin_dir / "podwire"), "install", "--conf", "--subnet=10.22.0.0/16")
    command = f"podwire install --bin-dir {DEBIANS}"
    assert (
        f"containerd runs the plugins in {DEBIANS} ({SETTINGS}), not in {OURS}; to install there: {command}\n" in text
    )
    tool = f"{OURS}/podwire"
    assert [fix for _, fix in findings(machine, tool)] == [command]
    text = machine.run(OURS + "/" + shlex.split(command)[0], *shlex.split(command)[1:])
    assert f"containerd runs the plugins in {DEBIANS} ({SETTINGS})\n" in text
    assert findings(machine, tool) == []
    assert "which are also this podwire\n" in machine.run(tool, "install")
    assert machine.succeeds(tool, "lint")
    machine.run(tool, "uninstall")
    assert f"{DEBIANS}/bridge" in machine.run(f"{DEBIANS}/podwire", "version", "bridge")
    assert findings(machine, f"{DEBIANS}/podwire") == []


@pytest.mark.parametrize("name", FILES)
def test_the_settings_are_read_as_containerd_reads_them(machine, bin_dir, name):
    """For files of each version, with drop-ins that add and that replace, the directories are those of containerd."""
    for path, text in FILES[name].items():
        machine.write(SETTINGS.parent / path, text)
    dump = machine.run("containerd", "--config", str(SETTINGS), "config", "dump")
    keys = ("bin_dir", "conf_dir")
    expected = [re.search(rf'^ +{key} = "(.*)"$', dump, re.MULTILINE)[1] for key in keys]
    text = machine.run(str(bin_dir / "podwire"), "install", "--dry-run", "--conf", "--subnet=10.22.0.0/16")
    plugins = re.search(r"containerd runs the plugins in ([^\s,]+)", text)[1]
    elsewhere = re.search(r"containerd reads networks from (\S+):", text)
    assert [plugins, elsewhere[1] if elsewhere else "/etc/cni/net.d"] == expected
