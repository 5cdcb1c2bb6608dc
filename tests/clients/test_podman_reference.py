"""podman with our plugins next to podman with the reference's: what it tells, and what its containers leave, is the same.

One rule: whole states are compared; what differs by intent is named here.
"""

import json
from contextlib import ExitStack

import pytest

from tests.clients.machine import machine
from tests.clients.podman import PROGRAMS, installed
from tests.support import binaries


@pytest.fixture
def both(needs_programs, reference, bin_dir, tmp_path):
    """podman on two machines: with our plugins, and with the reference's."""
    needs_programs(*PROGRAMS)
    with ExitStack() as stack:
        made = []
        for name, directory in (("ours", bin_dir), ("reference", reference)):
            (tmp_path / name).mkdir()
            one = stack.enter_context(machine(tmp_path / name))
            one.install(directory)
            made.append(installed(one))
        yield made


def story(podman):
    """Has containers on the default network, and on one that is removed; returns what podman told, and what is left."""
    one = podman.start("one", "--publish=8080:80", network="")
    told = dict(one.networks["podman"])
    podman("network", "create", "--ipv6", "--subnet=10.68.0.0/24", "--subnet=fd00:68::/64", "auto")
    two = podman.start("two", "--ip=10.68.0.9", "--publish=8081:80", network="auto")
    more = dict(two.networks["auto"])
    podman.remove()
    podman("network", "rm", "auto")
    picture = podman.machine.picture()
    return told, more, picture

def test_x(both):
    ours, theirs = (story(each) for each in both)
    import difflib
    a,b=(json.dumps(x,indent=1,sort_keys=True).splitlines() for x in (theirs,ours))
    print("\n".join(difflib.unified_diff(a,b,"theirs","ours",lineterm="")))
    assert 0
