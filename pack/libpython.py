"""Renames the writable sections of Python's libraries, so that their memory can be dumped without libc's.

One rule: an object file of Python has no .data, .bss or thread-local section; `stray_sections` proves this from the
linker's map. State in such a section would be reset at every start, without a message.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from pack import unwind

RENAMES = {
    ".PyRuntime": "pydata,alloc,load,data,contents",
    ".data": "pydata,alloc,load,data,contents",
    ".bss": "pybss,alloc",
    ".bss.heap": "pyheap,alloc",
    ".eh_frame": f"{unwind.SECTION},contents,readonly",  # not in memory: only debuggers use it
}

# A line of the map: section, address, size, file. After a long section name the rest is on the next line.
_MAP_LINE = re.compile(r"^ (\.t?(?:data|bss)\S*|COMMON)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+(\S+)", re.MULTILINE)
# Constants, which only the loader writes to: equal in every process, so they are not renamed.
_CONSTANT = ".data.rel.ro"
# The allowed thread-local variables, since Python 3.12: the thread's state, which launch.c sets at every start; the
# package of an extension module during its import; and the state of the allocator mimalloc, which is not used.
_THREAD_LOCAL = ("(pystate.o)", "(import.o)", "(obmalloc.o)")


def rename_sections(tools: str, objects: Path, out: Path) -> None:
    """Writes a copy of an object file or archive with renamed writable sections, with the objcopy of this prefix."""
    options = [f"--rename-section={old}={new}" for old, new in RENAMES.items()]
    # No constructors: mimalloc's, in Python 3.13, would read the environment and /proc at every start.
    command = [f"{tools}objcopy", "-D", "--remove-section=.init_array", *options, str(objects), str(out)]
    subprocess.run(command, check=True)


def stray_sections(linker_map: str, files: list[str]) -> list[str]:
    """Returns the plain writable sections in the map that come from one of these objects and archives."""
    return [
        f"{section} of {origin}"
        for section, size, origin in _MAP_LINE.findall(linker_map)
        if int(size, 16)
        and not section.startswith(_CONSTANT)
        and not (section.startswith(".t") and origin.endswith(_THREAD_LOCAL))
        and origin.startswith(tuple(files))
    ]
