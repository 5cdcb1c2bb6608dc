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


def pod(firewall, number, bridge="cni0"):
    """Returns the firewall for a pod with the address and port of this number."""
    return firewall.pod(f"10.22.0.{number}/16", bridge=bridge, port=f"veth{number}")


def expected_elements(*numbers):
    """Returns the elements of isolated pods."""
    if not numbers:
        return {}
    return {
        "pods4": [f"10.22.0.{number}" for number in numbers],
        "members4": [f"cni0 . 10.22.0.{number}" for number in numbers],
        "policed": ["cni0"],
        "isolated": [f"veth{number}" for number in numbers],
    }


def run_all(*calls):
    """Runs verbs in parallel, which must succeed."""
    for outcome in run_in_parallel(*calls):
        assert outcome.status == 0, outcome


def test_parallel_first_adds(firewall):
    """Parallel first ADDs create one table with each rule once, and the elements of all pods."""
    for _ in range(ROUNDS):
        run_all(*(("ADD", f"c{number}", pod(firewall, number)) for number in (2, 3, 4)))
        assert list_elements(firewall.host) == expected_elements(2, 3, 4)
        for number in (2, 3, 4):
            pod(firewall, number).check(f"c{number}")
        text = firewall.host.run("nft", "list", "table", "inet", "podwire_firewall")
        assert text.count("jump admin") == text.count("@policed drop") == text.count("saddr @pods4 accept") == 1
        firewall.host.run("nft", "flush", "ruleset")


def test_policy_survives_del_in_parallel_with_add(firewall):
    """The DEL of a bridge's last pod, in parallel with the ADD of another pod, keeps the bridge's policy."""
    pod(firewall, 2).add("c2")
    for number in range(3, 3 + ROUNDS):
        before = number - 1
        run_all(
            ("DEL", f"c{before}", pod(firewall, before).having(prevResult=None)),
            ("ADD", f"c{number}", pod(firewall, number)),
        )
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
