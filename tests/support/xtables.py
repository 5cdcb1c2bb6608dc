"""The programs of iptables in the variant that a test chooses: directories for the start of PATH, and their tables.

One rule: the programs are the machine's; wrappers only pass on their arguments.
"""

from pathlib import Path

from tests.support.namespaces import Namespace

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("iptables", "ip6tables")


def path(tools: Path | str) -> dict[str, str]:
    """Returns the environment in which a plugin finds the programs in `tools` before the machine's."""
    return {"PATH": f"{tools}:{SYSTEM_PATH}"}


def variant(directory: Path, name: str) -> Path:
    """Creates a directory with the programs of iptables in the variant "nft" or "legacy", and returns it."""
    directory.mkdir()
    for tool in TOOLS:
        for suffix in ("", "-restore", "-save"):
            (directory / f"{tool}{suffix}").symlink_to(f"/usr/sbin/xtables-{name}-multi")
    return directory


def counted(tools: Path, directory: Path) -> Path:
    """Creates a directory with wrappers that record each start of the programs, for `calls`, and returns it."""
    directory.mkdir()
    for program in tools.iterdir():
        wrapper = directory / program.name
        wrapper.write_text(f'#!/bin/sh\necho {program.name} >> {directory}/notes\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
    return directory


def calls(tools: Path) -> list[str]:
    """Returns the programs that were run since the last call; `tools` is a directory of `counted`."""
    notes = tools / "notes"
    programs = sorted(notes.read_text().split()) if notes.exists() else []
    notes.unlink(missing_ok=True)
    return programs


def saved(host: Namespace, tools: Path, table: str = "nat") -> dict[str, list[str]]:
    """Returns the table of each tool: the user-defined chains and the rules, as iptables-save prints them."""
    by_tool = {}
    for tool in TOOLS:
        lines = host.run(f"{tools}/{tool}-save", "-t", table).splitlines()
        by_tool[tool] = [line.partition(" - [")[0] for line in lines if line.startswith("-A") or " - [" in line]
    return by_tool


def load(host: Namespace, tools: Path, *lines: str, tool: str = "iptables", table: str = "nat") -> None:
    """Applies lines to a table; a failure fails the test."""
    file = tools.parent / "lines"
    file.write_text("\n".join((f"*{table}", *lines, "COMMIT", "")))
    host.run(f"{tools}/{tool}-restore", "--noflush", str(file))
