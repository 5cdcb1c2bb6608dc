"""The operator's tool as a program: command line, wrong usage, exit status, completion, colour."""

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


NETWORK = '{"cniVersion": "1.0.0", "name": "podwire", "plugins": [{"type": "bridge"}]}'


@pytest.fixture
def net_d(tmp_path):
    """Variables with $NETCONFPATH, a directory with one network."""
    (tmp_path / "10.conflist").write_text(NETWORK)
    return {"NETCONFPATH": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("docter",), 'COMMAND: there is no "docter"; did you mean "doctor"?'),
        (("ipam", "lst"), 'COMMAND: there is no "lst"; did you mean "list"?'),
        (("completion", "bsh"), 'SHELL: there is no "bsh"; did you mean "bash"?'),
        (("show", "--jso"), "unrecognized: --jso; did you mean --json?; see podwire show --help"),
        (("list", "--nothing-like-it"), "unrecognized: --nothing-like-it; see podwire list --help"),
    ],
)
def test_misspelt_word_is_rejected_with_a_suggestion(words, text):
    """Commands and options cannot be abbreviated; the message for a misspelt word suggests a similar one."""
    done = tool(*words)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert text in done.stderr
    assert done.stderr.startswith(f"usage: podwire {words[0] if len(words) > 1 else '['}")


def test_misspelt_network_is_rejected_with_a_suggestion(root, net_d):
    """The message for an unknown network suggests the most similar name."""
    done = tool("status", "podwrie", env=net_d)
    assert (done.returncode, 'did you mean "podwire"? networks there: podwire' in done.stderr) == (3, True), done.stderr


def test_help_is_a_command_too():
    """`podwire help ...` prints the same as `podwire ... --help`, and completes commands."""
    for words in ((), ("doctor",), ("ipam", "free")):
        done = tool("help", *words)
        assert (done.returncode, done.stdout) == (0, tool(*words, "--help").stdout)
    assert "doctor" in tool("completion", "words", "--", "help", "").stdout.split()
    assert tool("help", "no-such-command").returncode == USAGE


@pytest.mark.parametrize(
    "words",
    [
        ("add", "podwire", "/nonexistent", "--capability-args", "{"),
        ("add", "podwire", "/nonexistent", "--container-id", "a b"),
        ("ipam", "free"),
        ("repair", "--settle", "nan"),
        ("repair", "--settle", "-1"),
        ("install", "--subnet", "10.0.0.0/8", "--dry-run"),
        ("install", "--conf", "--dry-run"),
        ("install", "--conf", "--subnet", "10.22.0.1/16", "--dry-run"),
        ("install", "--conf", "x.txt", "--dry-run"),
    ],
)
def test_invalid_value_is_wrong_usage(root, net_d, words):
    """An invalid value has the exit status of an unknown option, whatever else is wrong on the node."""
    done = tool(*words, env=net_d)
    assert (done.returncode, done.stdout) == (USAGE, ""), done
    assert "Traceback" not in done.stderr


def test_printed_sudo_command_is_complete(root, net_d):
    """Without root, the printed command has every argument, quoted, and the variables that sudo removes."""
    line = ["unshare", "--mount", "sh", "-ec", 'mount --bind "$1" /mnt; shift; exec "$@"', "sh"]
    line += [str(binaries.directory()), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/mnt/podwire"]
    words = ["gc", "podwire", "--cache-dir", "a b"]
    done = subprocess.run([*line, *words], env=net_d, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    expected = f"run it with sudo: sudo NETCONFPATH={net_d['NETCONFPATH']} podwire gc podwire --cache-dir 'a b'"
    assert expected in done.stderr


@pytest.mark.parametrize("text", ['{"name": "x",}', "{'name': 'x'}", '{"name": "x"\n "type": "bridge"}', ""])
def test_invalid_json_is_reported_with_line_and_column(root, net_d, tmp_path, text):
    """`status` and `doctor` report line, column and fix of a file with invalid JSON, as `lint` does."""
    (tmp_path / "20.conflist").write_text(text)
    lint = tool("lint", "--no-bin-dir", str(tmp_path / "20.conflist")).stdout.splitlines()
    line, column, problem = lint[0].partition("20.conflist:")[2].replace(" error:", "").split(":", 2)
    expected = f"line {line}, column {column}: {problem.strip()}"
    for words in (("status",), ("doctor",), ("status", "absent")):
        done = tool(*words, env=net_d)
        assert expected in done.stdout + done.stderr, (words, expected, done)
