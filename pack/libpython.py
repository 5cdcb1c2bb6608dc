"""Sets the writable memory of Python's libraries apart from libc's, so that one can be dumped without the other.

One rule: an object file with Python state keeps no plain .data, .bss or thread-local section, and `stray_sections`
proves it from the linker's map; state left there would silently be reset at every start.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

RENAMES = {
    ".PyRuntime": "pydata,alloc,load,data,contents",
    ".data": "pydata,alloc,load,data,contents",
    ".bss": "pybss,alloc",
    ".bss.heap": "pyheap,alloc",
}

# A line of the map: section, address, size, file. Long section names have the rest on a line of its own.
_MAP_LINE = re.compile(r"^ (\.t?(?:data|bss)\S*|COMMON)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+(\S+)", re.MULTILINE)
# Constants that only the loader writes to, equal in every process, may stay where they are.
_CONSTANT = ".data.rel.ro"
# Thread-local variables there may be, from Python 3.12 on: the thread's state, which launch.c sets at every start; the
# package of an extension module while that is imported; and where the allocator mimalloc, which nothing uses, would be.
_THREAD_LOCAL = ("(pystate.o)", "(import.o)", "(obmalloc.o)")


def rename_sections(tools: str, objects: Path, out: Path) -> None:
    """Writes a copy of an object file or archive with its writable sections renamed, by the objcopy of this prefix."""
    options = [f"--rename-section={old}={new}" for old, new in RENAMES.items()]
    # No constructor runs: that of mimalloc, in Python 3.13, would ask the environment and /proc at every start.
    # No debugger and no C++ unwinds our frames.
    removed = [f"--remove-section={section}" for section in (".init_array", ".eh_frame")]
    command = [f"{tools}objcopy", "-D", *removed, *options, str(objects), str(out)]
    subprocess.run(command, check=True)


def stray_sections(linker_map: str, files: list[str]) -> list[str]:
    """Returns the plain writable sections that, says the map, come from one of these objects and archives."""
    return [
        f"{section} of {origin}"
        for section, size, origin in _MAP_LINE.findall(linker_map)
        if int(size, 16)
        and not section.startswith(_CONSTANT)
        and not (section.startswith(".t") and origin.endswith(_THREAD_LOCAL))
        and origin.startswith(tuple(files))
    ]
