"""Networks of the tests, and the plugins of a machine, run by hand as libcni runs them.

One rule: the plugins are those of /opt/cni/bin, and use every other file at the path that a runtime's plugins use.
"""

import json
from typing import Any

from tests.support.invocation import Outcome
from tests.support.machine import BIN_DIR, Machine
from tests.support.netlist import Run


def host_local(*subnets: str) -> dict[str, Any]:
    """Returns an IPAM configuration with an address of each subnet and default routes."""
    routes = [{"dst": "::/0" if ":" in subnet else "0.0.0.0/0"} for subnet in subnets]
    return {"type": "host-local", "ranges": [[{"subnet": subnet}] for subnet in subnets], "routes": routes}


def bridge(*subnets: str, name: str = "cni0", **keys: Any) -> dict[str, Any]:
    """Returns the configuration of bridge as the first plugin of a list."""
    defaults = {"isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": host_local(*subnets)}
    return {"type": "bridge", "bridge": name, **defaults, **keys}


def run_on(machine: Machine, container_id: str, netns: str, ifname: str = "eth0") -> Run:
    """Returns a function that runs a plugin for one attachment; a failure fails the test; `netns` may be ""."""
    names = {"CONTAINERID": container_id, "NETNS": netns, "IFNAME": ifname, "PATH": str(BIN_DIR)}

    def run(plugin: str, command: str, config: dict[str, Any]) -> Outcome:
        variables = [f"CNI_{name}={value}" for name, value in {**names, "COMMAND": command}.items()]
        output = machine.run("env", *variables, str(BIN_DIR / plugin), stdin=json.dumps(config))
        return Outcome(0, output.encode(), "")

    return run
