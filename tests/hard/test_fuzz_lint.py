"""Any content of a file leads to findings, never to a traceback: many changes of each sample."""

from __future__ import annotations

import pytest

from tests.unit.test_lint_fuzz import SAMPLES, check_changed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_many_changes_of_samples_are_checked(nightly, sample, tmp_path):
    """Samples with random changes, as bytes and as JSON, are checked without an exception."""
    if not nightly:
        pytest.skip("in `make nightly` only")
    check_changed(sample, tmp_path, range(300))
