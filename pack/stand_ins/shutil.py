"""`shutil` for argparse, which asks how wide the terminal is, and for the warm-up, which removes its stage."""

import os
import sys


def get_terminal_size() -> os.terminal_size:
    """Returns what COLUMNS says, or the terminal of stdout, or 80 columns."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return os.terminal_size((int(columns), 24))
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (ValueError, OSError):
        return os.terminal_size((80, 24))


def rmtree(directory: str) -> None:
    """Removes a directory and all in it."""
    for place, _, names in os.walk(directory, topdown=False):
        for name in names:
            os.unlink(f"{place}/{name}")
        os.rmdir(place)
