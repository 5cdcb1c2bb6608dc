"""Cold starts: the plugin's file is on the disk and not in the page cache, as after a boot.

One rule: only the measured files leave the page cache. They are copies that no other process runs, so the kernel can
drop them; `fincore` confirms this before the first measurement.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.cases import Samples, Subjects, compare, of_kind, places
from bench.figures import Row
from bench.process import wait_all
from bench.subject import SINGLE, Subject
from tests.support.processes import output

_DISK = "/var/tmp"  # /tmp may be a tmpfs, whose files never leave memory


def first_calls(subjects: Subjects, rounds: int) -> list[Row]:
    """Measures VERSION and bridge's ADD without the files of bridge and host-local in the page cache."""

    def measure(subject: Subject) -> Samples:
        network, _, pod = where[subject.label]
        _drop_cache(subject.bin_dir)
        samples = {"first call after a boot: VERSION": subject.run("bridge", "VERSION", {}).ms}
        _drop_cache(subject.bin_dir)
        add = subject.run("bridge", "ADD", network, pod)
        subject.run("bridge", "DEL", {**network, "prevResult": add.outcome.result()}, pod)
        return {**samples, "first call after a boot: bridge ADD": add.ms}

    with _copies(subjects) as copies, places(copies, of_kind(SINGLE)) as where:
        for subject in copies:
            _drop_cache(subject.bin_dir)
            cached = _cached_bytes(subject.bin_dir)
            if cached:
                raise RuntimeError(f"{subject.label}: {cached} bytes of its files stay in the page cache")
        return compare(copies, rounds, measure)


@contextlib.contextmanager
def _copies(subjects: Subjects) -> Iterator[Subjects]:
    with tempfile.TemporaryDirectory(dir=_DISK, prefix="podwire-cold-") as directory:
        ours, reference = (_copy(subject, Path(directory, subject.label)) for subject in subjects)
        yield ours, reference
        wait_all()


def _copy(subject: Subject, directory: Path) -> Subject:
    directory.mkdir()
    files = [str(subject.bin_dir / name) for name in ("bridge", "host-local")]
    output("cp", "--dereference", "--preserve=links,mode", *files, str(directory))  # hard links stay hard links
    output("sync", *(str(path) for path in directory.iterdir()))  # the kernel does not drop dirty pages
    return replace(subject, bin_dir=directory)


def _drop_cache(directory: Path) -> None:
    wait_all()  # the kernel does not drop mapped pages
    for path in directory.iterdir():
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _cached_bytes(directory: Path) -> int:
    files = [str(path) for path in directory.iterdir()]
    return sum(map(int, output("fincore", "--bytes", "--noheadings", "--output", "RES", *files).split()))
