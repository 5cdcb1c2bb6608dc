"""A reboot of the node with a kernel that boots twice: which addresses are reclaimed, and which are not."""

import json
import shlex

import pytest

from tests import promises
from tests.support.second_kernel import boot

pytestmark = [pytest.mark.needs("user_mode_linux"), pytest.mark.usefixtures("root")]

NETWORK = {
    "cniVersion": "1.0.0",
    "name": "net",
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": True,
    "ipam": {
        "type": "host-local",
        "dataDir": "/run/shared/leases",
        "ranges": [[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.0.2", "rangeEnd": "10.22.0.4"}]],
    },
}
# Both boots have the same clock. /var/lib/cni/results is on the disk and survives, /run does not.
PREPARATION = (
    "mount -t tmpfs podwire /var/lib; mkdir -p /run/netns /var/lib/cni; ln -s /run/shared/results /var/lib/cni/;"
)


def attach(bin_dir, *names):
    """Returns a script that runs ADD of bridge for new pods, and writes their cache files as libcni does."""
    cached = json.dumps(
        {"kind": "cniCacheV1", "containerId": "$c", "ifName": "eth0", "networkName": "net", "netns": "/run/netns/$c"}
    )
    return f"""
        mkdir -p /run/shared/results
        for c in {" ".join(names)}; do
            ip netns add $c
            if echo {shlex.quote(json.dumps(NETWORK))} |
                CNI_COMMAND=ADD CNI_CONTAINERID=$c CNI_IFNAME=eth0 CNI_NETNS=/run/netns/$c CNI_PATH={bin_dir} \
                {bin_dir}/bridge >/run/shared/$c.out
            then echo {json.dumps(cached)} >/run/shared/results/net-$c-eth0; fi
        done"""


@pytest.fixture
def node(tmp_path, bin_dir):
    """A function that boots a node on its disk, runs scripts, and returns the container of each address."""

    def boot_and_run(*scripts):
        promises.record("reboot", boots=1)
        assert boot(["sh", "-c", PREPARATION + "\n".join(scripts)], tmp_path, timeout_s=60) == 0
        leases = (tmp_path / "leases" / "net").iterdir()
        return {file.name: file.read_text().split()[0] for file in leases if file.name[0] == "1"}

    return boot_and_run


@pytest.mark.parametrize("maker", ["podwire", "reference"])
def test_addresses_from_before_a_power_cut_are_reclaimed(node, bin_dir, reference, maker):
    """After a power cut, the addresses of a full range are reclaimed, whichever plugin allocated them."""
    makers = {"podwire": bin_dir, "reference": reference}
    full = {f"10.22.0.{n + 2}": f"old{n}" for n in range(3)}
    assert node(attach(makers[maker], "old0", "old1", "old2")) == full
    held = node(attach(bin_dir, "new0", "new1", "new2", "new3"))
    assert held == {f"10.22.0.{n + 2}": f"new{n}" for n in range(3)}


def test_container_restarts_with_its_id(node, bin_dir):
    """A container that starts again with its old ID after a reboot has exactly one address."""
    node(attach(bin_dir, "db"))
    assert list(node(attach(bin_dir, "db")).values()) == ["db"]
