"""Where the project's scripts get Debian's packages: from the sources of the machine's apt, from no other host."""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

KEYS = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
SCRIPT = ROOT / "pack" / "apt_sources.sh"
GENERATED = re.compile(r"\.git|\.venv|\..*_cache|\.hypothesis|__pycache__|build|dist")
# Archives of distributions and package indexes, whatever the host is called; and hosts named for what they are.
ARCHIVE = re.compile(
    r"\b(?:[\w-]+\.)*(?:debian\.(?:org|net)|ubuntu\.com|pypi\.org|pythonhosted\.org|proxy\.golang\.org|npmjs\.org)\b"
    r"|\b(?:mirrors?|ftp|apt|deb|archive|snapshot)(?:-[\w-]+|\d*)\.(?:[\w-]+\.)*(?:org|net|com|edu|io|de)\b"
    # A source of apt, unless its host is 127.0.0.1 or has a name that is reserved for examples.
    r"|\bdeb(?:-src)? (?:\[[^]]*\] )?https?://(?!127\.|[\w.-]+\.(?:example|test|invalid)\b)[\w.-]+"
)
PACKAGES = b"Package: x\nVersion: 1\nArchitecture: all\nFilename: x.deb\nSize: 1\n"
PAGES = {"manpages.debian.org"}  # of documentation


def find_archives(text: str) -> list[str]:
    return [match[0] for match in ARCHIVE.finditer(text) if match[0] not in PAGES]


def project_files() -> Iterator[Path]:
    for directory, names, files in os.walk(ROOT):
        names[:] = [name for name in names if not GENERATED.fullmatch(name)]
        paths = (Path(directory, name) for name in files)
        yield from (path for path in paths if path.is_file() and path != Path(__file__))


def test_no_file_names_the_host_of_a_package_archive():
    """No file of the project names the host of a package archive: a machine may have no way to it."""
    texts = {path: path.read_text(errors="ignore") for path in project_files()}
    named = {str(path.relative_to(ROOT)): hosts for path, text in texts.items() if (hosts := find_archives(text))}
    assert named == {}


@pytest.mark.parametrize("text", ["https://pypi.org/simple", "mirrors.kernel.org", "deb http://10.0.0.1/x sid main"])
def test_rule_for_hosts_refuses(text):
    """The rule finds hosts of Debian, of its mirrors and of PyPI, and any host of a source of apt."""
    assert find_archives(text)


@pytest.fixture
def machine(tmp_path):
    """A function that writes sources of apt on a machine with copies of Debian's archives and of another's."""
    for name, suite, label in (
        ("other", "bookworm", "Other"),
        ("debian", "bookworm", "Debian"),
        ("security", "bookworm-security", "Debian-Security"),
    ):
        directory = tmp_path / name / "dists" / suite
        (directory / "main/binary-amd64").mkdir(parents=True)
        (directory / "main/binary-amd64/Packages").write_bytes(PACKAGES)
        digest = hashlib.sha256(PACKAGES).hexdigest()
        (directory / "Release").write_text(
            f"Label: {label}\nCodename: {suite}\nComponents: main\nArchitectures: amd64\n"
            f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {digest} {len(PACKAGES)} main/binary-amd64/Packages\n"
        )
    for name in ("etc/sources.list.d", "state/lists/partial", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)

    def write(name, text):
        (tmp_path / "etc" / name).write_text(text.replace("DIR", str(tmp_path)))
        config = tmp_path / "apt.conf"
        config.write_text(
            f'Dir::Etc "{tmp_path}/etc"; Dir::State "{tmp_path}/state"; Dir::State::status "/dev/null";'
            f'Dir::Cache "{tmp_path}/cache"; Dir::Etc::parts "/dev/null"; APT::Architecture "amd64";'
            'APT::Architectures "amd64"; APT::Sandbox::User "";'
        )
        env = {"PATH": os.environ["PATH"], "APT_CONFIG": str(config)}
        subprocess.run(["apt-get", "-qq", "update"], env=env, check=True)
        return env

    return write


def print_sources(env, *suites, **variables):
    done = subprocess.run([SCRIPT, *suites], env={**env, **variables}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


ONE_LINE = """\
deb [trusted=yes] file:DIR/other bookworm main
deb [trusted=yes arch=amd64] file:DIR/debian/ bookworm main
deb [trusted=yes] file:DIR/security bookworm-security main
"""
DEB822 = """\
Types: deb
URIs: file:DIR/other file:DIR/debian/
Suites: bookworm
Components: main
Trusted: yes

Types: deb
URIs: file:DIR/security
Suites: bookworm-security
Components: main
Trusted: yes
"""


@pytest.mark.parametrize(("name", "sources"), [("sources.list", ONE_LINE), ("sources.list.d/x.sources", DEB822)])
def test_sources_of_other_suites_are_those_of_the_machine(machine, tmp_path, name, sources):
    """Any suite comes from the archive of Debian that apt uses, security updates from theirs, in both formats."""
    env = machine(name, sources)
    archive, security = f"file:{tmp_path}/debian", f"file:{tmp_path}/security"
    lines = [f"deb {KEYS} {archive} sid main", f"deb {KEYS} {security} trixie-security main"]
    assert print_sources(env, "sid", "trixie-security") == (0, lines, "")
    lines = [f"{kind} {KEYS} {archive} bookworm main" for kind in ("deb", "deb-src")]
    assert print_sources(env, "bookworm", KINDS="deb deb-src") == (0, lines, "")


def test_without_a_source_of_debian(machine):
    """The script fails and prints what apt lacks, unless MIRROR is an archive's URI, or lines to print unchanged."""
    env = machine("sources.list", "deb [trusted=yes] file:DIR/other bookworm main\n")
    lines = [f"deb {KEYS} http://debian.example/debian trixie main"]
    assert print_sources(env, "trixie", MIRROR="http://debian.example/debian") == (0, lines, "")
    lines = ["deb [signed-by=x] http://ubuntu.example noble main universe"]
    assert print_sources(env, "noble", "bookworm", MIRROR=lines[0]) == (0, lines, "")
    for suite, packages in (("sid", "Debian's packages"), ("bookworm-security", "Debian's security updates")):
        status, lines, problem = print_sources(env, suite)
        assert (status, lines) == (1, [])
        assert f"apt has no source of {packages}: " in problem
