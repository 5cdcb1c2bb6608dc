"""The firewall with nftables in parallel with other changes of nftables: no element is lost or leaked."""

import threading

import pytest

from tests.support.bare_plugin import run_in_parallel
from tests.support.firewall_sets import list_elements
from tests.support.firewall_tables import Firewall

pytestmark = pytest.mark.needs("nft_inet", "nft_bridge")

ROUNDS = 15


@pytest.fixture
def firewall(host, bin_dir):
    """A network whose pods are isolated."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "nftables"}
    return Firewall(host, config).having(ingressPolicy="isolated")


def pod(firewall, number):
    """Returns the firewall for a pod with the address and port of this number."""
    return firewall.pod(f"10.22.0.{number}/16", port=f"veth{number}")


def expected_elements(number):
    """Returns the elements of an isolated pod."""
    return {
        "pods4": [f"10.22.0.{number}"],
        "members4": [f"cni0 . 10.22.0.{number}"],
        "policed": ["cni0"],
        "isolated": [f"veth{number}"],
    }


def test_policy_survives_del_in_parallel_with_add(firewall):
    """The DEL of a bridge's last pod, in parallel with the ADD of another pod, keeps the bridge's policy."""
    pod(firewall, 2).add("c2")
    for number in range(3, 3 + ROUNDS):
        before = number - 1
        calls = [("DEL", f"c{before}", pod(firewall, before).having(prevResult=None))]
        for outcome in run_in_parallel(*calls, ("ADD", f"c{number}", pod(firewall, number))):
            assert outcome.status == 0, outcome
        assert list_elements(firewall.host) == expected_elements(number)


def test_verbs_in_parallel_with_other_changes(firewall):
    """Verbs succeed while another program changes other tables continuously, and after occasional flushes."""
    stop = threading.Event()

    def change_continuously():
        text = "\n".join(["add table inet other", "delete table inet other"])
        while not stop.is_set():
            firewall.host.run("nft", text)

    thread = threading.Thread(target=change_continuously)
    thread.start()
    try:
        for number in range(2, 2 + ROUNDS):
            net = pod(firewall, number)
            net.add("cid")
            net.check("cid")
            if number % 3 == 0:
                firewall.host.run("nft", "flush", "ruleset")
                net.add("cid")
            net.delete("cid")
            assert list_elements(firewall.host) == {}
    finally:
        stop.set()
        thread.join()
