"""The Debian package: the plugins in the directories of runtimes, the tool on PATH, its manual page and completion.

It contains systemd's units for dhcp's daemon and for metrics, not enabled: only nodes with a network of dhcp need the
daemon, and only those with node-exporter the metrics.

One rule: the package deletes no file of another package and configures no network. dpkg owns all installed files and
verifies, upgrades and removes them; another package's file of the same name is diverted.

Runtimes use /opt/cni/bin (containerd, CRI-O, podman; kubernetes-cni installs there) or, in Debian's configuration,
/usr/lib/cni. The first has the files, since containers that run plugins mount it; the second has symbolic links.
"Conflicts:" with the packages that own files there would remove plugins that podwire lacks, and kubelet's dependency.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import tempfile
import textwrap
from email.utils import formatdate
from pathlib import Path

from pack.build import ROOT
from pack.release import manpages, sbom
from pack.release.product import TOOL, Product, tool_output

_BIN, _DEBIAN_BIN = "opt/cni/bin", "usr/lib/cni"
_DOC = f"usr/share/doc/{TOOL}"
# Debian's containernetworking-plugins has units of the same names. dpkg compares paths as packages spell them: that
# package's begin with lib/ in Debian 12, and with usr/lib/ in later versions.
_UNITS, _OTHER_UNITS = "lib/systemd/system", "usr/lib/systemd/system"
_UNIT_NAMES = ("cni-dhcp.service", "cni-dhcp.socket")
_METRICS_UNITS = ("podwire-metrics.service", "podwire-metrics.timer")  # of no other package
_ALERTS = "prometheus/podwire-rules.yaml"
_KUBECTL = ("kubectl-podwire", "kubectl_complete-podwire")  # podwire/kubectl.py
_SCRIPTS = ("preinst", "postinst", "postrm")
# The publisher, in the environment variables that Debian's tools use.
_NAME, _EMAIL = ("DEBFULLNAME", "podwire"), ("DEBEMAIL", "podwire@podwire.invalid")

_CONTROL = """\
Package: podwire
Version: {version}
Architecture: {machine}
Maintainer: {maintainer}
Installed-Size: {size_kib}
Built-Using: {built_using}
Recommends: iptables
Enhances: containerd, cri-o, kubelet, podman
Section: net
Priority: optional
Description: CNI network plugins in one executable, and a tool for node operators
 The programs that kubelet, containerd, CRI-O and podman execute for each pod:
{plugins}.
 .
 They take the place of the reference plugins with the same configuration, and
 their files of the same names stay beside them as *.distrib.
 .
 No network is configured by installing this package: samples are in
 /usr/share/doc/podwire/examples, and podwire(1) writes and checks one.
"""

_COPYRIGHT = """\
podwire is licensed under the Apache License, Version 2.0; on Debian systems its text is in
/usr/share/common-licenses/Apache-2.0.

"""

_CHANGELOG = """\
{name} ({version}) unstable; urgency=medium

  * The changes are in CHANGELOG.md.gz.

 -- {maintainer}  {date}
"""

_OVERRIDES = """\
# The directory in which runtimes search plugins.
podwire: dir-or-file-in-opt
# Plugins start within milliseconds, and in any root file system.
podwire: statically-linked-binary
# dhcp's daemon is for nodes with systemd; others run it as they run their other daemons.
podwire: package-supports-alternative-init-but-no-init.d-script
# Only if systemd runs; the units may be those of containernetworking-plugins, which debhelper's snippets do not know.
podwire: maintainer-script-calls-systemctl
# The tool looks whether the package owns the plugins, before it would overwrite them.
podwire: uses-dpkg-database-directly
"""


def write(product: Product, directory: Path) -> Path:
    """Writes podwire_<version>_<machine>.deb and returns it."""
    path = directory / f"{TOOL}_{product.version}_{product.machine}.deb"
    with tempfile.TemporaryDirectory() as tree:
        _fill(product, Path(tree))
        build(Path(tree), path, product.epoch_s)
    return path


def build(tree: Path, path: Path, epoch_s: int) -> None:
    """Builds the package `path` from a directory with its files and dpkg's."""
    for entry in (tree, *tree.rglob("*")):
        if entry.is_dir() and not entry.is_symlink():
            entry.chmod(0o755)  # whatever the umask
        os.utime(entry, (epoch_s, epoch_s), follow_symlinks=False)
    # The bytes depend on the number of threads; the highest level saves a tenth and takes four times as long.
    options = ["--root-owner-group", "-Zxz", "-z3", "--threads-max=1"]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    subprocess.run(["dpkg-deb", *options, "--build", tree, path], env=env, stdout=subprocess.DEVNULL, check=True)


def fields(product: Product, tree: Path) -> dict[str, object]:
    """Returns fields of a package's description: version, machine and the size of the files in `tree`."""
    size = sum({path.stat().st_ino: path.stat().st_size for path in _files(tree)}.values())
    return {"version": product.version, "machine": product.machine, "size_kib": size >> 10}


def sums(tree: Path) -> bytes:
    """Returns the checksums of the files in `tree`, for DEBIAN/md5sums."""
    lines = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in _files(tree))
    return "".join(lines).encode()


def changelog(name: str, product: Product) -> bytes:
    """Returns Debian's changelog of a package, compressed."""
    date = formatdate(product.epoch_s)
    text = _CHANGELOG.format(name=name, version=product.version, maintainer=maintainer(), date=date)
    return gz(text.encode())


def _files(tree: Path) -> list[Path]:
    paths = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in paths if path.relative_to(tree).parts[0] != "DEBIAN"]


def _fill(product: Product, tree: Path) -> None:
    put(tree / _BIN / TOOL, product.program, mode=0o755)
    (tree / _DEBIAN_BIN).mkdir(parents=True)
    for name in product.plugins:
        (tree / _BIN / name).hardlink_to(tree / _BIN / TOOL)
        (tree / _DEBIAN_BIN / name).symlink_to(f"/{_BIN}/{name}")
    (tree / "usr/bin").mkdir()
    for name in (TOOL, *_KUBECTL):
        (tree / "usr/bin" / name).symlink_to(f"/{_BIN}/{TOOL}")
    for path, content in _texts(product).items():
        put(tree / path, content)
    for name in _KUBECTL:
        (tree / f"usr/share/man/man1/{name}.1.gz").symlink_to(f"{TOOL}.1.gz")
    _control(product, tree)


def _texts(product: Product) -> dict[str, bytes]:
    return {
        "usr/share/man/man1/podwire.1.gz": gz(tool_output("man")),
        **{
            f"usr/share/man/man8/podwire-{name}.8.gz": gz(manpages.plugin_page(name, product.version).encode())
            for name in product.plugins
        },
        "usr/share/bash-completion/completions/podwire": tool_output("completion", "bash"),
        "usr/share/zsh/vendor-completions/_podwire": tool_output("completion", "zsh"),
        "usr/share/fish/vendor_completions.d/podwire.fish": tool_output("completion", "fish"),
        "usr/share/lintian/overrides/podwire": _OVERRIDES.encode(),
        **{
            f"{_UNITS}/{name}": (ROOT / "deploy" / "systemd" / name).read_bytes()
            for name in (*_UNIT_NAMES, *_METRICS_UNITS)
        },
        f"{_DOC}/examples/{_ALERTS}": (ROOT / "deploy" / _ALERTS).read_bytes(),
        f"{_DOC}/copyright": _COPYRIGHT.encode() + (ROOT / "THIRD-PARTY-NOTICES.md").read_bytes(),
        f"{_DOC}/changelog.gz": changelog(TOOL, product),
        f"{_DOC}/CHANGELOG.md.gz": gz((ROOT / "CHANGELOG.md").read_bytes()),
        f"{_DOC}/README.md": (ROOT / "README.md").read_bytes(),
        **{f"{_DOC}/examples/{path.name}": path.read_bytes() for path in (ROOT / "conf").glob("*.conflist")},
    }


def _control(product: Product, tree: Path) -> None:
    """Writes dpkg's files: the package's description, its checksums and its scripts."""
    sources = {component.source for component in sbom.components(product.machine) if component.source}
    control = _CONTROL.format(
        **fields(product, tree),
        maintainer=maintainer(),
        built_using=", ".join("{} (= {})".format(*source) for source in sorted(sources)),
        plugins=textwrap.fill(", ".join(product.plugins), 78, initial_indent=" ", subsequent_indent=" "),
    )
    paths = [f"/{_BIN}/{name}" for name in (*product.plugins, TOOL)]
    paths += [f"/{_DEBIAN_BIN}/{name}" for name in product.plugins]
    paths += [f"/{directory}/{name}" for directory in (_UNITS, _OTHER_UNITS) for name in _UNIT_NAMES]
    put(tree / "DEBIAN/control", control.encode())
    put(tree / "DEBIAN/md5sums", sums(tree))
    for name in _SCRIPTS:
        script = Path(__file__).with_name(name).read_text().replace("@PATHS@", " ".join(paths))
        put(tree / "DEBIAN" / name, script.encode(), mode=0o755)


def maintainer() -> str:
    """Returns the publisher: name and address."""
    name, email = (os.environ.get(variable) or default for variable, default in (_NAME, _EMAIL))
    return f"{name} <{email}>"


def put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Writes a file and its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def gz(content: bytes) -> bytes:
    """Returns `content` compressed as Debian's policy demands: level 9, no time."""
    return gzip.compress(content, 9, mtime=0)
