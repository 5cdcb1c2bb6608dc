"""podman's macvlan networks with `--ipam-driver=dhcp`: podwire's plugins and daemon alone, and dnsmasq at the peer."""

import subprocess

import pytest

from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.machine import BIN_DIR, PEER_ADDRESS, eventually

pytestmark = pytest.mark.usefixtures("default_network_used", "machine_unchanged")

DAEMON = (str(BIN_DIR / "dhcp"), "daemon")


@pytest.fixture
def leases(podman, tmp_path):
    """The file of the leases of a DHCP server at the peer."""
    file, link = tmp_path / "leases", next(name for name in netstate.links(podman.machine.peer) if name != "lo")
    with podman.machine.peer.entered():
        server = subprocess.Popen(
            (
                *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file"),
                *(f"--interface={link}", "--bind-interfaces", "--dhcp-authoritative", "--no-ping"),
                *("--dhcp-range=203.0.113.200,203.0.113.220,255.255.255.0,1h", f"--dhcp-leasefile={file}"),
            ),
            stdin=subprocess.DEVNULL,
        )
    yield file
    server.kill()
    server.wait()


def listed(leases) -> list[str]:
    """Returns the leased addresses."""
    return [line.split()[2] for line in leases.read_text().splitlines()] if leases.exists() else []


def test_containers_lease_their_addresses(podman, leases):
    """Containers get addresses from the server, and the leases are released when the containers are removed."""
    machine = podman.machine
    with (
        machine.running(*DAEMON),
        podman.network("lan", "--driver=macvlan", "--opt=parent=up0", "--ipam-driver=dhcp") as lan,
    ):
        (plugin,) = podman.plugins(lan)
        assert (plugin["type"], plugin["ipam"]["type"]) == ("macvlan", "dhcp")
        assert eventually(lambda: machine.succeeds("test", "-S", "/run/cni/dhcp.sock"))
        one, two = podman.start("one", network=lan), podman.start("two", network=lan)
        assert sorted([one.address(lan), two.address(lan)]) == sorted(listed(leases))
        assert reaches(one.namespace, PEER_ADDRESS)
        assert reaches(one.namespace, two.address(lan))
        podman.remove("one")
        assert eventually(lambda: listed(leases) == [two.address(lan)])
        podman.remove("two")
        assert eventually(lambda: listed(leases) == [])
