"""What a stranger checks before using a release: signature, provenance, outdated packages, apt, manual pages."""

import gzip
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from cni import keys
from pack.release import outdated
from podwire.main import PLUGINS
from tests.support.binaries import ROOT

URI = re.compile(r"[a-z]+:[\w.,:/@?=&%~+#-]+")
NAMESPACE, SIGNER = "podwire-release", "podwire-release"
# A repository of one package, in a newer version than that of the bill below.
PACKAGES = """\
Package: zlib1g-dev
Version: 1:1.2.13.dfsg-1+deb12u9
Architecture: amd64
Filename: ./zlib1g-dev.deb
Size: 1
SHA256: 0000000000000000000000000000000000000000000000000000000000000000
Description: a library
"""


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)


@pytest.fixture
def key(tmp_path):
    """A throw-away key."""
    path = tmp_path / "key"
    assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path).returncode == 0
    return path


@pytest.fixture
def copy(release, tmp_path):
    """A copy of the release that a test may change."""
    directory = tmp_path / "copy"
    directory.mkdir()
    for name, content in release.contents().items():
        (directory / name).write_bytes(content)
    return directory


def sign(directory, key):
    return run("make", "--no-print-directory", "sign", f"RELEASE={directory}", f"KEY={key}", cwd=ROOT)


def verify(directory, signers):
    """Runs the command of docs/release.md; returns whether the signature is good."""
    line = [*("ssh-keygen", "-Y", "verify", "-f", signers, "-I", SIGNER, "-n", NAMESPACE, "-s", "SHA256SUMS.sig")]
    with (directory / "SHA256SUMS").open() as sums:
        return run(*line, cwd=directory, stdin=sums).returncode == 0


def test_signature_of_a_release(copy, key, tmp_path):
    """`make sign` signs the sums; a changed file of sums and another signer's key are refused."""
    signers = tmp_path / "allowed_signers"
    signers.write_text(f'{SIGNER} namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    for _ in range(2):  # a second signature replaces the first
        done = sign(copy, key)
        assert done.returncode == 0, done.stderr
        assert verify(copy, signers)
    other = tmp_path / "other"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
    (tmp_path / "others").write_text(f"{SIGNER} {other.with_suffix('.pub').read_text()}")
    assert not verify(copy, tmp_path / "others")
    with (copy / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  more\n")
    assert not verify(copy, signers)


def test_damaged_release_is_not_signed(copy, key):
    """`make sign` refuses a release with a file that differs from its sum, and a call without a key."""
    with next(copy.glob("*.tgz")).open("ab") as file:
        file.write(b"x")
    assert sign(copy, key).returncode != 0
    assert not (copy / "SHA256SUMS.sig").exists()
    assert "make sign KEY=FILE" in sign(copy, "").stderr


def test_provenance_names_inputs_and_files(release):
    """The provenance has the sum of every other file, the commit if there is one, and the packages of the build."""
    statement = json.loads(release.one("*.provenance.json").read_text())
    sums = dict(line.split()[::-1] for line in release.one("SHA256SUMS").read_text().splitlines())
    named = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    assert named == {name: value for name, value in sums.items() if not name.endswith(".provenance.json")}
    definition = statement["predicate"]["buildDefinition"]
    dependencies = {item["name"]: item for item in definition["resolvedDependencies"]}
    assert {"gcc", "libc6-dev", "libpython3.11-dev", "zlib1g-dev", "pyroute2", "jeepney"} <= dependencies.keys()
    commit = run("git", "-C", ROOT, "rev-parse", "HEAD").stdout.strip()
    assert dependencies.get("podwire", {}).get("digest", {}).get("gitCommit", "") == commit
    builder = statement["predicate"]["runDetails"]["builder"]
    uris = [definition["buildType"], builder["id"], *(item["uri"] for item in dependencies.values())]
    assert [uri for uri in uris if not URI.fullmatch(uri)] == []
    text = release.one("*.provenance.json").read_text()
    assert os.uname().nodename not in text
    assert str(ROOT) not in text


def test_provenance_is_a_statement_of_in_toto(release):
    """The bindings of in-toto accept statement and predicate; fields that SLSA requires are set, none is unknown."""
    statement = json.loads(release.one("*.provenance.json").read_text())
    parsed = json_format.ParseDict(statement, statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    predicate = json_format.ParseDict(statement["predicate"], Provenance())
    assert predicate.build_definition.build_type
    assert predicate.build_definition.external_parameters["version"]
    assert predicate.run_details.builder.id


NO_NETWORK, LISTED = "http://127.0.0.1:9/debian", "file:{repository}"
OLD, NEW, LATER = "1:1.2.13.dfsg-1", "1:1.2.13.dfsg-1+deb12u9", "1:1.2.13.dfsg-1+deb12u10"  # by Debian's order


@pytest.mark.parametrize(
    ("version", "source", "package", "status", "text"),
    [
        (OLD, LISTED, "zlib1g-dev", 1, f"{OLD} is outdated: Debian has {NEW}"),
        (NEW, LISTED, "zlib1g-dev", 0, "1 package, none of them outdated"),
        (LATER, LISTED, "zlib1g-dev", 0, "1 package, none of them outdated"),
        ("", NO_NETWORK, "zlib1g-dev", 3, "no bill of materials"),
        (OLD, NO_NETWORK, "zlib1g-dev", 3, "package lists cannot be fetched"),
        (OLD, LISTED, "other", 3, "have no zlib1g-dev for amd64"),
    ],
    ids=["older", "equal", "newer", "no bill", "no lists", "not in the lists"],
)
def test_outdated_packages_are_printed(tmp_path, version, source, package, status, text):
    """`make outdated` compares each Debian package of the bills with the newest one, and never passes without lists."""
    for name in ("release", "repository"):
        (tmp_path / name).mkdir()
    (tmp_path / "repository" / "Packages").write_text(PACKAGES.replace("zlib1g-dev", package))
    if version:
        purl = f"pkg:deb/debian/zlib1g-dev@{version.replace(':', '%3A').replace('+', '%2B')}?arch=amd64"
        components = [{"purl": purl}, {"purl": "pkg:pypi/jeepney@0.9.0"}]
        (tmp_path / "release" / "x.cdx.json").write_text(json.dumps({"components": components}))
    uri = source.format(repository=tmp_path / "repository")
    (tmp_path / "sources").write_text(f"deb [trusted=yes] {uri} ./\n")
    words = ("--release", tmp_path / "release", "--sources", tmp_path / "sources", "--state", tmp_path / "state")
    done = run(sys.executable, "-m", "pack.release.outdated", *words, cwd=ROOT)
    assert done.returncode == status
    assert text in (done.stderr if status == 3 else done.stdout)


def test_bills_of_a_release_can_be_compared(release):
    """Each bill of a release has Debian packages, with the architecture by which apt knows them."""
    for name, packages in outdated.read_bills(release.directory).items():
        assert {package.architecture for package in packages} <= {"amd64", "arm64", "all"}, name
        assert any(package.name.startswith("libc6") for package in packages), name


def test_apt_installs_from_the_directory(release, node):
    """The package is installed by apt, by its name from the directory of a release, and checks its sum."""
    package = release.one("podwire_*_amd64.deb")
    node.add_apt_source([release.directory / "Packages", package])
    settings = ("-o", "APT::Sandbox::User=root", "-q", "-y")
    node.run("apt-get", *settings, "update")
    node.run("apt-get", *settings, "install", "podwire", env={"DEBIAN_FRONTEND": "noninteractive"})
    assert node.run("podwire", "list").split() == sorted(PLUGINS)
    assert "file:/srv/packages" in node.run("apt-cache", "policy", "podwire")
    node.run("apt-get", *settings, "remove", "podwire")
    node.put(f"srv/packages/{package.name}", package.read_bytes()[:-1] + b"x")
    assert node.done("apt-get", *settings, "install", "podwire").returncode != 0


def test_manual_pages_are_readable(release, tmp_path):
    """The packages have a page for each plugin, the tool and the agent; man prints them without a warning."""
    for package in release.directory.glob("*_amd64.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    pages = {path.name: path for path in (tmp_path / "usr/share/man").rglob("*.gz")}
    named = {f"podwire-{name}.8.gz" for name in ("agent", *PLUGINS)}
    assert pages.keys() == named | {
        f"{name}.1.gz" for name in ("podwire", "kubectl-podwire", "kubectl_complete-podwire")
    }
    env = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANROFFOPT": "-Wbreak"}  # long words
    for name, path in pages.items():
        done = run("man", "--warnings", "--local-file", path, env=env)
        assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done.stderr}"
        text = re.sub(r".\x08", "", done.stdout)
        assert "NAME" in text
        assert re.search(r"\*\*|\]\(|^\s*\|.*\|$", text, re.MULTILINE) is None, name  # no marks of Markdown remain
    for name, plugin in PLUGINS.items():
        source = gzip.decompress(pages[f"podwire-{name}.8.gz"].read_bytes()).decode().replace("\\-", "-")
        names = [key.name for key in plugin.keys if key not in keys.COMMON]
        assert [key for key in names if key not in source] == []
