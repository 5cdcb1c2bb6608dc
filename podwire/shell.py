"""Names in the commands that the tool tells somebody to run.

One rule: such a command may be pasted as it is, whatever a file or an interface is called.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def quote(name: str) -> str:
    """Returns a name as one word of a shell's command line, in single quotes where they are needed."""
    return name if _PLAIN.fullmatch(name) else "'" + name.replace("'", "'\"'\"'") + "'"
