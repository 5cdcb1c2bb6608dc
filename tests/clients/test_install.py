"""`podwire install` on a machine with Debian's containerd, which runs plugins from /usr/lib/cni."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.clients.containerd import version
from tests.support import binaries

PODWIRE_BIN, DEBIAN_BIN = "/opt/cni/bin", "/usr/lib/cni"
SETTINGS = Path("/etc/containerd/config.toml")
CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'
CNI = '[plugins."io.containerd.grpc.v1.cri".cni]\n'
RUNTIME = "[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
# The tests compare what podwire reads from these files with containerd's own `containerd config dump`,
# without a file with `containerd config default`.
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
    "a drop-in with another key": {
        "config.toml": f'version = 2\nimports = ["/etc/containerd/d/a.toml"]\n{CNI}bin_dir = "/v2"\n',
        "d/a.toml": f'version = 2\n{CNI}conf_dir = "/c"\n',
    },
    "no file": {},
    "version 3": {"config.toml": f'version = 3\n{RUNTIME}bin_dirs = ["/v3"]\nconf_dir = "/c"\n'},
    "version 3 with the old key": {"config.toml": f'version = 3\n{RUNTIME}bin_dir = "/v3"\n'},
    "version 3 with a drop-in of version 2": {
        "config.toml": f'version = 3\nimports = ["/etc/containerd/d/a.toml"]\n{RUNTIME}bin_dirs = ["/v3"]\n',
        "d/a.toml": f'version = 2\n{CNI}bin_dir = "/v2"\n',
    },
}


@pytest.fixture
def machine(needs_programs, empty_machine):
    """A machine with Debian's containerd, without its settings, and an empty /usr/lib/cni."""
    needs_programs("containerd")
    empty_machine.run(
        "sh", "-ec", f"mountpoint -q {DEBIAN_BIN} || mount -t tmpfs podwire {DEBIAN_BIN}; rm -rf /etc/containerd"
    )
    return empty_machine


def findings(machine, tool):
    """Returns doctor's findings about containerd's directories; containerd does not run, so they are notes."""
    return re.findall(r"note runtime: containerd: (.*)\n  \w+: (.*)", machine.done(tool, "doctor").stdout)


def test_install_and_doctor_print_the_command_that_fixes(machine, bin_dir):
    """Both print `podwire install --bin-dir /usr/lib/cni`; after that command neither prints a warning."""
    machine.write(SETTINGS, SETTINGS.read_text())
    text = machine.run(str(bin_dir / "podwire"), "install", "--conf", "--subnet=10.22.0.0/16")
    command = f"podwire install --bin-dir {DEBIAN_BIN}"
    assert (
        f"containerd runs the plugins in {DEBIAN_BIN} ({SETTINGS}), not in {PODWIRE_BIN}; to install there: {command}\n"
        in text
    )
    tool = f"{PODWIRE_BIN}/podwire"
    assert [fix.endswith(command) for _, fix in findings(machine, tool)] == [True]
    text = machine.run(PODWIRE_BIN + "/" + shlex.split(command)[0], *shlex.split(command)[1:])
    assert f"containerd runs the plugins in {DEBIAN_BIN} ({SETTINGS})\n" in text
    assert findings(machine, tool) == []
    assert "which are also this podwire\n" in machine.run(tool, "install")
    assert machine.succeeds(tool, "lint")
    fix = f"{DEBIAN_BIN}/podwire uninstall --bin-dir {DEBIAN_BIN}"
    assert f"podwire is also in {DEBIAN_BIN}; to remove it there: {fix}\n" in machine.run(tool, "uninstall")
    assert f"{DEBIAN_BIN}/bridge" in machine.run(f"{DEBIAN_BIN}/podwire", "version", "bridge")
    assert findings(machine, f"{DEBIAN_BIN}/podwire") == []


def test_links_to_the_plugins_are_podwire(machine, bin_dir):
    """Nothing is left to install if containerd's directory has links to the plugins, as Debian's package makes them."""
    machine.write(SETTINGS, SETTINGS.read_text())
    plugins = " ".join(f"{PODWIRE_BIN}/{name}" for name in binaries.names())
    machine.run("sh", "-ec", f"rm -f {DEBIAN_BIN}/*; ln -s {plugins} {DEBIAN_BIN}")
    text = machine.run(str(bin_dir / "podwire"), "install")
    assert f"containerd runs the plugins in {DEBIAN_BIN} ({SETTINGS}), which are also this podwire\n" in text


@pytest.mark.parametrize("name", FILES)
def test_settings_are_read_as_containerd_reads_them(machine, bin_dir, name):
    """For files of each version, with drop-ins that add or replace keys, podwire reads containerd's directories."""
    if name.startswith("version 3") and version(machine) < (2,):
        pytest.skip("containerd 1 does not read files of version 3")
    for path, text in FILES[name].items():
        machine.write(SETTINGS.parent / path, text)
    plugins = tomllib.loads(machine.run("containerd", "config", "dump" if FILES[name] else "default"))["plugins"]
    cni = (plugins.get("io.containerd.cri.v1.runtime") or plugins["io.containerd.grpc.v1.cri"])["cni"]
    expected = [cni["bin_dir"] or cni["bin_dirs"][0], cni["conf_dir"]]
    text = machine.run(str(bin_dir / "podwire"), "install", "--dry-run", "--conf", "--subnet=10.22.0.0/16")
    (directory,) = re.findall(r"containerd runs the plugins in ([^\s,]+)", text)
    elsewhere = re.search(r"containerd reads networks from (\S+):", text)
    assert [directory, elsewhere[1] if elsewhere else "/etc/cni/net.d"] == expected
