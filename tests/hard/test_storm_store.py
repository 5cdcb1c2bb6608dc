"""Many parallel processes of host-local, and of the reference's, on one small range: no address has two owners."""

import random

import pytest

from ipam.host_local.index import Index
from ipam.host_local.store import ReservationStore
from tests.support.process_pool import Call, ProcessPool

AT_ONCE = 200  # of 253 addresses: a search must skip many
NAMES = [f"pod-{number}" for number in range(AT_ONCE)]


@pytest.fixture
def run_all(bin_dir, reference, store, mixed):
    """A function that runs a verb for all containers in parallel, each by one of the plugins; returns the outcomes."""
    chance = random.Random(0)
    ipam = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.1.2.0/24"}]]}
    config = {"cniVersion": "1.0.0", "name": "net", "type": "host-local", "ipam": ipam}

    def run(command):
        outcomes = {}

        def job(name):
            directory = chance.choice([bin_dir, reference] if mixed else [bin_dir])
            variables = {"CNI_CONTAINERID": name, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0"}
            variables["CNI_PATH"] = str(directory)
            outcomes[name] = yield Call(directory / "host-local", command, config, variables)

        jobs = iter([job(name) for name in NAMES])
        ProcessPool(AT_ONCE).run(lambda: next(jobs, None))
        return outcomes

    return run


def assert_store(store, attached):
    """Asserts that the store, and the index if complete, contain exactly the attached containers."""
    owners = {f"{name}\r\neth0".encode(): [address] for name, address in attached.items()}
    opened = ReservationStore(str(store), "net")
    assert opened.list_owners() == owners
    index = Index(str(store), "net", opened.directory)
    assert not index.complete or {owner: index.find(owner) for owner in owners} == owners
    index.close()
    assert {path.name for path in (store / "net").iterdir()} == {*attached.values(), "lock", "last_reserved_ip.0"}


@pytest.mark.parametrize("mixed", [False, True], ids=["ours", "with the reference"])
def test_two_hundred_parallel_adds_and_dels(run_all, store):
    """200 parallel ADDs on a range of 253 get 200 distinct addresses, also when half of them are the reference's."""
    outcomes = run_all("ADD")
    attached = {name: one.result()["ips"][0]["address"].removesuffix("/24") for name, one in outcomes.items()}
    assert len(set(attached.values())) == AT_ONCE
    assert_store(store, attached)
    for outcome in run_all("DEL").values():
        outcome.assert_silent()
    assert_store(store, {})
