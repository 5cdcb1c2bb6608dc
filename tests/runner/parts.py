"""The parts of `make test` and `make check`, in the order in which they start.

One rule: a part depends on the parts that it names, and on no other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.runner.schedule import Part
from tests.support.binaries import in_ci

REPORTS = Path("build/reports")
KERNELS = REPORTS / "kernels"  # reports of tests/netns and tests/spec, which run on two kernels

# The number of parts that share the tests of a directory.
_FIRST_KERNEL, _HARD, _UNIT = 5, 3, 2
# On the second kernel, each directory has parts of its own: user-mode Linux kills a process with more than some 65,000
# pages (vm.max_map_count of its host), and the tests of both directories together take more.
_SECOND_KERNEL = {"netns": 4, "spec": 2}
# Of tests/hard, only what the first kernel cannot run: faults of some plugins, and a storm of ipvlan and vrf.
_HARD_ON_SECOND_KERNEL = (
    *("tests/hard/test_faults_netlink.py", "tests/hard/test_storm.py::test_storm_without_bridge[ipvlan]"),
    *("-k", "(vlan and not macvlan) or dummy or vrf"),
)
# Debian releases with newer container runtimes than the one of the test root, for `make test-clients NEWER=1`.
NEWER = {"trixie": "build/runtimes/trixie", "sid": "build/runtimes/sid"}  # and the root file systems
_BUILT = ("test-root", "binaries")
_LINT = ".venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/lint-imports"
_TYPES = ".venv/bin/mypy"


def check() -> list[Part]:
    """Returns linters, types and unit tests, which need neither root nor built files."""
    return [*_linters(), *(_unit(share) for share in range(_UNIT))]


def all_parts() -> list[Part]:
    """Returns every part: the builds, then the parts that others wait for, then the longest first."""
    first = [_first_kernel(share) for share in range(_FIRST_KERNEL)]
    first.append(_pytest("spec", ["tests/spec"], reports=KERNELS))
    first_names = tuple(part.name for part in first)
    second = [
        _second_kernel(directory, share, first_names)
        for directory, shares in _SECOND_KERNEL.items()
        for share in range(shares)
    ]
    second.append(_in_second_kernel("second-kernel-hard", _HARD_ON_SECOND_KERNEL, REPORTS, first_names))
    portable = ["--share", "0/32", "tests/spec"]
    return [
        Part("test-root", ("make", "test-root"), isolated=False),
        Part("binaries", ("make", "binaries"), isolated=False),
        _kubernetes(),
        Part("agent-base", ("make", "agent-base"), isolated=False),
        Part("build-arm64", ("make", "arm64", "arm64-machine"), isolated=False),
        *_linters(),
        *first,
        _pytest("cluster", ["tests/cluster"], needs=(*_BUILT, "kubernetes")),
        _pytest("built-files", ["tests/pack"]),
        *second,
        _pytest("clients", ["tests/clients"]),
        Part("build-portable", ("make", "binaries", "PACKER=pyinstaller"), needs=("binaries",), isolated=False),
        _pytest("portable", portable, needs=("test-root", "build-portable"), bin_dir="dist/pyinstaller/bin"),
        *(_pytest(f"hard-sample-{share}", [f"--share={share}/{_HARD}", "tests/hard"]) for share in range(_HARD)),
        *(_unit(share, isolated=True) for share in range(_UNIT)),
        _pytest("release", ["tests/release"], needs=(*_BUILT, "agent-base", "build-arm64")),
        _pytest("deploy", ["tests/deploy"], needs=(*_BUILT, "agent-base")),
        _pytest("arm64", ["tests/arm64"], needs=(*_BUILT, "build-arm64")),
    ]


def newer_clients() -> list[Part]:
    """Returns the tests of the clients with the runtimes of each newer Debian, which `make test` does not run."""
    roots = [
        Part(f"newer-root-{release}", ("make", "newer-root", f"DISTRIBUTION={release}"), isolated=False)
        for release in NEWER
    ]
    tests = [
        _pytest(f"newer-clients-{release}", ["tests/clients"], needs=("binaries", f"newer-root-{release}"), root=root)
        for release, root in NEWER.items()
    ]
    return [*roots, *tests]


def named(names: Sequence[str]) -> list[Part]:
    """Returns the parts of these names, and the parts that they need; "clients", or "first-kernel" for all its shares.

    Raises KeyError for a name of no part.
    """
    every = [*all_parts(), *newer_clients(), _newest_reference()]
    chosen = set()
    for name in names:
        matching = {part.name for part in every if part.name == name or part.name.rpartition("-")[0] == name}
        if not matching:
            raise KeyError(name)
        chosen |= matching
    while missing := {need for part in every if part.name in chosen for need in part.needs} - chosen:
        chosen |= missing
    return [part for part in every if part.name in chosen]


def _newest_reference() -> Part:
    """Returns the tests of the reference plugins that `make newest-reference` has unpacked: REFERENCE names them."""
    return _pytest("newest-reference", ["--newest-reference", "tests/netns", "tests/hard", "tests/clients"])


def _linters() -> list[Part]:
    return [Part("lint", ("sh", "-c", _LINT), isolated=False), Part("types", ("sh", "-c", _TYPES), isolated=False)]


def _kubernetes() -> Part:
    """Returns the build of kube-apiserver in CI; else the use of the machine's cache, which may be empty.

    The build takes ten minutes of a processor, and only the part "cluster" waits for it: so it takes what the others
    leave. Each part is a session, and the kernel shares the processors between sessions by the weight in `autogroup`.
    """
    target = "kubernetes" if in_ci() else "cached-kubernetes"
    command = f"[ ! -w /proc/self/autogroup ] || echo 10 >/proc/self/autogroup; exec nice -n 10 make {target}"
    return Part("kubernetes", ("sh", "-c", command), isolated=False)


def _unit(share: int, *, isolated: bool = False) -> Part:
    needs = ("test-root",) if isolated else ()
    return _pytest(f"unit-{share}", [f"--share={share}/{_UNIT}", "tests/unit"], needs=needs, isolated=isolated)


def _first_kernel(share: int) -> Part:
    return _pytest(f"first-kernel-{share}", [f"--share={share}/{_FIRST_KERNEL}", "tests/netns"], reports=KERNELS)


def _second_kernel(directory: str, share: int, first: tuple[str, ...]) -> Part:
    """Returns a share of the tests that did not pass on the first kernel, and of a few of those that did."""
    name = f"second-kernel-{directory}-{share}"
    options = (f"--share={share}/{_SECOND_KERNEL[directory]}", f"--besides={KERNELS}", f"tests/{directory}")
    return _in_second_kernel(name, options, KERNELS, first)


def _in_second_kernel(name: str, options: Sequence[str], reports: Path, after: tuple[str, ...]) -> Part:
    program = (sys.executable, "-m", "tests.support.second_kernel", f"--report={reports}/{name}.json")
    return Part(name, ("env", "PODWIRE_BIN_DIR=dist/bin", *program, *options), _BUILT, after)


def _pytest(
    name: str,
    arguments: list[str],
    *,
    needs: tuple[str, ...] = _BUILT,
    isolated: bool = True,
    reports: Path = REPORTS,
    bin_dir: str = "dist/bin",
    root: str = Part.root,
) -> Part:
    program = ("env", f"PODWIRE_BIN_DIR={bin_dir}", sys.executable, "-m", "pytest", f"--report={reports}/{name}.json")
    return Part(name, (*program, *arguments), needs, isolated=isolated, root=root)
