"""The Debian package: installed, upgraded, removed and purged by dpkg, with other packages' files of the same names."""

import json
import shutil
import subprocess

import pytest

from pack.release import deb, product
from pack.release.product import Product
from tests.release import roots
from tests.release.conftest import EPOCH_S
from tests.support.binaries import ROOT, skip_or_fail

BIN, DEBIAN_BIN, UNITS = "opt/cni/bin", "usr/lib/cni", "usr/lib/systemd/system"
DEPLOYED_SERVICE = ROOT / "deploy" / "systemd" / "cni-dhcp.service"
REFERENCE = "#!/bin/sh\necho reference {}\n"
# Replaces a program and kills the calling script, before or after the program's work, when it is called with an option.
KILLING = """\
#!/bin/sh
case " $* " in *" {option}"*) ;; *) exec {real} "$@" ;; esac
[ {moment} = before ] || {real} "$@"
kill -KILL $PPID
"""


@pytest.fixture
def package(release):
    """The package for this machine."""
    return release.one("podwire_*_amd64.deb")


@pytest.fixture
def older(tmp_path, plugins):
    """A package of an earlier version, whose programs are short scripts."""
    (tmp_path / "older").mkdir()
    for name in (*plugins, "podwire"):
        (tmp_path / "older" / name).write_text("#!/bin/sh\necho older\n")
    return deb.write(Product("0.0.9", EPOCH_S, "amd64", tmp_path / "older"), tmp_path)


def version(node, path):
    """Returns the CNI versions that a plugin in the root reports."""
    return json.loads(node.run(path, env={"CNI_COMMAND": "VERSION"}))["supportedVersions"]


def read_units(node):
    """Returns the contents of systemd's units for dhcp's daemon, by name."""
    return {path.name: path.read_bytes() for path in (node.path / UNITS).glob("cni-dhcp.*")}


def kubernetes_cni(directory, number):
    """Builds a package that owns names in /opt/cni/bin, as kubernetes-cni does."""
    files = {f"{BIN}/{name}": REFERENCE.format(number) for name in ("bridge", "flannel")}
    return roots.build(directory, "kubernetes-cni", number, files)


def test_package_is_installed_upgraded_removed_and_purged(node, package, older, plugins, program):
    """Installed over the reference's files and an older version each name is podwire's; removal restores the rest."""
    before, units = node.state(), read_units(node)
    node.install(older)
    assert node.run("podwire") == "older\n"
    node.install(package)
    for name in plugins:
        assert version(node, f"/{BIN}/{name}") == version(node, f"/{DEBIAN_BIN}/{name}") != []
    assert node.run("podwire", "list").split() == plugins
    files = [(node.path / BIN / name).stat() for name in (*plugins, "podwire")]
    assert {(file.st_ino, file.st_nlink, file.st_mode & 0o7777) for file in files} == {
        (files[0].st_ino, len(files), 0o755)
    }
    assert (node.path / BIN / "podwire").read_bytes() == program.read_bytes()
    assert node.run("dpkg", "--verify", "podwire") == ""
    now = node.state()
    assert now[f"{DEBIAN_BIN}/bridge.distrib"] == before[f"{DEBIAN_BIN}/bridge"]
    assert (node.path / UNITS / "cni-dhcp.service").read_bytes() == DEPLOYED_SERVICE.read_bytes()
    assert {path.suffix for path in (node.path / UNITS).glob("podwire-metrics.*")} == {".service", ".timer"}
    assert not (node.path / "etc/cni").exists()
    node.run("dpkg", "--remove", "podwire")
    assert node.state() == before
    assert read_units(node) == units
    assert b"/usr/lib/cni/dhcp" in units["cni-dhcp.service"]  # Debian's
    node.run("dpkg", "--purge", "podwire")
    assert node.run("dpkg-query", "--show") == ""
    restored = ("lib/cni/", "lib/systemd/system/cni-dhcp.")  # written again, with the same content
    assert {path for path in node.written() if not path.startswith(restored)} == set()


def test_package_that_owns_a_name_is_upgraded(node, package, tmp_path):
    """A package that owns a name is upgraded beside podwire, which keeps the name until its removal."""
    node.install(kubernetes_cni(tmp_path, "1"))
    node.install(package)
    assert "1.1.0" in version(node, f"/{BIN}/bridge")
    assert node.run(f"/{BIN}/flannel") == "reference 1\n"
    node.install(kubernetes_cni(tmp_path, "2"))
    assert "1.1.0" in version(node, f"/{BIN}/bridge")
    node.run("dpkg", "--remove", "podwire")
    assert node.run(f"/{BIN}/bridge") == "reference 2\n"
    assert sorted(path.name for path in (node.path / BIN).iterdir()) == ["bridge", "flannel"]


def test_package_that_is_installed_later_changes_nothing(node, package, tmp_path):
    """A package that owns a name and is installed later and removed first changes nothing for podwire."""
    before = node.state()
    node.install(package)
    installed = node.state()
    node.install(kubernetes_cni(tmp_path, "1"))
    assert node.state() == installed | {
        path: node.state()[path] for path in (f"{BIN}/bridge.distrib", f"{BIN}/flannel")
    }
    node.run("dpkg", "--purge", "kubernetes-cni")
    assert node.state() == installed
    node.run("dpkg", "--purge", "podwire")
    assert node.state() == before


def test_package_over_an_installation_by_hand(node, package, program):
    """Removing the package restores an installation by `podwire install`, which can still be uninstalled."""
    node.put(f"{BIN}/bridge", b"the reference's", 0o755)
    untouched = node.state()
    node.put("tmp/older", program.read_bytes() + b"older", 0o755)
    node.run("/tmp/older", "install")
    by_hand = node.state()
    node.install(package)
    assert (node.path / BIN / "bridge").read_bytes() == program.read_bytes()
    node.run("dpkg", "--purge", "podwire")
    assert node.state() == by_hand
    node.run("/tmp/older", "uninstall")
    assert node.state() == untouched


@pytest.mark.parametrize("directory", [BIN, DEBIAN_BIN])
def test_uninstall_refuses_files_of_the_package(node, package, directory):
    """`podwire uninstall` keeps the package's files and links, and prints the command that removes them."""
    node.install(package)
    before = node.state()
    with pytest.raises(AssertionError, match="apt-get remove podwire"):
        node.run("podwire", "uninstall", "--bin-dir", f"/{directory}")
    assert node.state() == before


def test_every_name_is_a_plugin_during_the_installation(node, package, tmp_path):
    """Before dpkg unpacks, a plugin is copied aside and stays in its place; an abort restores the state."""
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    for script in ("preinst", "postrm"):
        node.put(f"tmp/{script}", (tmp_path / "control" / script).read_bytes(), 0o755)
    node.put(f"{BIN}/bridge", b"the reference's", 0o755)
    before = node.state()
    scripts = {"DPKG_MAINTSCRIPT_PACKAGE": "podwire"}
    node.run("/tmp/preinst", "install", env=scripts)
    meanwhile = node.state()
    del meanwhile["diversions"]
    copies = {f"{path}.distrib": before[path] for path in before if f"{path}.distrib" in meanwhile}
    assert {f"{BIN}/bridge.distrib", f"{DEBIAN_BIN}/bridge.distrib"} <= copies.keys()
    assert meanwhile == {path: before[path] for path in before if path != "diversions"} | copies
    node.run("/tmp/postrm", "abort-install", env=scripts)
    assert node.state() == before


def test_removal_after_a_killed_one_restores_all_names(node, package):
    """After a kill before or after any change of the removal script the next removal restores every name."""
    node.put(f"{BIN}/bridge", b"the reference's", 0o755)
    before = node.state()
    for program in ("mv", "dpkg-divert --remove"):
        for moment in ("before", "after"):
            node.install(package)
            word, _, option = program.partition(" ")
            real = f"/usr/bin/{word}"
            node.put(f"tmp/{word}", KILLING.format(real=real, option=option, moment=moment).encode(), 0o755)
            paths = {"PATH": "/tmp:/usr/sbin:/usr/bin:/sbin:/bin"}
            with pytest.raises(AssertionError, match="subprocess was killed"):
                node.run("dpkg", "--remove", "podwire", env=paths)
            (node.path / f"tmp/{word}").unlink()
            node.run("dpkg", "--remove", "podwire")
            assert node.state() == before, (program, moment)


def test_downgrade_restores_names_the_older_version_lacks(node, package, older, tmp_path):
    """A name that the older version lacks has its earlier file again, and so do all after the removal."""
    (tmp_path / "older/tuning").unlink()
    fewer = deb.write(Product("0.0.8", EPOCH_S, "amd64", tmp_path / "older"), tmp_path)
    for directory in (BIN, DEBIAN_BIN):
        node.put(f"{directory}/tuning", b"the reference's", 0o755)
    before = node.state()
    node.install(fewer)
    meanwhile = node.state()
    node.install(package)
    assert node.state() != meanwhile
    node.install(fewer)
    assert node.state() == meanwhile
    node.run("dpkg", "--purge", "podwire")
    assert node.state() == before


def test_lintian_accepts_the_packages(release):
    """Debian's checker of packages reports neither an error nor a warning."""
    if not shutil.which("lintian"):
        skip_or_fail("lintian is not installed")
    packages = sorted(release.directory.glob("*.deb"))
    done = subprocess.run(["lintian", *packages], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_fields_of_the_package_describe_it(package):
    """The package's fields state its name, version and architecture, and the packages that it was built from."""
    shown = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(": ", 1) for line in shown.splitlines() if not line.startswith(" "))
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("podwire", product.version(), "amd64")
    built_using = {entry.split()[0] for entry in fields["Built-Using"].split(", ")}
    assert {"glibc", "python3.11", "zlib"} <= built_using
    assert not {"Depends", "Conflicts", "Replaces"} & fields.keys()
