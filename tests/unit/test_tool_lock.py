"""Two podwire processes that change the same directory or namespace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cni.errors import CniError
from podwire.lock import exclusive_lock, exclusive_namespace


def test_second_process_names_the_holder(tmp_path):
    """The second process does not wait, and its error names the process that holds the lock."""
    with subprocess.Popen(["flock", tmp_path, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin
        assert first.stdout
        first.stdin.write(b"\n")
        first.stdin.flush()
        first.stdout.readline()
        with pytest.raises(CniError) as caught, exclusive_lock(os.open(tmp_path, os.O_RDONLY), "installs here"):
            pass
        first.stdin.close()
    assert caught.value.msg == "another podwire installs here"
    assert caught.value.details == f"wait until it has finished; process {first.pid}: flock {tmp_path} cat"


LISTENER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as holder:
    holder.bind(sys.argv[1].replace("@", chr(0)))
    holder.listen()
    print(flush=True)
    input()
"""


def test_second_process_of_a_namespace_names_the_holder(tmp_path):
    """The second process in a namespace fails with the first one's ID; afterwards the namespace is free."""
    place = os.stat(tmp_path)
    line = [sys.executable, "-c", LISTENER, f"@podwire {place.st_dev}:{place.st_ino}"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin
        assert first.stdout
        first.stdout.readline()
        with pytest.raises(CniError) as caught, exclusive_namespace(place, "attaches here"):
            pass
        first.stdin.close()
    assert caught.value.msg == "another podwire attaches here"
    assert caught.value.details.startswith(f"wait until it has finished; process {first.pid}: {sys.executable} -c")
    with exclusive_namespace(place, "attaches here"):
        pass
