"""--explain: runs podwire's plugins with a log of their own and prints the steps and changes in it.

Each call has its own temporary log, deleted afterwards; the configured log is not written to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from cni import gojson
from cni.errors import CniError, Code
from podwire.output import Output
from podwire.verbs import invoke, printing
from podwire.verbs.invoke import PluginCall, PluginOutcome
from podwire.verbs.log_text import format_line
from process import files

_DIRECTORIES = ("/run", "/tmp")  # the second without root
_IN_HEADER = ("network", "containerID", "ifname", "netns")  # in the command's first line
_MOST_BYTES = 1 << 22


def execute_with_log(call: PluginCall) -> PluginOutcome:
    """Runs a plugin's file with a temporary log; the step has the log's lines."""
    directory = next((one for one in _DIRECTORIES if os.access(one, os.W_OK)), _DIRECTORIES[-1])
    path = f"{directory}/podwire-{os.getpid()}.log"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise CniError(
            Code.IO_FAILURE, f"cannot create {path}: {error.strerror}", "--explain needs this file"
        ) from error
    try:
        done = invoke.execute(replace(call, env={**call.env, "PODWIRE_LOG": path, "PODWIRE_LOG_LEVEL": "debug"}))
        return replace(done, account=_lines(files.read(path, _MOST_BYTES)))
    finally:
        with suppress(OSError):
            os.unlink(path)


def print_explained(out: Output, done: PluginOutcome) -> None:
    """Prints a step and the log lines of its plugin."""
    printing.print_step(out, done)
    for line in done.account:
        for text in format_line({key: value for key, value in line.items() if key not in _IN_HEADER}):
            out.print(f"    {text}")
    if not done.account:
        out.print(f"    {done.kind} wrote no log: it is not podwire's, or an older version")


def _lines(text: bytes) -> tuple[Mapping[str, object], ...]:
    objects = []
    for line in text.splitlines():
        with suppress(ValueError):
            value = gojson.loads(line)
            objects += [value] if isinstance(value, dict) else []
    return tuple(objects)
