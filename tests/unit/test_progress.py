"""pack/progress.sh, with which make runs commands that print nothing for long."""

import os
import subprocess

from tests.support.binaries import ROOT


def test_long_command_prints_its_time():
    """A period prints a line on stderr; the command's output and exit status stay."""
    command = [str(ROOT / "pack/progress.sh"), "venv", "sh", "-c", "sleep 1.5; echo done; exit 3"]
    env = {**os.environ, "PROGRESS_S": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert done.stderr.startswith("venv: after 1 s\n")


def test_status_stays_without_a_reader_of_stderr():
    """A command that succeeds is a success also if the lines cannot be written."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [str(ROOT / "pack/progress.sh"), "venv", "sleep", "1.5"]
    with os.fdopen(writer, "w") as stderr:
        done = subprocess.run(command, env={**os.environ, "PROGRESS_S": "1"}, stderr=stderr, check=False)
    assert done.returncode == 0
