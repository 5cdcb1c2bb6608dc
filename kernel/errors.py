"""What the kernel answers when it refuses.

One rule: an error says what was being done to what; its number decides, never its text.
"""

from __future__ import annotations

import os

from cni.errors import CniError, Code


def reason(number: int) -> str:
    """Returns an errno's text as Go prints it, in lower case: runtimes look for "no such file or directory"."""
    return os.strerror(number).lower()


class KernelError(CniError):
    """A refused request: `doing` ('set "veth3f2a" up'), `errno`, and the kernel's own explanation if it gave one.

    Where nobody has more to say it is the answer as it stands, code 999 with the reference's "failed to ..." text.
    """

    def __init__(self, doing: str, errno: int, explanation: str = "") -> None:
        super().__init__(Code.INTERNAL, f"failed to {doing}: {reason(errno)}", explanation)
        self.doing = doing
        self.errno = errno
        self.explanation = explanation

    def __str__(self) -> str:
        return f"{self.doing}: {reason(self.errno)}" + (f" ({self.explanation})" if self.explanation else "")
