"""A reboot of the node, with a kernel that really boots twice: whose addresses are given again, and whose are not."""

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
# A node's second life has the first one's clock: the file of /var/lib/cni/results stays on its disk, /run does not.
PREPARED = "mount -t tmpfs podwire /var/lib; mkdir -p /run/netns /var/lib/cni; ln -s /run/shared/results /var/lib/cni/;"


def attach(bin_dir, *names):
    """Returns a script that runs ADD of bridge for a new pod each, and notes the results as libcni does."""
    cached = json.dumps(
        {
            "kind": "cniCacheV1",
            "containerId": "$c",
            "ifName": "eth0",
            "networkName": "net",
            "netns": "/run/netns/$c",
        }
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
    """A function that boots a node on its disk, runs a script, and returns who has which address then."""

    def life(*scripts):
        promises.record("reboot", boots=1)
        assert boot(["sh", "-c", PREPARED + "\n".join(scripts)], tmp_path, timeout_s=60) == 0
        leases = (tmp_path / "leases" / "net").iterdir()
        return {file.name: file.read_text().split()[0] for file in leases if file.name[0] == "1"}

    return life


@pytest.mark.parametrize("maker", ["podwire", "reference"])
def test_addresses_of_before_the_power_cut_are_given_again(node, bin_dir, reference, maker):
    """A range that is full of containers that a power cut ended serves the next boot, whichever plugin filled it.

    The addresses of the boot itself stay whose they are, although the range is full.
    """
    makers = {"podwire": bin_dir, "reference": reference}
    full = {f"10.22.0.{n + 2}": f"old{n}" for n in range(3)}
    assert node(attach(makers[maker], "old0", "old1", "old2")) == full
    held = node(attach(bin_dir, "new0", "new1", "new2", "new3"))
    assert held == {f"10.22.0.{n + 2}": f"new{n}" for n in range(3)}


def test_a_container_comes_back_with_its_name(node, bin_dir):
    """A container that starts again with its old id after a reboot gets an address, and has one only."""
    node(attach(bin_dir, "db"))
    assert list(node(attach(bin_dir, "db")).values()) == ["db"]


def test_podwire_files_are_left_where_they_belong(node, bin_dir, tmp_path):
    """What is noted of boots lies beside the store, whose files are the reference's to the byte."""
    node(attach(bin_dir, "a"))
    node(attach(bin_dir, "b"))
    names = sorted(path.name for path in (tmp_path / "leases" / "net").iterdir())
    assert names == ["10.22.0.2", "10.22.0.3", "last_reserved_ip.0", "lock"]
    assert [path.name for path in (tmp_path / "leases.podwire").iterdir()] == ["net"]
    assert (tmp_path / "leases" / "net" / "10.22.0.2").read_bytes() == b"a\r\neth0"
