"""A release as a whole: the same bytes again, sums, the bill of materials, notices, the version."""

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
from pack.release.product import BUILT
from tests.release.conftest import pack
from tests.support.binaries import ROOT
from tests.support.markdown import Document

pytestmark = pytest.mark.timeout(400)  # the first test packs, ten seconds of work on a machine that is not busy

NOTICES = ROOT / "THIRD-PARTY-NOTICES.md"
# What libraries say of themselves in the executable, with the version that they bear upstream; zlib's part is silent.
SIGNATURES = {
    "CPython": r"(3\.\d+\.\d+) \(main",
    "GNU C Library": r"glibc (\d\.\d+)",
}


def bills(release):
    """Returns the bill of materials of each machine."""
    found = {machine: list(release.directory.glob(f"*-linux-{machine}.cdx.json")) for machine in BUILT}
    return {machine: json.loads(path.read_text()) for machine, paths in found.items() for path in paths}


def test_a_second_run_gives_the_same_bytes(release, tmp_path):
    """Another umask, time zone, language and directory make no difference to any file of a release."""
    env = {"TZ": "Asia/Tokyo", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": "/nowhere"}
    again = pack(tmp_path / "elsewhere", env, umask=0o077)
    first, second = release.contents(), again.contents()
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_sums_are_of_all_files(release):
    """SHA256SUMS names every other file of a release, and sha256sum agrees."""
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=release.directory, check=True)
    named = re.findall(r"^[0-9a-f]{64}  (\S+)$", release.one("SHA256SUMS").read_text(), re.MULTILINE)
    assert sorted([*named, "SHA256SUMS"]) == sorted(release.contents())


def test_the_bill_of_materials_is_cyclonedx(release):
    """Each bill of materials is valid by the strict schema of CycloneDX 1.5."""
    assert bills(release).keys() == {machine for machine, path in BUILT.items() if (path / "podwire").exists()}
    for bill in bills(release).values():
        assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(bill)) is None


def test_the_bill_of_materials_is_of_these_files(release):
    """It has the executable's checksum, and the versions of what is linked are those that the file itself bears."""
    for machine, bill in bills(release).items():
        content = (BUILT[machine] / "podwire").read_bytes()
        sums = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
        assert bill["metadata"]["component"]["hashes"] == sums
        versions = {component["name"]: component["version"] for component in bill["components"]}
        for name, pattern in SIGNATURES.items():
            upstream = re.sub(r"^\d+:", "", versions[name])
            inside = {found.decode() for found in re.findall(pattern.encode(), content)}
            assert [one for one in inside if re.match(rf"{re.escape(one)}\b", upstream)], f"{name} {upstream}: {inside}"
        for name in LIBRARY_PACKAGES:
            assert versions[name] == metadata.version(name)


def test_notices_and_bill_of_materials_name_the_same(release):
    """THIRD-PARTY-NOTICES.md names exactly the bill's components and their licences, and has a text of each."""
    document = Document(NOTICES)
    (table,) = document.tables()
    noted = {row["what"]: row["licence (SPDX)"].strip("`") for row in table}
    for bill in bills(release).values():
        assert {one["name"]: one["licenses"][0]["expression"] for one in bill["components"]} == noted
    assert noted.keys() - set(document.headings()) == set()


def test_notices_are_in_every_artefact(release, tmp_path):
    """Whichever file of a release somebody has, the notices are in it."""
    notices = NOTICES.read_bytes()
    for path in release.directory.glob("*.tgz"):
        with tarfile.open(path) as archive:
            assert archive.extractfile("./THIRD-PARTY-NOTICES.md").read() == notices
    for path in release.directory.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", path, tmp_path / path.name], check=True)
        assert (tmp_path / path.name / "usr/share/doc/podwire/copyright").read_bytes().endswith(notices)
    with tarfile.open(release.one("*-oci.tar")) as layout:
        for member in layout.getmembers():
            content = layout.extractfile(member)
            if content.read(2) == b"\x1f\x8b":
                content.seek(0)
                with tarfile.open(fileobj=content) as layer:
                    assert layer.extractfile("THIRD-PARTY-NOTICES.md").read() == notices


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a changelog, committed at a known moment; the functions under test look at it."""
    monkeypatch.setattr(product, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {product.__version__} (2026-01-01)\n")
    env = {**os.environ, "GIT_COMMITTER_DATE": "1700000000 +0100", "GIT_CONFIG_GLOBAL": "/dev/null"}
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", tmp_path, *words], env=env, check=True)
    return tmp_path


def test_the_version_is_the_code_s(repository):
    """The version is podwire.__version__, and it is told when something is not committed."""
    assert product.version() == product.__version__
    (repository / "new.py").touch()
    assert product.version() == f"{product.__version__}+dirty"


def test_a_changelog_of_another_version_is_refused(repository):
    """Nothing is packed when CHANGELOG.md begins with another version than the code's."""
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## 9.9.9\n")
    with pytest.raises(SystemExit, match=r"begins with 9\.9\.9"):
        product.version()


def test_the_moment_is_the_commit_s(repository):
    """Artefacts bear the commit's moment; SOURCE_DATE_EPOCH is stronger."""
    assert product.epoch_s({}) == 1_700_000_000
    assert product.epoch_s({"SOURCE_DATE_EPOCH": "5"}) == 5


def test_without_a_moment_nothing_is_packed(tmp_path, monkeypatch):
    """Outside a repository SOURCE_DATE_EPOCH must say the moment: the clock is never asked."""
    monkeypatch.setattr(product, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="set SOURCE_DATE_EPOCH"):
        product.epoch_s({})
