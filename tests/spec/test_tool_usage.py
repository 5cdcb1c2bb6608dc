"""The operator's tool with a wrong command line: misspelt words, invalid values, missing rights."""

import os
import subprocess

import pytest

from tests.spec.test_tool import USAGE, tool
from tests.support import binaries

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
        (("show", "--jsn"), "unrecognized: --jsn; did you mean --json?; see podwire show --help"),
        (("list", "--nothing-like-it"), "unrecognized: --nothing-like-it; see podwire list --help"),
    ],
)
def test_misspelt_word_is_rejected_with_a_suggestion(words, text):
    """Commands and options cannot be abbreviated; the message for a misspelt word suggests a similar one."""
    done = tool(*words)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert text in done.stderr


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
        ("add", "podwire", "/nonexistent", "--capability-args", "[]"),
        ("add", "podwire", "/nonexistent", "--args", "K"),
        ("add", "podwire", "/nonexistent", "--ifname", "a/b"),
        ("add", "podwire", "/nonexistent", "--container-id", "a b"),
        ("del", "podwire"),
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
