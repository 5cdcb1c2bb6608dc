"""podman's files and calls for ipvlan networks, recorded on this kernel, which need not have ipvlan.

One rule: a script stands for the plugin. It stores its input, and prints the result of another kernel's plugin.
"""

import json

import pytest

from tests.support import podman_ipvlan
from tests.support.machine import BIN_DIR, CONF_DIR

pytestmark = pytest.mark.usefixtures("machine_unchanged")

PLUGIN = BIN_DIR / "ipvlan"
RESULT = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/web"}],
    "ips": [{"version": "4", "interface": 0, "address": "10.25.0.129/24", "gateway": "10.25.0.251"}],
    "routes": [{"dst": "0.0.0.0/0"}],
    "dns": {},
}
RECORDER = f"""#!/bin/sh -e
input=$(cat)
printf '%s\\n' "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_NETNS" "$CNI_IFNAME" "$CNI_PATH" "$CNI_ARGS" "$input" >> CALLS
case $CNI_COMMAND in
VERSION) printf '%s' "$input" | {BIN_DIR}/real/ipvlan;;
ADD) printf '%s' '{json.dumps(RESULT)}';;
esac
"""


@pytest.fixture
def calls(podman):
    """Yields a function that returns and forgets the calls of ipvlan, except VERSION; restores the plugin."""
    machine = podman.machine
    if not podman("version", "--format={{.Client.Version}}").startswith("4.3."):
        pytest.skip("the recorded files and calls are those of podman 4.3")
    path = machine.scratch / "calls"
    machine.run("mkdir", str(BIN_DIR / "real"))
    machine.run("mv", str(PLUGIN), str(BIN_DIR / "real"))
    machine.write(PLUGIN, RECORDER.replace("CALLS", str(path)))
    machine.run("chmod", "755", str(PLUGIN))

    def read():
        lines = path.read_text().splitlines()
        path.unlink()
        return [lines[first : first + 7] for first in range(0, len(lines), 7) if lines[first] != "VERSION"]

    yield read
    machine.run("mv", str(BIN_DIR / "real" / "ipvlan"), str(PLUGIN))
    machine.run("rmdir", str(BIN_DIR / "real"))


REQUESTS = {
    "none": ((), {}, []),
    "address and MAC address": (
        ("--ip=10.25.0.140", "--mac-address=02:00:00:00:00:07"),
        {"MAC": "02:00:00:00:00:07", "IP": "10.25.0.140"},
        [],
    ),
    "two addresses": (("--ip=10.25.0.140", "--ip6=fd00:25::77"), {}, ["10.25.0.140", "fd00:25::77"]),
}


@pytest.mark.parametrize(
    ("kind", "request_kind"), [("l2", name) for name in REQUESTS] + [("l3", "none"), ("internal", "none")]
)
def test_files_and_calls_equal_the_recorded_ones(podman, calls, kind, request_kind):
    """Podman writes the recorded file, and calls ADD and DEL with the recorded environment and configuration."""
    options, in_args, in_runtime_config = REQUESTS[request_kind]
    network = podman_ipvlan.network(kind)
    if in_runtime_config:
        network = network.with_capabilities(ips=in_runtime_config)
    with podman.network(podman_ipvlan.NAME, "--driver=ipvlan", *podman_ipvlan.OPTIONS[kind]) as name:
        written = podman.machine.run("cat", str(CONF_DIR / f"{name}.conflist"))
        assert json.loads(written) == podman_ipvlan.file(kind)
        web = podman.start("web", *options, network=name)
        container_id = podman("inspect", "--format={{.Id}}", "web")
        netns = podman("inspect", "--format={{.NetworkSettings.SandboxKey}}", "web")
        assert web.networks[name]["IPAddress"] == "10.25.0.129"
        podman.remove("web")
    (plugin,) = network.plugins
    environment = [container_id, netns, "eth0", str(BIN_DIR), podman_ipvlan.cni_args("web", in_args)]
    recorded = calls()
    assert [call[:-1] for call in recorded] == [["ADD", *environment], ["DEL", *environment]]
    add, delete = (json.loads(call[-1]) for call in recorded)
    assert add == network.request(plugin, None)
    assert delete == network.request(plugin, RESULT)
