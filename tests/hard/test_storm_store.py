"""Many parallel processes of host-local, and of the reference's, on one small range: no address has two owners."""

import random
import time
from typing import Any

import pytest

from ipam.host_local.index import Index
from ipam.host_local.store import Store
from tests import promises
from tests.support.process_pool import Call, ProcessPool, random_kill_delay_s

CONTAINERS = 240  # of 253 addresses: a search must skip many
AT_ONCE = 200


class Storm:
    """The containers of one network as their runtimes know them: address by name, None after a killed verb."""

    def __init__(self, store, directories, seed=0):
        self.store, self.directories, self.chance = store, directories, random.Random(seed)
        self.attached, self.busy, self.collecting = {}, set(), False
        self.end, self.kills = 0.0, 0
        self.config: dict[str, Any] = {"cniVersion": "1.0.0", "name": "net", "type": "host-local"}
        self.config["ipam"] = {"type": "host-local", "dataDir": str(store), "ranges": [[{"subnet": "10.1.2.0/24"}]]}

    def call(self, command, name, killed=False, config=None, directory=None):
        """Returns one invocation of a plugin in one of the directories."""
        directory = directory or self.chance.choice(self.directories)
        variables = {"CNI_CONTAINERID": name, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0"}
        variables |= {"CNI_PATH": str(directory)}
        return Call(
            directory / "host-local",
            command,
            config or self.config,
            variables,
            random_kill_delay_s(self.chance) if killed else None,
        )

    def add(self, name, killed=False):
        self.attached[name] = None
        outcome = yield self.call("ADD", name, killed)
        if not self.was_killed(outcome, killed):
            address = outcome.result()["ips"][0]["address"].removesuffix("/24")
            assert address not in self.attached.values()
            self.attached[name] = address

    def delete(self, name, killed=False):
        self.attached[name] = None
        outcome = yield self.call("DEL", name, killed)
        if not self.was_killed(outcome, killed):
            outcome.assert_silent()
            del self.attached[name]

    def check(self, name):
        outcome = yield self.call("CHECK", name)
        outcome.assert_silent()

    def collect(self):
        """Runs podwire's GC, which collects half of the absent containers and of those whose verb was killed."""
        self.collecting = True
        collected = {name for name in names() if not self.attached.get(name) and self.chance.random() < 0.5} - self.busy
        self.busy |= collected
        valid = [{"containerID": name, "ifname": "eth0"} for name in names() if name not in collected]
        config = self.config | {"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}
        outcome = yield self.call("GC", None, config=config, directory=self.directories[0])
        outcome.assert_silent()
        self.attached = {name: address for name, address in self.attached.items() if name not in collected}
        self.busy -= collected
        self.collecting = False

    def was_killed(self, outcome, killed):
        died = killed and outcome.status == -9
        self.kills += died
        return died

    def next(self):
        """Returns the next job of a random runtime."""
        if time.monotonic() > self.end and self.kills:
            return None
        if not self.collecting and self.chance.random() < 0.02:
            return self.collect()
        idle = [name for name in names() if name not in self.busy]
        return self.run(self.chance.choice(idle)) if idle else None

    def run(self, name):
        self.busy.add(name)
        killed = self.chance.random() < 0.1
        if name not in self.attached:
            yield from self.add(name, killed)
        elif self.attached[name] and self.chance.random() < 0.3:
            yield from self.check(name)
        else:
            yield from self.delete(name, killed)
        self.busy.remove(name)

    def compare(self):
        """Asserts that the store, and the index if complete, contain exactly the attached containers."""
        owners = {f"{name}\r\neth0".encode(): [address] for name, address in self.attached.items()}
        store = Store(str(self.store), "net")
        assert store.list_owners() == owners
        index = Index(str(self.store), "net", store.directory)
        assert not index.complete or {owner: index.find(owner) for owner in owners} == owners
        index.close()
        addresses = {*self.attached.values(), "lock", "last_reserved_ip.0"}
        assert {path.name for path in (self.store / "net").iterdir()} == addresses


def names():
    return [f"pod-{number}" for number in range(CONTAINERS)]


def run_all(at_once, jobs):
    queue = iter(jobs)
    ProcessPool(at_once).run(lambda: next(queue, None))


@pytest.mark.parametrize("mixed", [False, True], ids=["ours", "with the reference"])
def test_two_hundred_parallel_adds(bin_dir, reference, store, mixed):
    """200 parallel ADDs on a range of 253 get 200 distinct addresses, also when half of them are the reference's."""
    storm = Storm(store, [bin_dir, reference] if mixed else [bin_dir])
    run_all(AT_ONCE, [storm.add(name) for name in names()[:AT_ONCE]])
    assert len(set(storm.attached.values())) == AT_ONCE
    storm.compare()
    run_all(AT_ONCE, [storm.delete(name) for name in names()[:AT_ONCE]])
    storm.compare()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mixed", [False, True], ids=["ours", "with the reference"])
def test_storm_on_a_small_range(bin_dir, reference, store, nightly, mixed):
    """With parallel ADDs, DELs, GCs and kills, an address never has two owners and never changes its owner."""
    storm = Storm(store, [bin_dir, reference] if mixed else [bin_dir])
    seconds = 60 if nightly else 3
    storm.end = time.monotonic() + seconds
    pool = ProcessPool(64)
    pool.run(storm.next)
    run_all(8, [storm.delete(name) for name, address in storm.attached.items() if not address])
    run_all(1, [storm.collect()])  # GC removes the empty files that a killed reference plugin leaves
    assert storm.kills > 0
    storm.compare()
    run_all(64, [storm.check(name) for name in storm.attached])
    run_all(64, [storm.delete(name) for name in list(storm.attached)])
    storm.compare()
    promises.record("storm", verbs=pool.processes, seconds=seconds, kills=storm.kills)
