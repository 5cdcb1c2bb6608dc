"""Programs of the system that print what netlink and files do not show: iptables-legacy's rules, containerd's settings.

One rule: they only print, and change nothing.
"""

from __future__ import annotations

import os

from cni.errors import CniError, Code
from kernel.netfilter import iptables
from kernel.system import PROGRAM_DIRECTORIES
from process import child
from process.child import ChildCommand
from process.stderr import one_line

_LIMIT_S = 5.0


def find_program(name: str, path: str = "") -> str:
    """Returns the path of a program in the directories of `path` (a PATH) or of the system, "" if there is none."""
    paths = (f"{one}/{name}" for one in (*path.split(":"), *PROGRAM_DIRECTORIES) if os.path.isabs(one))
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def get_output_lines(program: str, *options: str) -> list[str]:
    """Runs a program and returns the lines of its output; raises CniError if it fails."""
    (outcome,) = child.run(ChildCommand((program, *options), {"LC_ALL": "C"}, capture_stderr=True), limit_s=_LIMIT_S)
    if outcome.status:
        stderr = one_line(outcome.stderr.decode("utf-8", "replace").strip())
        raise CniError(Code.IO_FAILURE, f"{' '.join((program, *options))}: {outcome.ending}: {stderr}")
    return outcome.stdout.decode("utf-8", "replace").splitlines()


def list_legacy_rules(version: int, table: str) -> list[str]:
    """Returns the rules of a table of iptables-legacy, as its option -S prints them; [] if there is no such table.

    Raises CniError if the table exists and the program is not installed: no other program lists its rules.
    """
    if not iptables.has_legacy(version, table):
        return []
    program = require_legacy_program(f"{iptables.TOOLS[version]}-legacy")
    return get_output_lines(program, "-t", table, "-S")


def require_legacy_program(name: str) -> str:
    """Returns the path of a program of iptables-legacy, which has rules; raises CniError if it is not installed."""
    if program := find_program(name):
        return program
    msg = f"iptables-legacy has rules, but {name} is not installed: they cannot be read"
    raise CniError(Code.IO_FAILURE, msg, f"install the program {name}")
