"""The operator's tool as a program: command line, exit status, manual page, completion, colour."""

import json
import os
import pty
import subprocess

import pytest

from tests.support import binaries

USAGE, FAILED = 2, 3


def tool(*words, **overrides):
    """Runs the tool with PATH as its only variable; returns its output and exit status."""
    options = {"capture_output": True, "text": True, "timeout": 60, "env": {"PATH": os.environ["PATH"]}}
    return subprocess.run([binaries.directory() / "podwire", *words], check=False, **{**options, **overrides})


def commands():
    """Returns the names of the commands from the tool's completion."""
    return tool("completion", "words", "--", "").stdout.split()


def test_each_command_has_help():
    """The help of each command is printed on stdout, and its first line is its usage."""
    assert {"list", "completion", "man"} <= set(commands())
    for name in commands():
        done = tool(name, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: podwire {name} ")


@pytest.mark.parametrize("words", [["no-such-command"], ["list", "--no-such-option"], ["list", "too much"]])
def test_wrong_usage_is_reported_on_stderr(words):
    """Wrong usage causes exit status 2 and a message that names the wrong word."""
    done = tool(*words)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "usage: podwire" in done.stderr
    assert words[-1] in done.stderr


def test_json_option_prints_a_document():
    """With --json a command prints one JSON document."""
    assert json.loads(tool("list", "--json").stdout) == binaries.names()


def test_bash_completion(tmp_path):
    """The script for bash completes commands, options and networks of net.d."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "podwire").symlink_to(binaries.directory() / "podwire")
    (tmp_path / "10.conf").write_text('{"name": "pods", "type": "bridge"}')
    script = """
        source <(podwire completion bash)
        complete -p podwire
        for line in "podwire comp" "podwire list --j"; do
            COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _podwire; echo "${COMPREPLY[@]}"
        done
    """
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "NETCONFPATH": str(tmp_path)}
    done = subprocess.run(["bash", "-ec", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["complete -o default -F _podwire podwire", "completion", "--json"], done.stderr


def test_form_of_the_manual_page():
    """The manual page has the header of a manual page and a section for each command."""
    page = tool("man").stdout
    assert page.startswith(".TH PODWIRE 1 ")
    assert all(f'\n.SS "podwire {name}' in page.replace("\\-", "-") for name in commands())


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals(env, coloured, tmp_path):
    """Output is coloured on a terminal that supports it, and in a pipe only with --color."""
    (tmp_path / "10.conf").write_text("nonsense")
    words = ["lint", str(tmp_path / "10.conf")]
    primary, secondary = pty.openpty()
    try:
        tool(*words, env=env, capture_output=False, stdout=secondary, stderr=secondary)
        assert (b"\033[" in os.read(primary, 65536)) == coloured
    finally:
        os.close(primary)
        os.close(secondary)
    assert "\033[" not in tool(*words).stdout
    assert "\033[" in tool(*words, "--color", "always").stdout


def test_closed_stdout_causes_no_traceback():
    """A reader that closes the pipe early causes no traceback."""
    readable, writable = os.pipe()
    os.close(readable)
    try:
        done = tool("man", capture_output=False, stdout=writable, stderr=subprocess.PIPE)
    finally:
        os.close(writable)
    assert done.returncode in (1, FAILED)
    assert "Traceback" not in done.stderr
