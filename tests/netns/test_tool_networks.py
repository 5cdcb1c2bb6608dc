"""Every command with an argument NETWORK prints the same error for an unknown network."""

import os
import subprocess

import pytest

from podwire import cli
from podwire.command_tree import command_tree
from tests.support import binaries
from tests.support.namespaces import Namespace
from tests.support.tool import Tool

PODWIRE = binaries.directory() / "podwire"
LINES = [
    command.words.split()[1:] + ["nonesuch" if word.metavar == "NETWORK" else "nopod" for word in command.positionals]
    for command in command_tree(cli.build_parser()).leaves()
    if "NETWORK" in [word.metavar for word in command.positionals]
]
LINES += [["ipam", "free", "--gone", "nonesuch"], ["ipam", "free", "10.22.0.2", "nonesuch"]]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_unknown_network(words, host: Namespace, tmp_path):
    """The command fails with status 3, and names the existing networks and the unusable files."""
    tool = Tool(host, tmp_path)
    tool.configure({"type": "loopback"}, name="podnet")
    tool.cache.mkdir(parents=True)
    directory = tmp_path / "net.d"
    (directory / "broken.conf").write_text("{")
    line = [PODWIRE, *words, "--conf-dir", str(directory), "--cache-dir", str(tool.cache.parent)]
    with host.entered():
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    first, hint = done.stderr.splitlines()
    assert first == f'podwire: there is no network "nonesuch" in {directory}'
    assert hint.startswith(f"  networks there: podnet; {directory}/broken.conf: ")


@pytest.mark.parametrize(
    "words", ["repair", "add net pod", "check net pod", "del net pod", "gc net", "ipam free --gone", "status"]
)
def test_root_is_needed(words, tmp_path):
    """Each command that changes something or runs plugins reports that it needs root before it reads anything."""
    line, env = [PODWIRE, *words.split(), "--cache-dir", str(tmp_path)], {"PATH": os.environ["PATH"]}
    done = subprocess.run(line, env=env, user=65534, group=65534, capture_output=True, text=True, check=False)
    command = words.partition(" net")[0].partition(" --")[0]
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        f"podwire: podwire {command} needs root",
        f"  run it with sudo: sudo podwire {words} --cache-dir {tmp_path}",
    ]
