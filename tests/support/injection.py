"""Runs a verb under strace's injection: system calls that fail, and signals that arrive during them.

One rule: an injection is strace's text ("sendto:signal=SIGTERM:when=2"), documented in its manual.
"""

import subprocess
from collections.abc import Mapping
from typing import IO, Any

from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace


def run_injected(
    host: Namespace,
    plugin: str,
    command: str,
    config: Mapping[str, Any],
    pod: Namespace,
    injection: str = "",
    *,
    stdout: int | IO[bytes] = subprocess.PIPE,
    redirection: str = "",
    follow: bool = False,
) -> Outcome:
    """Runs one verb of a built plugin for eth0 of `pod`; with `follow`, the injection applies to its children, too.

    The result goes to `stdout`, or to the shell's `redirection` (">&-"); by default the outcome contains it.
    """
    strace = ["strace", *(["-f"] if follow else []), "-o", "/dev/null"]
    strace += ["-e", f"inject={injection}"] if injection else []
    before = ["sh", "-c", f'exec "$0" "$@" {redirection}', *strace]
    how = {"host": host, "netns": pod, "container_id": pod.name, "stdout": stdout, "before": before}
    return run_plugin(plugin, command, config, **how)
