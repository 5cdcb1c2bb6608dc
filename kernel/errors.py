"""Errors of requests that the kernel refused.

An error names the action and the object. Code branches on its errno, never on its text.
"""

from __future__ import annotations

import errno as numbers
import os

from cni.errors import CniError, Code

# The hint for each errno that has a single meaning in the requests of this package.
_HINTS = {
    numbers.EPERM: "this needs root with CAP_NET_ADMIN in the network namespace",
    numbers.EXFULL: "the bridge is full: the kernel allows 1023 ports",
    numbers.ENETUNREACH: "a gateway must be in the subnet of one of the interface's addresses",
    numbers.EHOSTUNREACH: "a gateway must be in the subnet of one of the interface's addresses",
    numbers.EOPNOTSUPP: "the kernel lacks this, perhaps a module is not loaded",
    numbers.EMSGSIZE: "the request exceeds the socket buffer: raise net.core.wmem_max on the host",
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
    """A refused request: its `description` ('set "veth3f2a" up'), `errno`, and the kernel's `explanation`, if any.

    Uncaught, it is the plugin's error: code 999, the "failed to ..." text of the reference plugins, and as details
    the explanation and a hint, if known.
    """

    def __init__(self, description: str, errno: int, explanation: str = "") -> None:
        details = "; ".join(filter(None, (explanation, _HINTS.get(errno, ""))))
        super().__init__(Code.INTERNAL, f"failed to {description}: {reason(errno)}", details)
        self.description = description
        self.errno = errno
        self.explanation = explanation

    def __str__(self) -> str:
        return f"{self.description}: {reason(self.errno)}" + (f" ({self.explanation})" if self.explanation else "")
