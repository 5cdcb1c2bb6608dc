"""Fixtures of the tests of the executable."""

import pytest


@pytest.fixture
def podwire(bin_dir):
    """The executable; skips for PyInstaller's."""
    if b"pyi-" in (bin_dir / "podwire").read_bytes():
        pytest.skip("the portable variant is not a static executable")
    return bin_dir / "podwire"
