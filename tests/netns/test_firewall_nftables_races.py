"""firewall with nftables while others change nftables at the same time: nothing is lost, nothing left over."""

import threading

import pytest

from tests.support.firewall_sets import Firewall, at_once, sets

pytestmark = pytest.mark.needs("nft_inet", "nft_bridge")

ROUNDS = 15


@pytest.fixture
def firewall(host, bin_dir):
    """A network whose pods are isolated."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "nftables"}
    return Firewall(host, config).having(ingressPolicy="isolated")


def pod(firewall, number, bridge="cni0"):
    """Returns what is asked for a pod of its own address and port."""
    return firewall.pod(f"10.22.0.{number}/16", bridge=bridge, port=f"veth{number}")


def expected(*numbers):
    """Returns what the sets have for isolated pods."""
    if not numbers:
        return {}
    return {
        "pods4": [f"10.22.0.{number}" for number in numbers],
        "members4": [f"cni0 . 10.22.0.{number}" for number in numbers],
        "policed": ["cni0"],
        "isolated": [f"veth{number}" for number in numbers],
    }


def done(*calls):
    """Runs verbs at once; a failure fails the test."""
    for outcome in at_once(*calls):
        assert outcome.status == 0, outcome


def test_first_pods_at_once(firewall):
    """Two first ADDs at once make one table, with each rule once, and both pods."""
    for _ in range(ROUNDS):
        done(*(("ADD", f"c{number}", pod(firewall, number)) for number in (2, 3, 4)))
        assert sets(firewall.host) == expected(2, 3, 4)
        for number in (2, 3, 4):
            pod(firewall, number).check(f"c{number}")
        text = firewall.host.run("nft", "list", "table", "inet", "podwire_firewall")
        assert text.count("jump admin") == text.count("@policed drop") == text.count("saddr @pods4 accept") == 1
        firewall.host.run("nft", "flush", "ruleset")


def test_a_policy_outlives_the_last_pod_but_not_the_next(firewall):
    """The DEL of a bridge's last pod, at the same time as the ADD of another, leaves the bridge its policy."""
    pod(firewall, 2).add("c2")
    for number in range(3, 3 + ROUNDS):
        before = number - 1
        done(
            ("DEL", f"c{before}", pod(firewall, before).having(prevResult=None)),
            ("ADD", f"c{number}", pod(firewall, number)),
        )
        assert sets(firewall.host) == expected(number)


def test_many_at_once(firewall):
    """Pods that come and go at once, some with the addresses of others that go late, are as their last verb said."""
    old = [("ADD", f"old{number}", pod(firewall, number)) for number in range(10, 18)]
    done(*old)
    late = [("DEL", name, own.having(prevResult=None)) for _, name, own in old]
    new = [("ADD", f"new{number}", pod(firewall, number)) for number in range(10, 18)]
    done(*(call for pair in zip(late, new, strict=True) for call in pair))
    assert sets(firewall.host) == expected(*range(10, 18))
    for number in range(10, 18):
        pod(firewall, number).check(f"new{number}")
    done(*(("DEL", name, own) for _, name, own in new))
    assert sets(firewall.host) == {}


def test_others_who_change_nftables_all_the_time(firewall):
    """Verbs succeed while somebody else changes other tables without end, and while all is flushed now and then."""
    stop = threading.Event()

    def meddle():
        # One program that changes a table a thousand times as fast as it can, again and again.
        text = "\n".join(["add table inet other", "delete table inet other"])
        while not stop.is_set():
            firewall.host.run("nft", text)

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        for number in range(2, 2 + ROUNDS):
            own = pod(firewall, number)
            own.add("cid")
            own.check("cid")
            if number % 3 == 0:
                firewall.host.run("nft", "flush", "ruleset")
                own.add("cid")
            own.delete("cid")
            assert sets(firewall.host) == {}
    finally:
        stop.set()
        thread.join()
