"""The executable for 64-bit ARM on an emulated machine: Debian's kernel for ARM, its netlink, real packets.

One rule: one boot, in which two pods live and end on a network of every plugin there is; each test looks at a part.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import pytest

from tests.support import arm64_machine
from tests.support.binaries import ROOT

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
LIVES = ("one", "two")
_STORE = "/var/lib/cni/networks"
FILES = [
    f"{_STORE}.podwire/podnet",
    *(f"{_STORE}/podnet/{name}" for name in ("last_reserved_ip.0", "last_reserved_ip.1", "lock")),
]
# Each `run NAME COMMAND...` shows the command's output between two lines with its name, the second with its status.
SCRIPT = f"""
run() {{ name=$1; shift; echo "@ $name"; "$@" </dev/null 2>&1; echo "@ $name = $?"; }}
inside() {{ pod=$1; shift; nsenter --net=/run/netns/$pod "$@"; }}
everything() {{ ip addr; ip route show table all; ip -6 route show table all; find /var/lib/cni -type f | sort; }}

mkdir -p /etc/cni/net.d /run/netns /var/lib/cni
echo '{json.dumps(NETWORK)}' >/etc/cni/net.d/10-podnet.conflist
for pod in first second; do
    touch /run/netns/$pod
    unshare -n mount --bind /proc/self/ns/net /run/netns/$pod
done
run install /podwire install
inside first nc -ll -p 80 -e echo hello &
export PATH=/opt/cni/bin:$PATH NO_COLOR=1
run version env CNI_COMMAND=VERSION time -v loopback
run lint podwire lint
run status podwire status podnet
for life in {" ".join(LIVES)}; do
    run $life-add-first podwire add podnet first --capability-args '{json.dumps(CAPABILITIES)}'
    run $life-add-second podwire add podnet second
    run $life-pod inside first ip addr show dev eth0
    run $life-check podwire check podnet first
    run $life-host-port inside second nc -w 20 10.22.0.1 8080
    run $life-ping inside first ping -c 1 -W 20 fd00:22::1
    run $life-del-first podwire del podnet first
    run $life-closed inside second nc -w 20 10.22.0.1 8080
    run $life-del-second podwire del podnet second
    run $life-left everything
done
"""


class Said(NamedTuple):
    """What a command of the script said, and its exit status."""

    status: int
    text: str


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, Said]:
    """What every command of the script said, by its name."""
    if not PROGRAM.is_file():
        pytest.fail(f"no {PROGRAM}: run `make arm64`", pytrace=False)
    console = arm64_machine.boot(tmp_path_factory.mktemp("machine"), SCRIPT, {"podwire": PROGRAM.read_bytes()})
    found = re.findall(r"^@ (\S+)\n(.*?)^@ \1 = (\d+)$", console, re.MULTILINE | re.DOTALL)
    return {name: Said(int(status), text) for name, text, status in found}


def test_every_verb_of_every_plugin_succeeds(said):
    """The file installs itself; STATUS, ADD, CHECK and DEL of the whole chain succeed, twice."""
    expected = dict.fromkeys(("install", "version", "lint", "status"), 0)
    for life in LIVES:
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
            "left",
        )
        expected |= {f"{life}-{step}": int(step == "closed") for step in steps}
    assert {name: status for name, (status, _) in said.items()} == expected, said
    assert said["install"].text.count("installed /opt/cni/bin/") == len(list(PROGRAM.parent.iterdir()))


def test_a_start_copies_few_pages(said):
    """VERSION causes few page faults, since what it uses of the image lies together: the seed has learned in qemu."""
    (faults,) = re.findall(r"Minor .* page faults: (\d+)", said["version"].text)
    assert int(faults) <= FAULTS


@pytest.mark.parametrize("life", LIVES)
def test_the_pod_has_what_the_network_gives(said, life):
    """The pod's interface has an address of each range and tuning's MTU; the gateway answers it."""
    shown = said[f"{life}-pod"].text
    assert re.findall(r"mtu (\d+)", shown) == ["1400"]
    assert len(re.findall(r"inet 10\.22\.0\.\d+/24 brd 10\.22\.0\.255 scope global eth0", shown)) == 1
    assert len(re.findall(r"inet6 fd00:22::\d+/64 scope global", shown)) == 1
    assert "1 packets received" in said[f"{life}-ping"].text


@pytest.mark.parametrize("life", LIVES)
def test_a_host_port_is_open_while_the_pod_lives(said, life):
    """Another pod reaches the first by the host's port, and nobody once it has been detached."""
    assert said[f"{life}-host-port"].text == "hello\n"
    assert "hello" not in said[f"{life}-closed"].text


def test_nothing_is_left_of_a_pod(said):
    """After DEL there is the bridge and the network's files, no more after the second life than after the first."""
    first, second = (settled(said[f"{life}-left"].text) for life in LIVES)
    assert first == second
    assert re.findall(r"veth|bwp|results", "".join(first)) == []
    assert [line for line in first if line.startswith("/")] == FILES


def settled(text: str) -> list[str]:
    """Returns the lines without what follows the carrier by itself: flags, and the kernel's own IPv6 addresses."""
    lines = re.sub(r"NO-CARRIER,|LOWER_UP,?| tentative| linkdown", "", text).splitlines()
    return [line for line in lines if "fe80:" not in line and " ff00::" not in line]
