"""What `make` installs on a developer's machine: programs, none of whose services is started."""

from pathlib import Path

import pytest

from pack.release import apt_index
from tests.release import roots
from tests.release.roots import Root
from tests.support.binaries import ROOT

SCRIPT, PROGRESS = "pack/install_packages.sh", "pack/progress.sh"
POLICY = "usr/sbin/policy-rc.d"
ALLOWED = b"#!/bin/sh\nexit 0\n"
SERVICE = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
INIT = """\
#!/bin/sh
### BEGIN INIT INFO
# Provides: {name}
# Default-Start: 2 3 4 5
# Default-Stop: 0 1 6
### END INIT INFO
echo "$1" >>/started-{name}
"""
# As debhelper writes it.
POSTINST = """\
#!/bin/sh
set -e
deb-systemd-helper enable {name}.service >/dev/null
update-rc.d {name} defaults >/dev/null
{before_start}
invoke-rc.d {name} start
"""


def build(directory: Path, name: str, before_start: str = "") -> Path:
    """Builds a package with a service that its installation enables and starts."""
    files = {f"lib/systemd/system/{name}.service": SERVICE, f"etc/init.d/{name}": INIT.format(name=name)}
    return roots.build(directory, name, "1", files, POSTINST.format(name=name, before_start=before_start))


@pytest.fixture
def debian(node: Root, tmp_path: Path) -> Root:
    """A Debian with an archive of two packages with services, `server` and `killing`, which kills its installation."""
    packages = [build(tmp_path, "killing", "kill -KILL $(cat /script)"), build(tmp_path, "server")]
    node.add_apt_source([*packages, apt_index.write(packages, tmp_path)])
    for script in (SCRIPT, PROGRESS):
        node.put(script, (ROOT / script).read_bytes(), mode=0o755)
    return node


def list_starts(node: Root) -> list[str]:
    """Returns the traces of started services, and the links by which an init system would start them at a boot."""
    top = node.path
    started = [path.name for path in top.glob("started-*")]
    return started + [
        str(path.relative_to(top)) for path in (*top.glob("etc/rc[2-5].d/S*"), *top.glob("etc/systemd/**/*.service"))
    ]


def test_installed_services_are_neither_started_nor_enabled(debian: Root) -> None:
    """The service of an installed package runs neither now nor after a boot; the machine's policy stays."""
    debian.put(POLICY, ALLOWED, mode=0o755)
    assert "installing (a minute): server" in debian.run(f"/{SCRIPT}", "server")
    assert debian.run("dpkg-query", "--show", "--showformat", "${db:Status-Status}", "server") == "installed"
    assert list_starts(debian) == []
    assert (debian.path / POLICY).read_bytes() == ALLOWED
    assert debian.run(f"/{SCRIPT}", "server") == ""
    debian.run("invoke-rc.d", "--force", "server", "start")
    assert list_starts(debian) == ["started-server"]  # as its owner may


def test_killed_installation_leaves_no_policy(debian: Root) -> None:
    """After a killed installation the machine's services can be started, and the next one restores the policy."""
    debian.put(POLICY, ALLOWED, mode=0o755)
    debian.done("sh", "-c", f"echo $$ >/script; exec /{SCRIPT} killing")
    assert (debian.path / POLICY).read_bytes() != ALLOWED
    debian.run(f"/{POLICY}", "server", "start")
    debian.run(f"/{SCRIPT}", "server")
    assert (debian.path / POLICY).read_bytes() == ALLOWED
    assert [name for name in list_starts(debian) if "server" in name] == []
