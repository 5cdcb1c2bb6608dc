"""Parses resolv.conf into the `dns` of a result.

One rule: unknown lines are skipped, as resolvers do.
"""

from __future__ import annotations

from cni.errors import CniError, Code
from cni.result import DNS
from process import files

_MAX_BYTES = 64 << 10  # a hundred times the usual size


def read(path: str) -> DNS:
    """Returns the settings in the file `path` (resolv.conf(5)); raises CniError(5) if the file cannot be read."""
    try:
        text = files.read(path, _MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CniError(Code.IO_FAILURE, f"open {path}: {reason}", 'it is the "resolvConf" of "ipam"') from error
    return parse(text)


def parse(text: str) -> DNS:
    """Returns the settings in `text`: the last domain, and all name servers, search domains and options."""
    lists: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    for line in text.split("\n"):
        key, *values = line.split() or [""]
        if values and key in lists:
            lists[key] += values if key in ("search", "options") else values[:1]
    return DNS(
        nameservers=tuple(lists["nameserver"]),
        domain=(lists["domain"] or [""])[-1],
        search=tuple(lists["search"]),
        options=tuple(lists["options"]),
    )
