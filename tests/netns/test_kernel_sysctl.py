"""Kernel parameters on the real kernel (kernel.sysctl)."""

import multiprocessing
import subprocess
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier

import pytest

from kernel import sysctl
from tests.support.namespaces import Namespace

FORWARD = "ipv4/ip_forward"
WRITERS, ROUNDS = 16, 20  # without a lock about every eighth round ends without forwarding


@pytest.fixture
def busy_host(host: Namespace) -> Iterator[Namespace]:
    """A host in which links are created and deleted in a loop, so that the kernel's RTNL lock is often held."""
    churn = "while :; do ip link add v0 type veth peer name v1; ip link del v0; done"
    with host.entered(), subprocess.Popen(["sh", "-c", churn]) as process:
        yield host
        process.terminate()


def test_forwarding_is_on_after_parallel_writes(busy_host: Namespace):
    """If pods enable forwarding in parallel, it is enabled for every interface, not only in the global setting."""
    forks = multiprocessing.get_context("fork")
    for _ in range(ROUNDS):
        sysctl.write(FORWARD, "0")
        barrier = forks.Barrier(WRITERS)
        writers = [forks.Process(target=enable, args=(barrier,)) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [sysctl.get(name) for name in (FORWARD, "ipv4/conf/default/forwarding")] == ["1", "1"]


def enable(barrier: Barrier) -> None:
    """Writes the setting at the same time as the other processes of the barrier."""
    barrier.wait()
    sysctl.ensure(FORWARD, "1")
