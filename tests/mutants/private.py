"""Runs of pytest in private copies of the project (private.sh), with changed files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import launchers
from tests.mutants.recording import ROOT

# Not in the project: a copy would contain itself.
_WORK = Path("/var/tmp") / f"podwire-mutants-{zlib.crc32(str(ROOT).encode()):x}"


@dataclass(frozen=True)
class Copy:
    """A private copy of the project; `upper` has the files that differ from the project's."""

    work: Path
    root: Path

    @property
    def upper(self) -> Path:
        """The directory of changed files."""
        return self.work / "project" / "upper"

    def create(self, path: Path) -> Path:
        """Creates the directory of a changed file of the project, and returns the place for the file."""
        place = self.upper / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def run_pytest(self, arguments: Sequence[str], limit_s: float) -> int | None:
        """Runs pytest with the launchers, and returns its status, None after the limit; no process is left."""
        line = [str(ROOT / "tests/mutants/private.sh"), str(self.work), str(self.root), sys.executable, "-m", "pytest"]
        line += ["-p", "tests.mutants.plugin", "-p", "no:cacheprovider", *arguments]
        env = {**os.environ, "PODWIRE_BIN_DIR": str(launchers.DIRECTORY.relative_to(ROOT))}
        with open(self.work / "output", "wb") as output:
            process = subprocess.Popen(line, cwd=ROOT, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def tail(self) -> str:
        """Returns the end of pytest's output."""
        return (self.work / "output").read_text(errors="replace")[-3000:]


@contextmanager
def copy(root: Path) -> Iterator[Copy]:
    """A private copy of the project, which exists during the block."""
    work = Path(tempfile.mkdtemp(dir=_WORK))
    try:
        yield Copy(work, root)
    finally:
        shutil.rmtree(work)


def prepare() -> None:
    """Deletes the copies of an interrupted run, and makes a signal end this process at once, and so its children."""
    shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(130))  # isolated.sh: a child ends with the thread that started it
