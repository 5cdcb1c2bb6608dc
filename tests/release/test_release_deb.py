"""The Debian package: installed, upgraded, removed and purged by dpkg, among others' files of the same names."""

import json
import subprocess

import pytest

from pack.release import deb, product
from pack.release.product import Product
from tests.release import roots
from tests.release.conftest import EPOCH_S

pytestmark = pytest.mark.timeout(400)  # the first test packs, ten seconds of work on a machine that is not busy

BIN, DEBIAN_BIN = "opt/cni/bin", "usr/lib/cni"
REFERENCE = "#!/bin/sh\necho reference {}\n"
# A program in whose place a script is killed, before it works or after that, the first time that it has an option.
KILLING = """\
#!/bin/sh
case " $* " in *" {option}"*) ;; *) exec {real} "$@" ;; esac
[ {moment} = before ] || {real} "$@"
kill -KILL $PPID
"""


@pytest.fixture
def node(root, tmp_path):
    """A root file system for dpkg."""
    (tmp_path / "node").mkdir()
    with roots.temporary(tmp_path / "node") as made:
        yield made


@pytest.fixture
def package(release):
    """The package for this machine."""
    return release.one("podwire_*_amd64.deb")


@pytest.fixture
def older(tmp_path, plugins):
    """A package of an earlier version, of which the programs are a few words."""
    (tmp_path / "older").mkdir()
    for name in (*plugins, "podwire"):
        (tmp_path / "older" / name).write_text("#!/bin/sh\necho older\n")
    return deb.write(Product("0.0.9", EPOCH_S, "amd64", tmp_path / "older"), tmp_path)


def version(node, path):
    """Returns the CNI versions that a plugin inside answers."""
    return json.loads(node.run(path, env={"CNI_COMMAND": "VERSION"}))["supportedVersions"]


def kubernetes_cni(directory, number):
    """Builds a package that owns names in /opt/cni/bin, as kubernetes-cni does."""
    files = {f"{BIN}/{name}": REFERENCE.format(number) for name in ("bridge", "macvlan")}
    return roots.build(directory, "kubernetes-cni", number, files)


def test_installed_upgraded_removed_and_purged(node, package, older, plugins, program):
    """Over the reference's files and an older version each name is podwire's; removed, all is as it was before."""
    before = node.state()
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
    assert now[f"{DEBIAN_BIN}/macvlan"] == before[f"{DEBIAN_BIN}/macvlan"]
    assert not (node.path / "etc/cni").exists()
    node.run("dpkg", "--remove", "podwire")
    assert node.state() == before
    node.run("dpkg", "--purge", "podwire")
    assert node.run("dpkg-query", "--show") == ""
    assert {path for path in node.written() if not path.startswith("lib/cni/")} == set()


def test_another_package_owns_the_names(node, package, tmp_path):
    """A package that owns a name is upgraded beside podwire, which keeps the name until it is removed itself."""
    node.install(kubernetes_cni(tmp_path, "1"))
    node.install(package)
    assert "1.1.0" in version(node, f"/{BIN}/bridge")
    assert node.run(f"/{BIN}/macvlan") == "reference 1\n"
    node.install(kubernetes_cni(tmp_path, "2"))
    assert "1.1.0" in version(node, f"/{BIN}/bridge")
    node.run("dpkg", "--remove", "podwire")
    assert node.run(f"/{BIN}/bridge") == "reference 2\n"
    assert sorted(path.name for path in (node.path / BIN).iterdir()) == ["bridge", "macvlan"]


def test_another_package_comes_and_goes_meanwhile(node, package, tmp_path):
    """A package that owns a name and is installed later, and removed first, changes nothing for podwire."""
    before = node.state()
    node.install(package)
    ours = node.state()
    node.install(kubernetes_cni(tmp_path, "1"))
    assert node.state() == ours | {path: node.state()[path] for path in (f"{BIN}/bridge.distrib", f"{BIN}/macvlan")}
    node.run("dpkg", "--purge", "kubernetes-cni")
    assert node.state() == ours
    node.run("dpkg", "--purge", "podwire")
    assert node.state() == before


def test_over_what_podwire_install_has_installed(node, package, program):
    """The package over an installation by hand: removed, that is there again and can still be taken back."""
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
def test_what_dpkg_has_installed_only_dpkg_takes_away(node, package, directory):
    """`podwire uninstall` leaves the package's files and links where they are, and says what removes them."""
    node.install(package)
    before = node.state()
    with pytest.raises(AssertionError, match="apt-get remove podwire"):
        node.run("podwire", "uninstall", "--bin-dir", f"/{directory}")
    assert node.state() == before


def test_at_each_moment_a_name_is_a_plugin(node, package, tmp_path):
    """Before dpkg unpacks, what is there is kept beside and still in its place; an abort leaves it as it was."""
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    for script in ("preinst", "postrm"):
        node.put(f"tmp/{script}", (tmp_path / "control" / script).read_bytes(), 0o755)
    node.put(f"{BIN}/bridge", b"the reference's", 0o755)
    before = node.state()
    scripts = {"DPKG_MAINTSCRIPT_PACKAGE": "podwire"}
    node.run("/tmp/preinst", "install", env=scripts)
    meanwhile = node.state()
    del meanwhile["diversions"]
    kept = {f"{path}.distrib": before[path] for path in before if f"{path}.distrib" in meanwhile}
    assert {f"{BIN}/bridge.distrib", f"{DEBIAN_BIN}/bridge.distrib"} <= kept.keys()
    assert meanwhile == {path: before[path] for path in before if path != "diversions"} | kept
    node.run("/tmp/postrm", "abort-install", env=scripts)
    assert node.state() == before


def test_a_removal_that_was_killed_goes_on(node, package):
    """Killed before or after any change of its script, the next removal gives every name to what had it before."""
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


def test_a_downgrade_gives_back_what_the_older_version_has_not(node, package, older, tmp_path):
    """A name that the older version has not is again what it was before, and so is all after the removal."""
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


def test_a_description_fits_the_version(package):
    """Dpkg reads of the package what it is, and what it is built from."""
    shown = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(": ", 1) for line in shown.splitlines() if not line.startswith(" "))
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("podwire", product.version(), "amd64")
    built_using = {entry.split()[0] for entry in fields["Built-Using"].split(", ")}
    assert {"glibc", "python3.11", "zlib"} <= built_using
    assert not {"Depends", "Conflicts", "Replaces"} & fields.keys()
