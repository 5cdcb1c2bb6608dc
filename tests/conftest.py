"""Fixtures of all tests: the built executables, temporary namespaces and machines, a lease directory.

One rule: a missing prerequisite fails a test. In CI only a missing feature of the kernel skips it, else also missing
root and programs.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.support")

from tests.spec import configs  # noqa: E402 - after the registration that makes asserts explain
from tests.support import binaries, inherited, kernels, namespaces, recorder, short  # noqa: E402 - as above
from tests.support.machine import Machine, machine  # noqa: E402 - after the registration, as below
from tests.support.namespaces import Namespace  # noqa: E402 - as above
from tests.support.processes import PATH  # noqa: E402 - as above


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options with which the test runner selects tests and collects reports."""
    parser.addoption(
        "--report", metavar="FILE", type=Path, help="write the outcome of each test on this kernel, as JSON"
    )
    parser.addoption(
        "--nightly", action="store_true", help="tests/hard: all, for hours; tests/unit: 1,000 examples; others: longer"
    )
    about = "run only the tests of the reference plugins; REFERENCE is the directory of the newest ones"
    parser.addoption("--newest-reference", action="store_true", help=about)
    parser.addoption("--short", action="store_true", help="run the tests of `make test` (tests/support/short.py)")
    parser.addoption("--alone", action="store_true", help="run the tests marked `alone`, instead of the others")
    about = "run the tests that need one of these features of the kernel, and a few of the others, none with --short"
    parser.addoption("--lacking", metavar="FEATURE,...", type=_split, help=about)
    about = "run the tests of every Nth file of a directory only, beginning with file K, from 0"
    parser.addoption("--share", metavar="K/N", default="0/1", help=about)


def _split(names: str) -> frozenset[str]:
    return frozenset(names.split(","))


def pytest_configure(config: pytest.Config) -> None:
    """Sets the process's environment, and adds the markers of kernels and the report of the run."""
    inherited.reset()
    config.addinivalue_line("markers", "needs(feature, ...): runs on kernels with these kernels.FEATURES only")
    config.addinivalue_line("markers", "newest_reference: runs with --newest-reference only")
    config.addinivalue_line("markers", "old_reference: about the reference plugins 1.1.1; not with --newest-reference")
    config.addinivalue_line("markers", "one_kernel: the second kernel does not repeat it, if the first one can run it")
    config.addinivalue_line("markers", "long: `make test-all` runs it, `make test` does not")
    config.addinivalue_line("markers", "every_case: `make test` runs all cases of this function")
    config.addinivalue_line("markers", "alone: runs when no other test does: it measures, or needs the whole machine")
    if path := config.getoption("--report"):
        config.pluginmanager.register(recorder.Recorder(path))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the files of other shares out before they are imported, which takes seconds."""
    first, step = map(int, config.getoption("--share").split("/"))
    number = _number_of(collection_path) if step > 1 else None
    return None if number is None or number % step == first else True


def _number_of(path: Path) -> int | None:
    """Returns the place of a file of tests among those of its directory, None for another file."""
    files = sorted(path.parent.glob("test_*.py"))
    return files.index(path) if path in files else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects this run's tests by its options; pytest counts the others."""
    collected = items[:]
    _select(config, items)
    config.hook.pytest_deselected(items=list(set(collected).difference(items)))


def _select(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--newest-reference"):
        items[:] = [item for item in items if _runs_reference(item)]
    else:
        items[:] = [item for item in items if not item.get_closest_marker("newest_reference")]
    lacking = config.getoption("--lacking") or frozenset()
    needing = {item for item in items if lacking and not lacking.isdisjoint(needed_by(item))}  # alone or not
    is_alone = bool(config.getoption("--alone"))
    items[:] = [item for item in items if item in needing or bool(item.get_closest_marker("alone")) == is_alone]
    if is_short := config.getoption("--short"):
        items[:] = short.select(items)
    if lacking:
        others = [item for item in items if item not in needing and not item.get_closest_marker("one_kernel")]
        again = set() if is_short else set(others[1 :: kernels.AGAIN])
        items[:] = [item for item in items if item in needing or item in again]


def needed_by(item: pytest.Item) -> list[str]:
    """Returns the kernel's features without which a test is skipped; a plugin may need one for its verbs."""
    needed = [feature for marker in item.iter_markers("needs") for feature in marker.args]
    callspec = getattr(item, "callspec", None)
    if callspec and "invoke" in getattr(item, "fixturenames", ()) and callspec.params.get("plugin") in configs.NEEDS:
        needed.append(configs.NEEDS[callspec.params["plugin"]])
    return needed


def _runs_reference(item: pytest.Item) -> bool:
    """Returns whether a test has the fixture `reference`, or its module uses the directory of the reference plugins."""
    if item.get_closest_marker("old_reference"):
        return False
    return "reference" in getattr(item, "fixturenames", ()) or "binaries.REFERENCE" in item.path.read_text()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs a missing feature of the kernel, before its fixtures are created."""
    if problem := kernels.lacking(needed_by(item)):
        pytest.skip(problem)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with the fixture `plugin` once for each built plugin; without any, once, to fail with the reason."""
    if "plugin" in metafunc.fixturenames:
        metafunc.parametrize("plugin", binaries.names() or [""], indirect=True)


@pytest.fixture
def plugin(request: pytest.FixtureRequest, bin_dir: Path) -> str:
    """The name of the plugin under test; the test runs once for each."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    """The directory of the built executables (PODWIRE_BIN_DIR, or dist/bin)."""
    if problem := binaries.explain_missing():
        pytest.fail(problem, pytrace=False)
    return binaries.directory()


@pytest.fixture(scope="session")
def reference() -> Path:
    """The directory of the Go plugins (REFERENCE, or Debian's); without them a test is skipped, or fails in CI."""
    if not (binaries.REFERENCE / "bridge").is_file():
        where = f"no Go plugins in {binaries.REFERENCE}"
        binaries.skip_or_fail(f"{where}: run `make needs-test`, or set REFERENCE")
    return binaries.REFERENCE


@pytest.fixture(scope="session")
def root() -> None:
    """Requires root: without root a test is skipped, or fails in CI. Deletes namespaces of killed tests."""
    if os.geteuid() != 0:
        binaries.skip_or_fail("this test needs root")
    namespaces.expose_init()
    namespaces.delete_stale()


@pytest.fixture
def host(root: None) -> Iterator[Namespace]:
    """A new namespace that represents the host, lo up."""
    with namespaces.temporary_host() as namespace:
        yield namespace


@pytest.fixture
def sandbox(root: None) -> Iterator[Namespace]:
    """A new namespace that represents a pod."""
    with namespaces.temporary() as namespace:
        yield namespace


@pytest.fixture
def new_sandbox(root: None) -> Iterator[Callable[[], Namespace]]:
    """A function that creates the namespace of another pod."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(namespaces.temporary())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A lease directory for host-local's `dataDir`; it does not exist yet."""
    return tmp_path / "leases"


@pytest.fixture(scope="module")
def needs_programs(root: None) -> Callable[..., None]:
    """A function that requires programs: without them the module is skipped, or fails in CI."""

    def require(*names: str) -> None:
        missing = [name for name in names if not shutil.which(name, path=PATH)]
        if missing:
            binaries.skip_or_fail(f"no {', '.join(missing)}: `make test-clients` runs on a root file system with them")

    return require


@pytest.fixture(scope="module")
def empty_machine(root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine without plugins and without a runtime, one for each module."""
    scratch: Path = tmp_path_factory.mktemp("machine")
    with machine(scratch) as new_machine:
        yield new_machine
