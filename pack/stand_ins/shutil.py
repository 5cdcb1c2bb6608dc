"""`shutil` for argparse, which needs the terminal's size, and for the warm-up, which deletes its directory."""

import os
import sys


def get_terminal_size() -> os.terminal_size:
    """Returns the size from COLUMNS, or that of stdout's terminal, or 80 columns."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return os.terminal_size((int(columns), 24))
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (ValueError, OSError):
        return os.terminal_size((80, 24))


def rmtree(directory: str) -> None:
    """Deletes a directory with its contents."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            os.unlink(f"{parent}/{name}")
        os.rmdir(parent)
