"""dhcp's daemon killed right before a system call, in ADD, in DEL and at its start: no lease is lost or leaked."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node
from tests.support.machine import eventually

pytestmark = pytest.mark.needs("syscall_injection")

# The calls by which the daemon changes something, with the numbers of their occurrences in the daemon's life.
IN_ADD = {"socket": (2, 4, 6, 8), "sendto": (1, 2, 3, 4, 6), "mkdir": (1, 2), "fsync": (1, 2), "rename": (1,)}
IN_ADD |= {"epoll_ctl": (3, 5)}
IN_DEL = {"openat": (1, 3, 6), "sendto": (1, 2, 3), "unlink": (1, 2), "fsync": (1,), "rmdir": (1,)}


def points(numbers: dict[str, tuple[int, ...]]) -> list[tuple[str, int]]:
    """Returns each call with each of its numbers."""
    return [(call, number) for call, occurrences in numbers.items() for number in occurrences]


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server runs, without a daemon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        yield node


@contextmanager
def doomed_daemon(node: Node, call: str, number: int) -> Iterator[None]:
    """Runs a daemon that is killed right before a system call, perhaps at its start; then an ordinary one."""
    argv = node.daemon.argv
    node.daemon.argv = ("strace", "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={number}", *argv)
    node.daemon.start()
    assert eventually(lambda: node.answers() or node.daemon.has_ended(), within_s=60), node.daemon.log.read_text()
    yield
    node.daemon.argv = argv
    node.start_daemon()


@pytest.mark.parametrize(("call", "number"), points(IN_ADD))
def test_daemon_killed_in_add(call, number, node, sandbox):
    """An ADD whose daemon is killed fails or succeeds; after DEL no file is left, and the next ADD works."""
    net = node.network()
    with doomed_daemon(node, call, number):
        outcome = net.run("ADD", sandbox)
        lost = node.list_leases() if outcome.status else []  # the server granted it, and no ADD returned it: it expires
        if outcome.status:
            outcome.error()
    net.delete(sandbox)
    assert eventually(lambda: set(node.list_leases()) <= set(lost)), node.daemon.log.read_text()
    assert node.list_files() == {}
    result = net.add(sandbox)
    assert reaches(sandbox, SERVER)
    assert address(result) in node.list_leases()


@pytest.mark.parametrize(("call", "number"), points(IN_DEL))
def test_daemon_killed_in_del(call, number, node, sandbox):
    """A DEL whose daemon is killed succeeds or can be repeated; then the lease is released, and no file is left."""
    net = node.network()
    node.start_daemon()
    result = net.add(sandbox)
    with doomed_daemon(node, call, number):
        net.run("DEL", sandbox, prev_result=result)
    net.delete(sandbox, result)
    assert eventually(lambda: node.list_leases() == []), node.daemon.log.read_text()
    assert node.list_files() == {}
