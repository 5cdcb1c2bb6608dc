"""Runs the plugins of a machine by hand, as libcni runs them.

One rule: the plugins are those of /opt/cni/bin, and use every other file at the path that a runtime's plugins use.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.invocation import Outcome
from tests.support.machine import BIN_DIR, Machine
from tests.support.netlist import Run


def run_on(machine: Machine, container_id: str, netns: str, ifname: str = "eth0") -> Run:
    """Returns a function that runs a plugin for one attachment; a failure fails the test.

    `netns` is a path on the machine, or "".
    """
    names = {"CONTAINERID": container_id, "NETNS": netns, "IFNAME": ifname, "PATH": str(BIN_DIR)}

    def run(plugin: str, command: str, config: dict[str, Any]) -> Outcome:
        variables = [f"CNI_{name}={value}" for name, value in {**names, "COMMAND": command}.items()]
        output = machine.run("env", *variables, str(BIN_DIR / plugin), stdin=json.dumps(config))
        return Outcome(0, output.encode(), "")

    return run
