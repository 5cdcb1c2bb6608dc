"""The files of the plugins' log that this node has (docs/logs.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from podwire import attachments, networks
from podwire.node.records import Directories

DEFAULT = "/var/log/podwire/verbs.log"  # the path in docs/logs.md
_VARIABLE, _KEY = "PODWIRE_LOG", "logFile"


def list_files(env: Mapping[str, str], directories: Directories) -> list[str]:
    """Returns the log files that the environment and the networks name, and the usual one, if they exist.

    A configured file whose directory is missing is returned: no verb can be logged. Raises CniError(5) if net.d cannot
    be read. A runtime's environment is not read: it may contain secrets.
    """
    configured = [path for path in (env.get(_VARIABLE, ""), *_configured(directories)) if os.path.isabs(path)]
    unwritable = {path for path in configured if not os.path.isdir(os.path.dirname(path))}
    return [path for path in dict.fromkeys([*configured, DEFAULT]) if path in unwritable or os.path.isfile(path)]


def _configured(directories: Directories) -> Iterator[str]:
    """Yields the log files of the networks in net.d and in the cache."""
    configured = [file.network for file in networks.read_directory(directories.conf_dir)]
    cached = [one.network for one in attachments.list_cached(directories.layers)]
    for network in (*configured, *cached):
        yield from (str(plugin[_KEY]) for plugin in (network.plugins if network else ()) if plugin.get(_KEY))
