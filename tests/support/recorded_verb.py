"""A verb of a plugin with a record of what it changes, or would change: the sources, run in a process of their own.

One rule: delegates are run inside that process, as in the executable; CNI_PATH is made for that.
"""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cni import args as cni_args
from cni import conf as cni_conf
from cni import skel
from podwire.main import PLUGINS
from process import record
from tests.support.chained import Chain
from tests.support.namespaces import Namespace

PLANNED, EXECUTED = "planned", "made"


def run_recorded(
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
    config = json.dumps(chain.config(plugin, prev_result, **keys)).encode()
    with chain.host.entered():
        text = _in_a_child(lambda: _told(how, plugin, names, config))
    found: dict[str, Any] = json.loads(text)
    return found


def _in_a_child(work: Callable[[], str]) -> str:
    """Runs it in a child of this process, which has all modules already; its traceback is on stderr if it fails."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            Path(f"/proc/self/fd/{writable}").write_text(work())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writable)
    with open(readable) as stream:
        text = stream.read()
    assert os.waitpid(pid, 0)[1] == 0, "the verb failed: see stderr"
    return text


def _told(how: str, name: str, env: Mapping[str, str], config: bytes) -> str:
    os.environ.update(env)  # a child's own: programs of iptables are found by it
    with tempfile.TemporaryDirectory() as directory:
        for other in PLUGINS:  # each is this program's own file, by which a delegate is known as ours
            Path(directory, other).symlink_to(os.readlink("/proc/self/exe"))
        args = cni_args.from_env({**os.environ, "CNI_PATH": f"{env['CNI_PATH']}:{directory}"})
        with record.recording(dry_run=how == PLANNED) as noted:
            conf = cni_conf.parse(config)
            result = skel.run_verb(PLUGINS[name], replace(args, stdin=config, delegates=PLUGINS), conf)
    shown = result.to_json(conf.cni_version) if result else None
    return json.dumps({"changes": noted.changes, "steps": [item.what for item in noted.steps], "result": shown})
