"""The parts of `make check`, `make test`, `make test-all` and `make nightly`, in the order in which they start.

One rule: a part depends on the parts that it names, and on no other.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.runner.schedule import Part

REPORTS = Path("build/reports")
KERNELS = REPORTS / "kernels"  # reports of tests/netns and tests/spec, which run on two kernels
DEBIAN_KERNELS = REPORTS / "debian-kernels"  # reports of a sample of tests/netns on each Debian kernel

# The number of parts that share the tests of a directory.
_FIRST_KERNEL, _HARD, _UNIT = 5, 3, 3
# On the second kernel, each directory has parts of its own: user-mode Linux kills a process with more than some 65,000
# pages (vm.max_map_count of its host), and the tests of both directories together take more.
_SECOND_KERNEL = {"netns": 4, "spec": 2}
# Of tests/hard, only what the first kernel cannot run: faults of some plugins, and a storm of ipvlan and vrf.
_HARD_ON_SECOND_KERNEL = (
    *("tests/hard/test_faults_netlink.py", "tests/hard/test_storm.py::test_storm_without_bridge[ipvlan]"),
    *("-k", "(vlan and not macvlan) or dummy or vrf"),
)
# The real runtime of `make test`, from installation to removal.
_ONE_RUNTIME = tuple(f"tests/clients/test_{name}.py" for name in ("install", "cri", "cri_life"))
WITH_ALONE = ("tests/netns", "tests/cluster")  # the directories with tests marked `alone`
RUN_BY_MAKE = ("tests/kubernetes",)  # the directories whose tests run by a target of make, a part of `make nightly`
# Debian releases whose kernels `make nightly` boots: Linux 5.10, 6.12 and the newest one.
_DEBIAN_RELEASES = ("bullseye", "trixie", "sid")
# Debian releases with newer container runtimes than the test root's: `make nightly`, `make test-clients NEWER=1`.
NEWER = {"trixie": "build/runtimes/trixie", "sid": "build/runtimes/sid"}  # and the root file systems
_PYTHON = ".venv/bin/python"
_BUILT = ("test-root", "binaries")
_LINT = ".venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/lint-imports"
_TYPES = ".venv/bin/mypy"


def check() -> list[Part]:
    """Returns linters, types, tests of sources and pages, and unit tests: they need neither root nor built files."""
    lint = Part("lint", ("sh", "-c", _LINT), ("venv",), isolated=False)
    types = Part("types", ("sh", "-c", _TYPES), ("venv",), isolated=False)
    rules = _quick("rules", "tests/rules")
    unit = [_quick(f"unit-{share}", f"--share={share}/{_UNIT}", "tests/unit", group="unit") for share in range(_UNIT)]
    return [_make("venv"), *unit, rules, types, lint]


def test() -> list[Part]:
    """Returns the parts of `make test`: what finds most defects per second."""
    short = "--short"
    return _then_alone(
        *(_make("test-root"), _make("binaries", "venv"), *check()),
        *(_second_kernel("netns", share, 2, short) for share in range(2)),
        _pytest("cluster", [short, "tests/cluster"]),
        *(_first_kernel(share, _FIRST_KERNEL, short) for share in range(_FIRST_KERNEL)),
        _second_kernel("spec", 0, 1, short),
        _pytest("hard", [short, "tests/hard"]),
        _pytest("spec", [short, "tests/spec"], reports=KERNELS),
        _pytest("built-files", [short, "tests/pack"]),
        _pytest("clients", [short, *_ONE_RUNTIME]),
        options=(short,),
    )


def test_all() -> list[Part]:
    """Returns the parts of `make test-all`: every test, those of tests/hard with some of their cases."""
    return _then_alone(
        *(_make("test-root"), _make("binaries", "venv"), _kubernetes(), _make("agent-base")),
        _make("build-arm64", "venv", "agent-base", targets=("arm64", "arm64-machine", "agent-base-arm64")),
        *check(),
        *(_first_kernel(share, _FIRST_KERNEL) for share in range(_FIRST_KERNEL)),
        _pytest("spec", ["tests/spec"], reports=KERNELS),
        _pytest("cluster", ["tests/cluster"], needs=(*_BUILT, "kubernetes")),
        _pytest("built-files", ["tests/pack"]),
        *(_second_kernel(directory, share, of) for directory, of in _SECOND_KERNEL.items() for share in range(of)),
        _in_second_kernel("second-kernel-hard", _HARD_ON_SECOND_KERNEL, REPORTS),
        _pytest("clients", ["tests/clients"]),
        *_portable("tests/spec/test_delegation.py"),
        *(_pytest(f"hard-{share}", [f"--share={share}/{_HARD}", "tests/hard"], group="hard") for share in range(_HARD)),
        _make("debian-roots"),
        _pytest("release", ["tests/release"], needs=(*_BUILT, "agent-base", "build-arm64", "debian-roots")),
        _pytest("deploy", ["tests/deploy"], needs=(*_BUILT, "agent-base")),
        _pytest("arm64", ["tests/arm64"], needs=(*_BUILT, "build-arm64")),
    )


def nightly() -> list[Part]:
    """Returns the parts of `make nightly`: every kill and fault, every kernel and runtime, then real clusters.

    After the builds the longest start first. Each file of tests/hard is a part, so an interrupted run loses little.
    """
    option = "--nightly"
    hard = sorted(path.stem.removeprefix("test_") for path in Path("tests/hard").glob("test_*.py"))
    faults = [f"tests/cluster/test_{name}.py" for name in ("pool_faults", "policy_races")]
    parts = _then_alone(
        *(_make("test-root"), _make("venv"), _make("binaries", "venv"), _kubernetes()),
        *_debian_kernels(),
        *(_pytest(f"hard-{name}", [option, f"tests/hard/test_{name}.py"]) for name in hard),
        *(_whole_second_kernel(share, _SECOND_KERNEL["netns"]) for share in range(_SECOND_KERNEL["netns"])),
        *_newest_reference(),
        _pytest("clients", ["tests/clients"]),
        *newer_clients(),
        _pytest("faults-cluster", [option, *faults], needs=(*_BUILT, "kubernetes")),
        *_portable("tests/spec"),
        _quick("unit", option, "tests/unit"),
        options=(option,),
    )
    clusters = _make("test-kubernetes", targets=("test-kubernetes", "NIGHTLY=1"))
    return [*parts, replace(clusters, after=tuple(part.name for part in parts))]


SUITES = {"check": check, "test": test, "test-all": test_all, "nightly": nightly}


def newer_clients() -> list[Part]:
    """Returns the tests of the clients with the runtimes of each newer Debian."""
    roots = [_make(f"newer-root-{one}", targets=("newer-root", f"DISTRIBUTION={one}")) for one in NEWER]
    group = "newer-clients"
    tests = [
        _pytest(f"{group}-{one}", ["tests/clients"], needs=("binaries", f"newer-root-{one}"), root=root, group=group)
        for one, root in NEWER.items()
    ]
    return [*roots, *tests]


def named(names: Sequence[str]) -> list[Part]:
    """Returns the parts of a suite, or the parts with these names and those that they need.

    A group names all its parts. Raises KeyError for a name of no part.
    """
    if len(names) == 1 and names[0] in SUITES:
        return SUITES[names[0]]()
    every = _every_part()
    chosen = set()
    for name in names:
        matching = {part.name for part in every if name in (part.name, part.group)}
        if not matching:
            raise KeyError(name)
        chosen |= matching
    while missing := {need for part in every if part.name in chosen for need in part.needs} - chosen:
        chosen |= missing
    return [part for part in every if part.name in chosen]


def list_names() -> list[str]:
    """Returns the names that `named` accepts: those of suites, of parts, and of groups."""
    return [*SUITES, *dict.fromkeys(part.group or part.name for part in _every_part())]


def _every_part() -> list[Part]:
    """Returns the parts of `make test-all`, and those of `make nightly` with other names."""
    every = {part.name: part for part in test_all()}
    for part in nightly():
        every.setdefault(part.name, part)
    return list(every.values())


def _newest_reference() -> list[Part]:
    """Returns the comparisons with the reference plugins, with Debian's newest ones."""
    name, unpack = "newest-reference", "unpack-newest-reference"
    part = _pytest(name, [f"--{name}", "tests/netns", "tests/hard", "tests/clients"], needs=(*_BUILT, unpack))
    # The target of the link, whose name is the version.
    with_newest = 'exec env REFERENCE="$(readlink -f build/reference/newest)" "$@"'
    command = ("sh", "-c", with_newest, "sh", *part.command)
    return [_make(unpack, targets=(name,)), replace(part, command=command)]


def _debian_kernels() -> list[Part]:
    """Returns a sample of tests/netns on the emulated kernel of each Debian release."""
    group, parts = "debian-kernels", []
    for release in _DEBIAN_RELEASES:
        name, unpack = f"{group}-{release}", f"unpack-kernel-{release}"
        program = (_PYTHON, "-m", "tests.support.debian_kernel", f"--release={release}")
        command = ("env", "PODWIRE_BIN_DIR=dist/bin", *program, f"--report={DEBIAN_KERNELS}/{name}.json")
        parts += [
            _make(unpack, targets=("debian-kernel", f"DISTRIBUTION={release}")),
            Part(name, command, (*_BUILT, unpack), isolated=False, group=group),
        ]
    return parts


def _portable(tests: str) -> list[Part]:
    """Returns the build and tests of the portable variant, which starts slowly."""
    build = _make("build-portable", "binaries", targets=("binaries", "PACKER=pyinstaller"))
    needs = ("test-root", build.name)
    return [build, _pytest("portable", [tests], needs=needs, bin_dir="dist/pyinstaller/bin")]


def _then_alone(*parts: Part, options: Sequence[str] = ()) -> list[Part]:
    """Returns the parts, and a last one with the tests that run when no other does."""
    names = tuple(part.name for part in parts)
    return [*parts, _pytest("alone", ["--alone", *options, *WITH_ALONE], reports=KERNELS, after=names)]


def _make(name: str, *needs: str, targets: Sequence[str] = ()) -> Part:
    return Part(name, ("make", *(targets or (name,))), needs, isolated=False)


def _kubernetes() -> Part:
    """Returns the build of kube-apiserver, once for this machine.

    It takes ten minutes of a processor, and only the part "cluster" waits for it: so it runs with a low priority.
    Each part is a session, and the kernel shares the processors between sessions by the weight in `autogroup`.
    """
    command = "[ ! -w /proc/self/autogroup ] || echo 10 >/proc/self/autogroup; exec nice -n 10 make kubernetes"
    return Part("kubernetes", ("sh", "-c", command), isolated=False)


def _quick(name: str, *arguments: str, group: str = "") -> Part:
    """Returns tests that need the virtual environment only."""
    return _pytest(name, list(arguments), needs=("venv",), isolated=False, group=group)


def _first_kernel(share: int, of: int, *options: str) -> Part:
    group, arguments = "first-kernel", [f"--share={share}/{of}", *options, "tests/netns"]
    return _pytest(f"{group}-{share}", arguments, reports=KERNELS, group=group)


def _second_kernel(directory: str, share: int, of: int, *options: str) -> Part:
    """Returns a share of the tests that the first kernel cannot run, and of a few of the others."""
    name = f"second-kernel-{directory}-{share}"
    return _in_second_kernel(name, (f"--share={share}/{of}", "--complement", *options, f"tests/{directory}"), KERNELS)


def _whole_second_kernel(share: int, of: int) -> Part:
    """Returns a share of tests/netns without --complement: its report is not compared with one of the first kernel."""
    name = "whole-second-kernel"
    part = _in_second_kernel(f"{name}-{share}", (f"--share={share}/{of}", "tests/netns"), REPORTS)
    return replace(part, group=name)


def _in_second_kernel(name: str, options: Sequence[str], reports: Path) -> Part:
    program = (_PYTHON, "-m", "tests.support.second_kernel", f"--report={reports}/{name}.json")
    return Part(name, ("env", "PODWIRE_BIN_DIR=dist/bin", *program, *options), _BUILT, group="second-kernel")


def _pytest(
    name: str,
    arguments: list[str],
    *,
    needs: tuple[str, ...] = _BUILT,
    isolated: bool = True,
    reports: Path = REPORTS,
    bin_dir: str = "dist/bin",
    root: str = Part.root,
    after: tuple[str, ...] = (),
    group: str = "",
) -> Part:
    program = ("env", f"PODWIRE_BIN_DIR={bin_dir}", _PYTHON, "-m", "pytest", f"--report={reports}/{name}.json")
    return Part(name, (*program, *arguments), needs, after, isolated=isolated, root=root, group=group)
