"""Stand-ins for the host's programs: shell scripts in a directory for PATH."""

from pathlib import Path


def install(directory: Path, **scripts: str) -> Path:
    """Writes a script for each program, by its name, and returns the directory."""
    directory.mkdir(exist_ok=True)
    for name, script in scripts.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return directory
