"""The executable for 64-bit ARM on an emulated machine: Debian's kernel for ARM, its netlink, real packets.

One rule: the machine boots once and attaches two pods, twice, to a network with all plugins; each test checks a part.
"""

import json
import re
from typing import NamedTuple

import pytest

from tests.support import arm64_machine
from tests.support.binaries import ROOT

pytestmark = pytest.mark.timeout(900)  # the emulated machine boots in a minute, on a busy one in several

PROGRAM = ROOT / "dist" / "arm64" / "bin" / "podwire"
NETWORK = {
    "cniVersion": "1.1.0",
    "name": "podnet",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": True,
            "ipMasq": True,
            "ipMasqBackend": "nftables",
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]]},
        },
        {"type": "portmap", "backend": "nftables", "snat": True, "capabilities": {"portMappings": True}},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        {"type": "firewall", "backend": "nftables"},
        {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
    ],
}
CAPABILITIES = {
    "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
    "bandwidth": {
        "ingressRate": 80_000_000,
        "ingressBurst": 8_000_000,
        "egressRate": 80_000_000,
        "egressBurst": 8_000_000,
    },
}
FAULTS = 230  # measured 188
ROUNDS = ("one", "two")
_STORE = "/var/lib/cni/networks"
FILES = [
    f"{_STORE}.podwire/podnet",
    *(f"{_STORE}/podnet/{name}" for name in ("last_reserved_ip.0", "last_reserved_ip.1", "lock")),
]
# `run NAME COMMAND...` prints the command's output between two lines with its name, the second with its status.
SCRIPT = f"""
run() {{ name=$1; shift; echo "@ $name"; "$@" </dev/null 2>&1; echo "@ $name = $?"; }}
in_pod() {{ pod=$1; shift; nsenter --net=/run/netns/$pod "$@"; }}
state() {{ ip addr; ip route show table all; ip -6 route show table all; find /var/lib/cni -type f | sort; }}

mkdir -p /etc/cni/net.d /run/netns /var/lib/cni
echo '{json.dumps(NETWORK)}' >/etc/cni/net.d/10-podnet.conflist
for pod in first second; do
    touch /run/netns/$pod
    unshare -n mount --bind /proc/self/ns/net /run/netns/$pod
done
run install /podwire install
in_pod first nc -ll -p 80 -e echo hello &
export PATH=/opt/cni/bin:$PATH NO_COLOR=1
run version env CNI_COMMAND=VERSION time -v loopback
run lint podwire lint
run status podwire status podnet
for turn in {" ".join(ROUNDS)}; do
    run $turn-add-first podwire add podnet first --capability-args '{json.dumps(CAPABILITIES)}'
    run $turn-add-second podwire add podnet second
    run $turn-pod in_pod first ip addr show dev eth0
    run $turn-check podwire check podnet first
    run $turn-host-port in_pod second nc -w 20 10.22.0.1 8080
    run $turn-ping in_pod first ping -c 1 -W 20 fd00:22::1
    run $turn-del-first podwire del podnet first
    run $turn-closed in_pod second nc -w 20 10.22.0.1 8080
    run $turn-del-second podwire del podnet second
    run $turn-state state
done
"""


class Outcome(NamedTuple):
    """The exit status and the output of a command of the script."""

    status: int
    text: str


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Outcome]:
    """The outcomes of all commands of the script, by name."""
    if not PROGRAM.is_file():
        pytest.fail(f"no {PROGRAM}: run `make arm64`", pytrace=False)
    console = arm64_machine.boot(tmp_path_factory.mktemp("machine"), SCRIPT, {"podwire": PROGRAM.read_bytes()})
    return sections(console)


def sections(console: str) -> dict[str, Outcome]:
    """Returns the outcome of each command that `run` of the script has printed, by its name."""
    printed = re.findall(r"^@ (\S+)\n(.*?)^@ \1 = (\d+)$", console, re.MULTILINE | re.DOTALL)
    return {name: Outcome(int(status), text) for name, text, status in printed}


def test_every_verb_of_every_plugin_succeeds(outcomes):
    """`podwire install` succeeds, and then STATUS, ADD, CHECK and DEL of the whole chain, twice."""
    expected = dict.fromkeys(("install", "version", "lint", "status"), 0)
    for turn in ROUNDS:
        steps = (
            "add-first",
            "add-second",
            "pod",
            "check",
            "host-port",
            "ping",
            "del-first",
            "closed",
            "del-second",
            "state",
        )
        expected |= {f"{turn}-{step}": int(step == "closed") for step in steps}
    assert {name: status for name, (status, _) in outcomes.items()} == expected, outcomes
    assert outcomes["install"].text.count("installed /opt/cni/bin/") == len(list(PROGRAM.parent.iterdir()))


def test_a_start_copies_few_pages(outcomes):
    """VERSION causes few page faults with the layout that the image builder learned in qemu."""
    (faults,) = re.findall(r"Minor .* page faults: (\d+)", outcomes["version"].text)
    assert int(faults) <= FAULTS


@pytest.mark.parametrize("turn", ROUNDS)
def test_the_pod_has_addresses_and_mtu(outcomes, turn):
    """The pod's interface has an address of each range and tuning's MTU; the gateway answers it."""
    shown = outcomes[f"{turn}-pod"].text
    assert re.findall(r"mtu (\d+)", shown) == ["1400"]
    assert len(re.findall(r"inet 10\.22\.0\.\d+/24 brd 10\.22\.0\.255 scope global eth0", shown)) == 1
    assert len(re.findall(r"inet6 fd00:22::\d+/64 scope global", shown)) == 1
    assert "1 packets received" in outcomes[f"{turn}-ping"].text


@pytest.mark.parametrize("turn", ROUNDS)
def test_a_host_port_is_open_until_del(outcomes, turn):
    """Another pod connects to the first through the host port, until DEL of the first."""
    assert outcomes[f"{turn}-host-port"].text == "hello\n"
    assert "hello" not in outcomes[f"{turn}-closed"].text


def test_del_leaves_only_the_network(outcomes):
    """DEL leaves the bridge and the network's files, and the second round leaves the same state as the first."""
    first, second = (stable_lines(outcomes[f"{turn}-state"].text) for turn in ROUNDS)
    assert first == second
    assert re.findall(r"veth|bwp|results", "".join(first)) == []
    assert [line for line in first if line.startswith("/")] == FILES


def stable_lines(text: str) -> list[str]:
    """Returns the lines without the parts that follow the carrier: flags, and link-local IPv6 addresses."""
    lines = re.sub(r"NO-CARRIER,|LOWER_UP,?| tentative| linkdown", "", text).splitlines()
    return [line for line in lines if "fe80:" not in line and " ff00::" not in line]
