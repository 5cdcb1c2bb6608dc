"""The programs of iptables, of a variant that a test chooses: directories to put in front of PATH, and their tables.

One rule: the programs are the machine's own; what stands before them only passes their arguments on.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.namespaces import Namespace

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("iptables", "ip6tables")


def path(tools: Path | str) -> dict[str, str]:
    """Returns the variables with which a plugin finds the programs in `tools` before the machine's."""
    return {"PATH": f"{tools}:{SYSTEM_PATH}"}


def variant(directory: Path, name: str) -> Path:
    """Makes a directory in which iptables and its company are of variant "nft" or "legacy", and returns it."""
    directory.mkdir()
    for tool in TOOLS:
        for suffix in ("", "-restore", "-save"):
            (directory / f"{tool}{suffix}").symlink_to(f"/usr/sbin/xtables-{name}-multi")
    return directory


def counted(tools: Path, directory: Path) -> Path:
    """Makes a directory of the same programs that note each start, to be read by `calls`, and returns it."""
    directory.mkdir()
    for program in tools.iterdir():
        wrapper = directory / program.name
        wrapper.write_text(f'#!/bin/sh\necho {program.name} >> {directory}/notes\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
    return directory


def calls(tools: Path) -> list[str]:
    """Returns the programs that were run since the last call; `tools` are `counted`."""
    notes = tools / "notes"
    found = sorted(notes.read_text().split()) if notes.exists() else []
    notes.unlink(missing_ok=True)
    return found


def saved(host: Namespace, tools: Path, table: str = "nat") -> dict[str, list[str]]:
    """Returns a table by tool: chains that are not built in and rules, as iptables-save prints them."""
    found = {}
    for tool in TOOLS:
        lines = host.run(f"{tools}/{tool}-save", "-t", table).splitlines()
        found[tool] = [line.partition(" - [")[0] for line in lines if line.startswith("-A") or " - [" in line]
    return found


def load(host: Namespace, tools: Path, *lines: str, tool: str = "iptables", table: str = "nat") -> None:
    """Applies lines to a table; a failure fails the test."""
    file = tools.parent / "lines"
    file.write_text("\n".join((f"*{table}", *lines, "COMMIT", "")))
    host.run(f"{tools}/{tool}-restore", "--noflush", str(file))
