"""The table of docs/runtimes.md: what works with the runtimes of each Debian release, in the last run of the tests.

One rule: each cell is read from the report of a run and from the packages of its root file system.

    make test-clients NEWER=1         # writes the table
    python -m tests.clients.tested    # prints it; --write copies it to the page
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.runner import parts
from tests.runner.reports import FAILED, PASSED, Report
from tests.runner.schedule import Part
from tests.support.binaries import ROOT
from tests.support.markdown import DOCS, with_part

PAGE = DOCS / "runtimes.md"
PACKAGES = ("containerd", "runc", "podman", "apptainer")
# The rows, and the tests of each: a pattern of their IDs.
FEATURES = {
    "CRI: addresses of both families, `lo`": r"test_cri\.py::test_pod_has_addresses.*1\.0\.0",
    "CRI: host ports, TCP and UDP, from everywhere": r"test_cri\.py::test_\w*host_port.*1\.0\.0",
    "CRI: bandwidth limits hold": r"test_cri\.py::test_limits.*1\.0\.0",
    "CRI: the same with CNI 1.1.0": r"test_cri\.py::.*1\.1\.0",
    "CRI: `cniVersion` 1.0.0 with `cniVersions` up to 1.1.0": r"test_cri_versions\.py::test_containerd_chooses",
    "CRI: STATUS: not ready, with podwire's reason": r"test_cri_versions\.py::test_status",
    "CRI: many pods, sequentially and in parallel": r"test_cri_life\.py::test_many_pods",
    "CRI: port conflicts and full ranges are reported": r"test_cri_life\.py::test_(port_conflict|exhausted_range)",
    "CRI: a network of a template, or of `podwire install`": r"test_cri_life\.py::test_node_gets_its_network",
    "CRI: macvlan": r"test_cri_macvlan\.py::",
    "CRI: a pod that lost its namespace can be removed": r"test_cri\w*\.py::test_pod_with_unmounted_namespace",
    "CRI: pods outlive a killed containerd": r"test_cri_life\.py::test_pods_outlive",
    "CRI: from the reference plugins and back": r"test_moving_cri\.py::",
    "`ctr run --cni`": r"test_ctr\.py::",
    "`podwire install` finds containerd's directories": r"test_install\.py::",
    "podman with CNI": r"test_podman\w*\.py::",
    "apptainer: `bridge` and `ptp` of its package": r"test_apptainer\.py::",
}
_BEGIN, _END = "<!-- tested -->\n", "<!-- end of tested -->"


class Release(NamedTuple):
    """A Debian release: the name of its part in the test runner, and its root file system."""

    name: str
    part: str
    root: str


RELEASES = (
    Release("bookworm", "clients", Part.root),
    *(Release(name, f"newer-clients-{name}", root) for name, root in parts.NEWER.items()),
)


def versions(status: str) -> dict[str, str]:
    """Returns the upstream versions of PACKAGES in dpkg's list of packages, "-" for a missing package."""
    installed = dict(re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (?:\d+:)?([\d.]+)", status, re.MULTILINE))
    return {name: installed.get(name, "-") for name in PACKAGES}


def outcome(report: Report, pattern: str) -> str:
    """Returns what the tests of a row have shown: "yes", "no" (all were skipped), "FAILED", or "not run"."""
    outcomes = {result for test, result in report.outcomes.items() if re.search(pattern, test)}
    if FAILED in outcomes:
        return FAILED.upper()
    return "yes" if PASSED in outcomes else "no" if outcomes else "not run"


def table(runs: Mapping[str, tuple[Report, str]]) -> str:
    """Returns the table in Markdown; `runs` has the report and dpkg's list of each release, by the release's name."""
    lines = [f"| Debian | {' | '.join(runs)} |", "|---" * (len(runs) + 1) + "|"]
    for package in PACKAGES:
        lines.append(f"| {package} | {' | '.join(versions(status)[package] for _, status in runs.values())} |")
    for feature, pattern in FEATURES.items():
        lines.append(f"| {feature} | {' | '.join(outcome(report, pattern) for report, _ in runs.values())} |")
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Replaces the table between the marks of a page."""
    page.write_text(with_part(page.read_text(), _BEGIN, f"{text}\n", _END))


def main() -> None:
    """Prints the table of the last run, and copies it to the page with --write."""
    runs = {
        one.name: (
            Report.load(ROOT / parts.REPORTS / f"{one.part}.json"),
            (ROOT / one.root / "var/lib/dpkg/status").read_text(),
        )
        for one in RELEASES
    }
    print(table(runs))
    if "--write" in sys.argv[1:]:
        write(PAGE, table(runs))


if __name__ == "__main__":
    main()
