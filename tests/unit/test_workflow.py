"""The workflow for a forge's CI runs the two commands of this repository, on the Debian release of the builds."""

import re

import yaml

from tests.support.binaries import ROOT


def test_workflow_runs_the_two_commands():
    """Each job runs one of `make check` and `.ci/run` on the Debian release of the Makefile, with read-only rights."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    jobs = workflow["jobs"].values()
    assert [job["steps"][-1]["run"] for job in jobs] == ["make check", ".ci/run"]
    (release,) = re.findall(r"^DEBIAN := (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    images = [job["container"] if isinstance(job["container"], str) else job["container"]["image"] for job in jobs]
    assert set(images) == {f"debian:{release}"}
    assert workflow["permissions"] == {"contents": "read"}
