"""A verb of a plugin with a record of what it changes, or would change: the sources, run in a process of their own.

One rule: delegates are run inside that process, as in the executable; CNI_PATH is made for that.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cni import args as cni_args
from cni import conf as cni_conf
from cni import record, skel
from podwire.main import PLUGINS
from tests.support.chained import Chain
from tests.support.namespaces import Namespace
from tests.support.processes import output

PLANNED, MADE = "planned", "made"


def told(
    chain: Chain,
    how: str,
    plugin: str,
    command: str,
    pod: Namespace,
    prev_result: object = None,
    *,
    path: str = "",
    env: Mapping[str, str] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Returns `changes`, `steps` and `result` of one verb, which is PLANNED or MADE; a failure fails the test.

    `path` are directories of delegates that are not ours, `env` further variables.
    """
    names = {
        "CNI_PATH": path,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod.name,
        "CNI_NETNS": pod.path,
        "CNI_IFNAME": "eth0",
        **(env or {}),
    }
    words = [f"{name}={value}" for name, value in names.items()]
    config = json.dumps(chain.config(plugin, prev_result, **keys))
    with chain.host.entered():
        text = output("env", *words, sys.executable, "-m", __name__, how, plugin, stdin=config)
    found: dict[str, Any] = json.loads(text)
    return found


def _main(how: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for other in PLUGINS:  # each is this program's own file, by which a delegate is known as ours
            Path(directory, other).symlink_to(os.readlink("/proc/self/exe"))
        args = cni_args.from_env({**os.environ, "CNI_PATH": f"{os.environ['CNI_PATH']}:{directory}"})
        stdin = sys.stdin.buffer.read()
        with record.recorded(planned=how == PLANNED) as noted:
            own = replace(args, stdin=stdin, delegates=PLUGINS)
            conf = cni_conf.parse(stdin)
            result = skel.call(PLUGINS[name], own, conf)
    shown = result.to_json(conf.cni_version) if result else None
    print(json.dumps({"changes": noted.changes, "steps": [item.what for item in noted.steps], "result": shown}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
