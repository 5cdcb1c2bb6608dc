"""The history: each commit says in a line what it does, and in its body why."""

import subprocess

import pytest

from tests.support.binaries import ROOT

SINCE = "2026-11-28T23:00:00Z"
MOST_CHARACTERS = 72


def problems(subject: str, body: str) -> list[str]:
    """Returns what is wrong with a commit's message."""
    lines = [line for line in body.splitlines() if line.strip()]
    too_long = [f"the subject has {len(subject)} characters"] if len(subject) > MOST_CHARACTERS else []
    return too_long if lines else [*too_long, "no body says why"]


@pytest.mark.parametrize(
    ("subject", "body", "number"),
    [
        ("bridge: release the lease", "A failed ADD kept it.\n", 0),
        ("bridge: release the lease", "\n", 1),
        ("x" * 73, "", 2),
    ],
)
def test_problems_of_messages(subject, body, number):
    """A long subject and a missing body are problems."""
    assert len(problems(subject, body)) == number


def test_commits_say_what_and_why():
    """Subjects have at most 72 characters, and bodies say why, since this is a rule; an archive has no history."""
    if not (ROOT / ".git").exists():
        return
    command = ["git", "-c", "safe.directory=*", "log", "--no-merges", f"--since={SINCE}", "--format=%h%x00%s%x00%b%x01"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commits = [tuple(entry.strip("\n").split("\0")) for entry in log.split("\x01") if entry.strip()]
    assert {name: wrong for name, subject, body in commits if (wrong := problems(subject, body))} == {}
