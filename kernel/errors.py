"""What the kernel answers when it refuses.

One rule: an error says what was being done to what; its number decides, never its text.
"""

from __future__ import annotations

import errno as numbers
import os

from cni.errors import CniError, Code

# The cure, where an errno means one thing in all that is asked of the kernel here.
_CURES = {
    numbers.EPERM: "this needs root with CAP_NET_ADMIN in the network namespace",
    numbers.EXFULL: "the bridge is full: the kernel allows 1023 ports",
    numbers.ENETUNREACH: "a gateway must be in the subnet of one of the interface's addresses",
    numbers.EHOSTUNREACH: "a gateway must be in the subnet of one of the interface's addresses",
    numbers.EOPNOTSUPP: "the kernel lacks this, perhaps a module is not loaded",
    numbers.EMSGSIZE: "too much at once for who is not root of the host: raise net.core.wmem_max there or ask for less",
    numbers.ENOMEM: "the kernel is out of memory",
    numbers.ENOBUFS: "the kernel is out of memory",
}


def reason(number: int) -> str:
    """Returns an errno's text as Go prints it, in lower case: runtimes look for "no such file or directory"."""
    try:
        return os.strerror(number).lower()
    except OverflowError:  # no errno
        return f"unknown error {number}"


class KernelError(CniError):
    """A refused request: `doing` ('set "veth3f2a" up'), `errno`, and the kernel's own explanation if it gave one.

    Where nobody has more to say it is the answer as it stands, code 999 with the reference's "failed to ..." text;
    `details` are the explanation and the cure, as far as they are known.
    """

    def __init__(self, doing: str, errno: int, explanation: str = "") -> None:
        details = "; ".join(filter(None, (explanation, _CURES.get(errno, ""))))
        super().__init__(Code.INTERNAL, f"failed to {doing}: {reason(errno)}", details)
        self.description = doing
        self.errno = errno
        self.explanation = explanation

    def __str__(self) -> str:
        return f"{self.description}: {reason(self.errno)}" + (f" ({self.explanation})" if self.explanation else "")
