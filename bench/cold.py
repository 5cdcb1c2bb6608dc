"""Cold starts: the plugin's file is on the disk and not in memory, as after a boot.

One rule: nothing but the files under measurement leaves memory. They are copies that nobody else runs, so that the
kernel can drop them, and that it did is asked of it before anything is timed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.cases import Network, Samples, Subjects, compare
from bench.figures import Row
from bench.process import settle
from bench.subject import Subject
from tests.support.namespaces import Namespace
from tests.support.processes import output

_DISK = "/var/tmp"  # not /tmp, which may be in memory for good


def first_calls(subjects: Subjects, rounds: int, network: Network, pod: Namespace) -> list[Row]:
    """Measures VERSION and bridge's ADD, host-local's file being out of memory as well."""

    def act(subject: Subject) -> Samples:
        config = network(subject)
        _drop(subject.bin_dir)
        found = {"cold VERSION": subject.run("bridge", "VERSION", {})}
        _drop(subject.bin_dir)
        found["cold bridge ADD"] = added = subject.run("bridge", "ADD", config, pod)
        subject.run("bridge", "DEL", {**config, "prevResult": added.outcome.result()}, pod)
        return found

    with _copies(subjects) as copies:
        for subject in copies:
            subject.run("bridge", "VERSION", {})
            _drop(subject.bin_dir)
            left = _resident(subject.bin_dir)
            if left:
                raise RuntimeError(f"{subject.label}: {left} bytes of its files stay in memory")
        return compare(copies, rounds, act)


@contextlib.contextmanager
def _copies(subjects: Subjects) -> Iterator[Subjects]:
    with tempfile.TemporaryDirectory(dir=_DISK, prefix="podwire-cold-") as directory:
        ours, reference = (_copied(subject, Path(directory, subject.label)) for subject in subjects)
        yield ours, reference
        settle()


def _copied(subject: Subject, directory: Path) -> Subject:
    directory.mkdir()
    files = [str(subject.bin_dir / name) for name in ("bridge", "host-local")]
    output("cp", "--dereference", "--preserve=links,mode", *files, str(directory))  # one file stays one
    output("sync", *(str(path) for path in directory.iterdir()))  # what is not yet on the disk stays in memory
    return replace(subject, bin_dir=directory)


def _drop(directory: Path) -> None:
    settle()  # what is mapped is not dropped
    for path in directory.iterdir():
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _resident(directory: Path) -> int:
    files = [str(path) for path in directory.iterdir()]
    return sum(map(int, output("fincore", "--bytes", "--noheadings", "--output", "RES", *files).split()))
