"""`podwire lint` as a program: exit status, lines for people, a JSON document for programs."""

import json
import os
import subprocess

import pytest

from tests.support import binaries
from tests.support.binaries import ROOT

OK, FINDINGS, USAGE, FAILED = 0, 1, 2, 3
BROKEN = "tests/data/netd/broken/10-misspelt.conflist"
PLAIN = {"cniVersion": "1.0.0", "name": "plain", "plugins": [{"type": "bridge"}]}


def lint(*words, before=(), **env):
    """Runs the command in the project's directory, with the built plugins; `before` is a command that starts it."""
    line = [*before, binaries.directory() / "podwire", "lint", *words]
    env = {"PATH": os.environ["PATH"], "CNI_PATH": str(binaries.directory()), **env}
    return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def write(path, value):
    path.write_text(json.dumps(value))


def test_findings_are_lines_that_editors_parse():
    """A finding is FILE:LINE:COLUMN, severity and text, with a hint on the next line."""
    done = lint(BROKEN)
    assert (done.returncode, done.stderr) == (FINDINGS, "")
    warning = f'{BROKEN}:10:7: warning: unknown key "isGatway": bridge does not read it'
    assert f'{warning}\n    did you mean "isGateway"?' in done.stdout
    assert done.stdout.splitlines()[-1] == "1 file: 7 errors, 11 warnings, 1 note"


def test_document_contains_every_finding(tmp_path):
    """With --json the document has every file, which network the runtime uses, and every finding with its place."""
    write(tmp_path / "10-a.conflist", PLAIN | {"cniVersion": "1.0"})
    write(tmp_path / "20-b.conflist", PLAIN | {"name": "b"})
    done = lint("--json", str(tmp_path))
    assert done.returncode == FINDINGS
    finding = {"severity": "error", "line": 1, "column": 2, "key": "cniVersion"}
    finding |= {"text": 'cniVersion "1.0" is unknown: every plugin refuses it', "hint": 'did you mean "1.0.0"?'}
    files = [
        {"path": str(tmp_path / "10-a.conflist"), "network": "plain", "wins": True, "findings": [finding]},
        {"path": str(tmp_path / "20-b.conflist"), "network": "b", "wins": False, "findings": []},
    ]
    assert json.loads(done.stdout) == {"files": files, "errors": 1, "warnings": 0, "notes": 0}


def test_exit_status(tmp_path):
    """Notes cause exit status 0, with --strict 1; a directory without networks causes 1, a missing file 3."""
    directory = str(tmp_path)
    assert lint(directory).returncode == FINDINGS
    write(tmp_path / "10-a.conflist", PLAIN | {"cniVersion": "1.1.0"})
    assert [lint(directory).returncode, lint("--strict", directory).returncode] == [OK, FINDINGS]
    assert lint(NETCONFPATH=directory).returncode == lint("--conf-dir", directory).returncode == OK
    write(tmp_path / "20-b.conflist", PLAIN | {"plugins": [{"type": "bridge"}, {"type": "missing"}]})
    assert lint(directory).returncode == FINDINGS
    (tmp_path / "20-b.conflist").unlink()
    assert lint("--bin-dir", directory, directory).returncode == FINDINGS
    assert lint("--no-bin-dir", directory).returncode == lint("--bin-dir", "/nonexistent", directory).returncode == OK
    missing = lint(directory + "/missing.conflist")
    assert (missing.returncode, missing.stdout) == (FAILED, "")
    assert "No such file or directory" in missing.stderr


@pytest.mark.parametrize("json_", [(), ("--json",)], ids=["lines", "document"])
def test_hostile_names_and_texts_are_escaped(json_, tmp_path):
    """Control characters and names in invalid UTF-8 are printed with escapes, and a FIFO does not block the tool."""
    os.mkfifo(tmp_path / "10-fifo.conf")
    for name in (b"20-\xff.conf", b"30-\x1b[31m.conf"):
        with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
            file.write(b'{"name": "\\u001b[2J", "type": "\\ud800", "\\u001b": 1}')
    done = lint(*json_, str(tmp_path))
    assert (done.returncode, done.stderr) == (FINDINGS, "")
    assert "\x1b" not in done.stdout
    if json_:
        assert len(json.loads(done.stdout)["files"]) == 3


def test_unreadable_file_is_reported(tmp_path):
    """A file that may not be read is an error of that file, and the other files are checked."""
    write(tmp_path / "10-a.conflist", PLAIN)
    write(tmp_path / "20-b.conflist", PLAIN | {"name": "b"})
    (tmp_path / "10-a.conflist").chmod(0)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    done = lint("--no-bin-dir", tmp_path, before=("setpriv", "--reuid=65534", "--clear-groups"))
    assert (done.returncode, done.stderr) == (FINDINGS, "")
    assert "10-a.conflist:1:1: error: it cannot be read: Permission denied" in done.stdout
    assert '"b" of 20-b.conflist' in done.stdout
