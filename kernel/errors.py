"""What the kernel answers when it refuses.

One rule: an error says what was being done to what; its number decides, never its text.
"""

from __future__ import annotations

import os


def reason(number: int) -> str:
    """Returns an errno's text as Go prints it, in lower case: runtimes look for "no such file or directory"."""
    return os.strerror(number).lower()


class KernelError(Exception):
    """A refused request: `doing` ('set "veth3f2a" up'), `errno`, and the kernel's own explanation if it gave one."""

    def __init__(self, doing: str, errno: int, explanation: str = "") -> None:
        super().__init__(f"{doing}: {reason(errno)}" + (f" ({explanation})" if explanation else ""))
        self.doing = doing
        self.errno = errno
        self.explanation = explanation
