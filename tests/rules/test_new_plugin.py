"""Each plugin is complete: it is in the files of CONTRIBUTING's list "A new plugin" that other tests do not check.

The pages of docs/ and the networks of selftest are in test_docs.py and test_tool_selftest.py.
"""

import subprocess
import sys

import pytest

from podwire.main import PLUGINS
from tests.rules.test_keys import FULL
from tests.spec import configs
from tests.support.binaries import ROOT
from tests.support.markdown import Document

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


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_is_complete(name):
    """A plugin has a README, a link to its page in the project's README, all keys, a kind, and tests on a kernel."""
    assert (ROOT / PLUGINS[name].cmd_add.__module__.replace(".", "/")).with_name("README.md").is_file()
    assert f"docs/{name}.md" in {target.partition("#")[0] for target in Document(ROOT / "README.md").links()}
    assert name in FULL, "tests/rules/test_keys.py: configurations with all keys"
    assert name in configs.KINDS, "podwire/lint/known.py: INTERFACES, CHAINED or IPAMS"
    assert list((ROOT / "tests" / "netns").glob(f"test_{name.replace('-', '_')}*.py")), "tests on a kernel"


@pytest.fixture(scope="module")
def warmed_up() -> set[str]:
    """The plugins that the scenarios in pack/warm_up.py run, also as delegates."""
    command = [sys.executable, "-c", PRINT_WARMED_UP]
    return set(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split())


@pytest.mark.parametrize("name", PLUGINS)
def test_image_is_warmed_up_for_the_plugin(name, warmed_up):
    """A scenario in pack/warm_up.py runs the plugin, so that a process that starts from the image runs it fast."""
    assert (name in warmed_up) is (name not in NOT_WARMED_UP)
