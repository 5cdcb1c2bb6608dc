"""The Debian package of the node agent: its modules, a service of systemd that is not enabled, and its settings.

One rule: installing the package starts nothing and changes no network; an administrator enables the service.

It depends on Debian 12's Python and libraries; the version of Python is that of the compiled extension.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pack.build import ROOT
from pack.release import agent_files, manpages
from pack.release.deb import build, changelog, fields, gz, maintainer, put, sums
from pack.release.product import Product

_NAME = "podwire-agent"
_DOC = f"usr/share/doc/{_NAME}"
_UNIT = "lib/systemd/system/podwire-agent.service"
_CONFFILES = ("etc/default/podwire-agent", "etc/podwire/10-podwire.conflist")
_SCRIPTS = ("postinst", "prerm", "postrm")

_CONTROL = """\
Package: podwire-agent
Version: {version}
Architecture: {machine}
Maintainer: {maintainer}
Installed-Size: {size_kib}
Depends: {depends}
Recommends: iptables
Enhances: kubelet
Section: net
Priority: optional
Description: node agent of podwire: a Kubernetes cluster's pod network
 A program that runs on each node of a cluster. It installs the plugins and a
 network for the podCIDRs of the node, makes routes to the pods of the other
 nodes, direct or through VXLAN, and removes what deleted pods left.
 .
 The service is not enabled: /etc/default/podwire-agent has its settings.
"""

_COPYRIGHT = """\
podwire is licensed under the Apache License, Version 2.0; on Debian systems its text is in
/usr/share/common-licenses/Apache-2.0. Of the software below this package contains pyroute2 only: three modules,
unchanged, in /usr/lib/podwire-agent/pyroute2.

"""

_OVERRIDES = """\
# The agent is for nodes with systemd; others run it as they run their other daemons.
podwire-agent: package-supports-alternative-init-but-no-init.d-script
# The service is not enabled, and started by an administrator.
podwire-agent: maintainer-script-calls-systemctl
"""


def write(product: Product, directory: Path) -> Path:
    """Writes podwire-agent_<version>_<machine>.deb and returns it."""
    path = directory / f"{_NAME}_{product.version}_{product.machine}.deb"
    with tempfile.TemporaryDirectory() as tree:
        _fill(product, Path(tree))
        build(Path(tree), path, product.epoch_s)
    return path


def _fill(product: Product, tree: Path) -> None:
    for name, content in agent_files.modules(product.machine).items():
        put(tree / agent_files.DIRECTORY / name, content)
    put(tree / agent_files.PROGRAM, agent_files.program(), mode=0o755)
    systemd = ROOT / "deploy" / "systemd"
    put(tree / _UNIT, (systemd / "podwire-agent.service").read_bytes())
    put(tree / _CONFFILES[0], (systemd / "podwire-agent.default").read_bytes())
    put(tree / _CONFFILES[1], (ROOT / "deploy" / "install" / "10-podwire.conflist").read_bytes())
    put(tree / _DOC / "copyright", _COPYRIGHT.encode() + (ROOT / "THIRD-PARTY-NOTICES.md").read_bytes())
    put(tree / _DOC / "changelog.gz", changelog(_NAME, product))
    put(tree / _DOC / "agent.md", (ROOT / "docs" / "agent.md").read_bytes())
    put(tree / f"usr/share/man/man8/{_NAME}.8.gz", gz(manpages.agent_page(product.version).encode()))
    put(tree / "usr/share/lintian/overrides" / _NAME, _OVERRIDES.encode())
    minor = sys.version_info.minor
    put(tree / "DEBIAN/md5sums", sums(tree))
    depends = [f"podwire (= {product.version})", f"python3 (>= 3.{minor})", f"python3 (<< 3.{minor + 1})"]
    depends += ["libc6 (>= 2.34)", "python3-prometheus-client", "python3-urllib3"]
    control = _CONTROL.format(**fields(product, tree), depends=", ".join(depends), maintainer=maintainer())
    put(tree / "DEBIAN/control", control.encode())
    put(tree / "DEBIAN/conffiles", "".join(f"/{path}\n" for path in _CONFFILES).encode())
    for name in _SCRIPTS:
        put(tree / "DEBIAN" / name, Path(__file__).with_name(f"agent.{name}").read_bytes(), mode=0o755)
