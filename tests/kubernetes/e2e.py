"""Upstream's tests of the network, [sig-network] of test/e2e, run by ginkgo in parallel.

One rule: what is left out is in left_out.toml, with the reason; everything else runs, and each test has a result.
"""

import functools
import re
import subprocess
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.kubernetes import modes, plan
from tests.kubernetes.cluster import Cluster

_EVERY = r"\[sig-network\]"
PASSED = "passed"
_PROGRAM = plan.PROGRAMS / "e2e.test"
_AT_ONCE = 6  # most tests wait
_ATTEMPTS = 2  # as in Kubernetes' CI: a test of EndpointSlices reads some before the controller has filled them
_LIMIT = "50m"
_ENDED = re.compile(r'"msg":"(PASSED|FAILED) \[sig-network\] (.*?)","total"')


@functools.cache
def left_out() -> dict[str, str]:
    """Returns the patterns of the tests that do not run in this mode, and the reasons."""
    items = tomllib.loads(Path(__file__).with_name("left_out.toml").read_text())["left_out"]
    return {one["pattern"]: one["reason"] for one in items if one.get("mode") != modes.name()}


@functools.cache
def every_name() -> list[str]:
    """Returns the names of all tests of the network; none before upstream's tests are built."""
    if not _PROGRAM.exists():
        return []
    with tempfile.TemporaryDirectory() as directory:
        line = (str(_PROGRAM), "-ginkgo.dryRun", f"-ginkgo.focus={_EVERY}", f"--report-dir={directory}")
        subprocess.run(line, check=True, capture_output=True, timeout=120)
        return sorted(name for name, _ in _cases(Path(directory)))


def names() -> list[str]:
    """Returns the names of the tests that run in this mode."""
    focus = modes.current().upstream
    return [name for name in every_name() if re.search(focus, name) and not reason_to_leave_out(name)]


def reason_to_leave_out(name: str) -> str:
    """Returns why a test does not run, "" if it runs."""
    return next((reason for pattern, reason in left_out().items() if re.search(pattern, name)), "")


def run(cluster: Cluster) -> dict[str, str]:
    """Runs the tests and returns the outcome of each by name: PASSED, or why it failed."""
    reports, log = cluster.directory / "e2e", cluster.directory / "e2e.log"
    reports.mkdir()
    cluster.step(f"upstream's tests begin, {_AT_ONCE} at once; their output: build/cluster/{log.name}")
    line = (
        *(
            str(plan.PROGRAMS / "ginkgo"),
            f"--nodes={_AT_ONCE}",
            f"--timeout={_LIMIT}",
            "--noColor",
            f"--focus={cluster.mode.upstream}",
        ),
        *(f"--skip={'|'.join(left_out())}", f"--flakeAttempts={_ATTEMPTS}", str(_PROGRAM), "--"),
        *(f"--kubeconfig={cluster.control.admin}", f"--kubectl-path={plan.PROGRAMS / 'kubectl'}"),
        *("--provider=skeleton", f"--num-nodes={len(cluster.nodes)}", f"--repo-root={plan.PROGRAMS / 'source'}"),
        *(f"--report-dir={reports}", "--disable-log-dump"),
    )
    status = _watch(line, log, cluster.step)
    outcomes = dict(_cases(reports))
    passed = list(outcomes.values()).count(PASSED)
    cluster.step(f"upstream's tests ended with status {status}: {passed} of {len(outcomes)} passed")
    return outcomes


def _watch(line: Sequence[str], log: Path, step: Callable[[str], None]) -> int:
    """Runs ginkgo and prints a line for each test that ends; returns the exit status."""
    with log.open("wb") as file, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        for output in process.stdout:
            file.write(output)
            if ended := _ENDED.search(output.decode(errors="replace")):
                step(f"{ended[1].lower()}: {ended[2].strip()}")
    return process.returncode


def conformance(outcomes: Mapping[str, str]) -> list[str]:
    """Returns the names of the conformance tests."""
    return [name for name in outcomes if "[Conformance]" in name]


def _cases(directory: Path) -> Iterator[tuple[str, str]]:
    """Yields name and outcome of each test in the reports of a directory that was not skipped."""
    for path in sorted(directory.glob("junit_*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            failure = case.find("failure")
            if case.find("skipped") is None:
                yield case.attrib["name"], PASSED if failure is None else (failure.text or "failed").strip()
