"""Each plugin is complete: a file of CONTRIBUTING's list "A new plugin" that lacks a plugin is one failing test."""

import subprocess
import sys
from pathlib import Path

import pytest

from podwire.main import PLUGINS
from podwire.selftest.trials import list_trials
from tests.spec import configs
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, Document
from tests.unit.test_keys import FULL

NOT_WARMED_UP = {"static": "few attachments use it"}

PRINT_WARMED_UP = """
from pack import warm_up
from podwire.main import PLUGINS

class Recorder(dict):
    def _print(self, name):
        print(name)
        return super().get(name)
    __getitem__ = get = _print

list(warm_up.scenarios(Recorder(PLUGINS)))
"""


def source_folder(name: str) -> Path:
    return (ROOT / PLUGINS[name].cmd_add.__module__.replace(".", "/")).parent


def links(path: Path) -> set[str]:
    """Returns the files that a document links to."""
    return {target.partition("#")[0] for target in Document(path).links()}


@pytest.mark.parametrize("name", PLUGINS)
def test_folder_has_a_readme(name):
    """A plugin's folder has a README."""
    assert (source_folder(name) / "README.md").is_file()


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_has_a_page(name):
    """A plugin has a page in docs/."""
    assert (DOCS / f"{name}.md").is_file()


@pytest.mark.parametrize("name", PLUGINS)
def test_index_of_the_docs_links_to_the_page(name):
    """The index of docs/ links to each plugin's page."""
    assert f"{name}.md" in links(DOCS / "README.md")


@pytest.mark.parametrize("name", PLUGINS)
def test_readme_links_to_the_page(name):
    """The README links to each plugin's page."""
    assert f"docs/{name}.md" in links(ROOT / "README.md")


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_has_a_configuration_with_all_keys(name):
    """The table FULL in tests/unit/test_keys.py has configurations with all keys of a plugin."""
    assert name in FULL


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_has_a_kind(name):
    """A list in podwire/lint/known.py has each plugin: INTERFACES, CHAINED or IPAMS."""
    assert name in configs.KINDS


def test_trials_of_the_selftest_run_the_plugins():
    """The trials in podwire/selftest/trials.py run every plugin."""
    assert {kind for trial in list_trials(ipv6=True) for kind in trial.kinds} == set(PLUGINS)


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_has_tests_on_a_kernel(name):
    """A file tests/netns/test_<plugin>*.py runs the plugin's built file on a real kernel."""
    assert list((ROOT / "tests" / "netns").glob(f"test_{name.replace('-', '_')}*.py"))


@pytest.fixture(scope="module")
def warmed_up() -> set[str]:
    """The plugins that the scenarios in pack/warm_up.py run, also as delegates."""
    command = [sys.executable, "-c", PRINT_WARMED_UP]
    return set(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split())


@pytest.mark.parametrize("name", PLUGINS)
def test_image_is_warmed_up_for_the_plugin(name, warmed_up):
    """A scenario in pack/warm_up.py runs the plugin, so that a process that starts from the image runs it fast."""
    assert (name in warmed_up) is (name not in NOT_WARMED_UP)
