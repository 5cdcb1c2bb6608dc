"""Every place that names podwire's version names the present one: pages, manifests, containerfiles, changelog."""

import re

import pytest

from process.version import __version__
from tests.support import manifests
from tests.support.binaries import ROOT
from tests.support.manifests import DEPLOY, INSTALL
from tests.support.markdown import documents

# Names of files, images and packages; a tag of Kustomize and of git; the log.
NAMED = re.compile(
    r"(?:\bpodwire(?:-agent)?[-_:]|\bnewTag: |\bcheckout v|\"plugin\":.*\"version\":\")(?P<version>\d+\.\d+\.\d+)"
)
PLACES = {
    *("deploy/Containerfile", "deploy/README.md", "deploy/agent.Containerfile", "deploy/dhcp/kustomization.yaml"),
    *("deploy/install/kustomization.yaml", "docs/logs.md", "docs/release.md"),
}


def test_places_name_the_present_version():
    """The version is in these files, each time the code's."""
    files = {path for path in (*documents(), *DEPLOY.rglob("*")) if path.is_file()}
    named = {str(path.relative_to(ROOT)): set(NAMED.findall(path.read_text())) for path in files}
    assert {path: versions for path, versions in named.items() if versions} == {path: {__version__} for path in PLACES}


@pytest.mark.parametrize(
    ("page", "pattern", "parts"),
    [("CHANGELOG.md", r"^## (\S+)", 3), ("SECURITY.md", r"the newest minor version, now (\d+\.\d+),", 2)],
)
def test_pages_begin_with_the_present_version(page, pattern, parts):
    """The changelog begins with the version, and SECURITY.md names its minor version as the supported one."""
    (named, *_) = re.findall(pattern, (ROOT / page).read_text(), re.MULTILINE)
    assert named == ".".join(__version__.split(".")[:parts])


def test_image_of_the_daemon_set_has_the_version():
    """The DaemonSet runs the image of the present version."""
    (agent,) = manifests.pod(INSTALL)["containers"]
    assert agent["image"] == f"registry.example/podwire-agent:{__version__}"
