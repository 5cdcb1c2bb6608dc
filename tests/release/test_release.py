"""A release as a whole: reproducible bytes, checksums, bill of materials, notices, version."""

import hashlib
import json
import os
import re
import subprocess
import tarfile
from importlib import metadata

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from pack.build import LIBRARY_PACKAGES
from pack.release import product
from pack.release.agent_image import BASES
from pack.release.product import BUILT
from process.version import __version__
from tests.clients.images import extract
from tests.release.conftest import built, pack
from tests.support.binaries import ROOT
from tests.support.markdown import Document

NOTICES = ROOT / "THIRD-PARTY-NOTICES.md"
# Texts of libraries in the executable, with their upstream version; zlib's part has none.
SIGNATURES = {"CPython": r"(3\.\d+\.\d+) \(main", "GNU C Library": r"glibc (\d\.\d+)"}


def bills(release):
    """Returns the bill of materials of each machine."""
    names = {machine: f"podwire-[0-9]*-linux-{machine}.cdx.json" for machine in built()}
    return {machine: json.loads(release.one(name).read_text()) for machine, name in names.items()}


def test_second_run_produces_the_same_bytes(release, tmp_path):
    """Another umask, time zone, language and directory do not change any file of a release."""
    env = {"TZ": "Asia/Tokyo", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": "/nowhere"}
    again = pack(tmp_path / "elsewhere", env, umask=0o077)
    first, second = release.contents(), again.contents()
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_checksums_cover_all_files(release):
    """SHA256SUMS lists every other file of a release, and sha256sum accepts it."""
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=release.directory, check=True)
    named = re.findall(r"^[0-9a-f]{64}  (\S+)$", release.one("SHA256SUMS").read_text(), re.MULTILINE)
    assert sorted([*named, "SHA256SUMS"]) == sorted(release.contents())


def test_output_lists_all_files(release):
    """The command prints each file of a release with its size, below 1 MiB in KiB."""
    listed = dict(re.findall(r"^.*/(\S+) \((.*)\)$", release.output, re.MULTILINE))
    assert listed.keys() == release.contents().keys()
    assert listed["Packages"].endswith(" KiB")
    assert next(size for name, size in listed.items() if name.endswith(".tgz")).endswith(" MiB")
    assert "0.0 KiB" not in listed.values()


def test_bill_of_materials_is_valid_cyclonedx(release):
    """Each bill of materials is valid by the strict schema of CycloneDX 1.5."""
    for bill in bills(release).values():
        assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill)) is None


@pytest.mark.parametrize("machine", BUILT)
def test_bill_of_the_agents_image_lists_its_packages(release, machine):
    """The bill of the node agent's image is valid, and has the image's checksum and every package of its Debian."""
    bill = json.loads(release.one(f"podwire-agent-*-{machine}.cdx.json").read_text())
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill)) is None
    content = release.one("podwire-agent-*-oci.tar").read_bytes()
    (checksum,) = bill["metadata"]["component"]["hashes"]
    assert checksum["content"] == hashlib.sha256(content).hexdigest()
    versions = {component["name"]: component["version"] for component in bill["components"]}
    with tarfile.open(BASES[machine]) as base:
        paragraphs = extract(base, "./var/lib/dpkg/status").read().decode().strip().split("\n\n")
    installed = {name for paragraph in paragraphs for name in re.findall(r"^Package: (.*)$", paragraph, re.MULTILINE)}
    assert {"python3-urllib3", "iptables", "libssl3"} < installed <= versions.keys()
    assert versions["pyroute2"] == metadata.version("pyroute2")
    assert {one["purl"].partition("?arch=")[2] for one in bill["components"]} == {"", machine, "all"}


def test_bill_of_materials_describes_the_executable(release):
    """It has the executable's checksum, and the versions of linked libraries equal those in the file."""
    for machine, bill in bills(release).items():
        content = (BUILT[machine] / "podwire").read_bytes()
        sums = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
        assert bill["metadata"]["component"]["hashes"] == sums
        versions = {component["name"]: component["version"] for component in bill["components"]}
        for name, pattern in SIGNATURES.items():
            upstream = re.sub(r"^\d+:", "", versions[name])
            linked = {text.decode() for text in re.findall(pattern.encode(), content)}
            assert [one for one in linked if re.match(rf"{re.escape(one)}\b", upstream)], f"{name} {upstream}: {linked}"
        for name in LIBRARY_PACKAGES:
            assert versions[name] == metadata.version(name)


def test_notices_and_bill_of_materials_agree(release):
    """THIRD-PARTY-NOTICES.md names exactly the bill's components and their licences, and has the text of each."""
    document = Document(NOTICES)
    (table,) = document.tables()
    noted = {row["what"]: row["licence (SPDX)"].strip("`") for row in table}
    for bill in bills(release).values():
        assert {one["name"]: one["licenses"][0]["expression"] for one in bill["components"]} == noted
    assert noted.keys() - set(document.headings()) == set()


def test_notices_are_in_every_artefact(release, tmp_path):
    """Every archive, package and image contains the notices."""
    notices = NOTICES.read_bytes()
    for path in release.directory.glob("*.tgz"):
        with tarfile.open(path) as archive:
            assert extract(archive, "./THIRD-PARTY-NOTICES.md").read() == notices
    for path in release.directory.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", path, tmp_path / path.name], check=True)
        (copyright_file,) = (tmp_path / path.name).glob("usr/share/doc/podwire*/copyright")
        assert copyright_file.read_bytes().endswith(notices)
    for path in release.directory.glob("*-oci.tar"):
        assert list_notices(path) == {notices}


def list_notices(image):
    """Returns the different texts of the notices in the layers of all images in a layout."""
    texts = set()
    with tarfile.open(image) as layout:
        for member in layout.getmembers():
            content = extract(layout, member)
            if content.read(2) == b"\x1f\x8b":
                content.seek(0)
                with tarfile.open(fileobj=content) as layer:
                    if NOTICES.name in layer.getnames():
                        texts.add(extract(layer, NOTICES.name).read())
    return texts


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a changelog, committed at a known time, which the functions under test read."""
    monkeypatch.setattr(product, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {__version__} (2026-01-01)\n")
    env = {**os.environ, "GIT_COMMITTER_DATE": "1700000000 +0100", "GIT_CONFIG_GLOBAL": "/dev/null"}
    author = ["-c", "user.name=author", "-c", "user.email=author@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", tmp_path, *words], env=env, check=True)
    return tmp_path


def test_version_is_the_codes(repository):
    """The version is process.version.__version__, with a mark if something is not committed."""
    assert product.version() == __version__
    (repository / "new.py").touch()
    assert product.version() == f"{__version__}+dirty"


def test_changelog_of_another_version_is_refused(repository):
    """The release is refused if CHANGELOG.md begins with another version than the code's."""
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## 9.9.9\n")
    with pytest.raises(SystemExit, match=r"begins with 9\.9\.9"):
        product.version()


def test_time_of_artefacts_is_the_commits(repository):
    """Artefacts have the commit's time; SOURCE_DATE_EPOCH overrides it."""
    assert product.epoch_s({}) == 1_700_000_000
    assert product.epoch_s({"SOURCE_DATE_EPOCH": "5"}) == 5


def test_release_without_a_time_is_refused(tmp_path, monkeypatch):
    """Outside a repository SOURCE_DATE_EPOCH must set the time, since the clock is never used."""
    monkeypatch.setattr(product, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="set SOURCE_DATE_EPOCH"):
        product.epoch_s({})
