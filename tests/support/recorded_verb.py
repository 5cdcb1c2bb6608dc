"""Runs a verb from the sources, in a child process, and records its changes, or in a dry run its planned changes.

One rule: delegates run inside the same process, as in the executable; CNI_PATH is prepared for that.
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
    mode: str,
    plugin: str,
    command: str,
    pod: Namespace,
    prev_result: object = None,
    *,
    path: str = "",
    env: Mapping[str, str] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Returns `changes`, `steps` and `result` of one verb, PLANNED or EXECUTED; a failure fails the test.

    `path` has directories of foreign delegates, `env` further variables.
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
        text = _in_a_child(lambda: _run_verb(mode, plugin, names, config))
    record_of_verb: dict[str, Any] = json.loads(text)
    return record_of_verb


def _in_a_child(work: Callable[[], str]) -> str:
    """Runs `work` in a forked child, which has all modules; prints the traceback of a failure to stderr."""
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


def _run_verb(mode: str, name: str, env: Mapping[str, str], config: bytes) -> str:
    os.environ.update(env)  # only the child's: the search for iptables' programs uses it
    with tempfile.TemporaryDirectory() as directory:
        for other in PLUGINS:  # this program's file, by which podwire recognises its own delegates
            Path(directory, other).symlink_to(os.readlink("/proc/self/exe"))
        args = cni_args.from_env({**os.environ, "CNI_PATH": f"{env['CNI_PATH']}:{directory}"})
        with record.recording(dry_run=mode == PLANNED) as recorded:
            conf = cni_conf.parse(config)
            result = skel.run_verb(PLUGINS[name], replace(args, stdin=config, delegates=PLUGINS), conf)
    result_json = result.to_json(conf.cni_version) if result else None
    return json.dumps(
        {"changes": recorded.changes, "steps": [item.what for item in recorded.steps], "result": result_json}
    )
