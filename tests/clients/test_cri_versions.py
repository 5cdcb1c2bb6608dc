"""What depends on the version of containerd: CNI 1.1.0 and STATUS, which containerd 2 has and containerd 1 has not.

One rule: each test states the behaviour of both.
"""

import contextlib
import json

import grpc
import pytest

from tests.clients import cri as client
from tests.clients.cri import page
from tests.clients.images import PAGE
from tests.support.machine import BIN_DIR, eventually

BRIDGE = "cni-versions"
NETWORK = client.network("versions", BRIDGE, "10.79.0.0/30", "fd79::/64")
CURRENT = NETWORK | {"cniVersion": "1.1.0"}
BOTH = NETWORK | {"cniVersions": ["1.0.0", "1.1.0"]}
NO_ADDRESS = "no IP addresses available in range set: 10.79.0.1-10.79.0.2: 1 of 1 in use"
NO_PLUGIN = 'failed to find plugin "host-local" in path [/opt/cni/bin]; install it there or correct the type'


def becomes_not_ready(cri, reason):
    """Returns whether containerd reports, in time, that the network is not ready for this reason; "" means ready."""
    return eventually(lambda: reason in cri.not_ready() if reason else cri.not_ready() == "")


def test_network_of_cni_1_1_0(cri):
    """Containerd 2 runs pods on a network of 1.1.0; containerd 1 loads it, refuses each pod, and nothing remains."""
    cri.configure(CURRENT)
    refused = pytest.raises(grpc.RpcError, match=r'unsupported CNI result version "1\.1\.0"')
    with cri.no_leftovers(BRIDGE) if cri.knows_current_cni else refused:
        assert page(cri.machine.network, cri.run("pod").ips[1]) == PAGE
    cri.remove_all()
    assert cri.machine.leftovers(links=[BRIDGE]) == []


def test_containerd_chooses_the_newest_version_that_it_knows(cri):
    """Containerd 2 uses the newest version in "cniVersions"; containerd 1 uses "cniVersion", the only key it knows."""
    cri.configure(BOTH)
    with cri.no_leftovers(BRIDGE):
        pod = cri.run("pod")
        (path,) = [name for name in cri.machine.leftovers(links=[BRIDGE]) if f"/results/versions-{pod.id}" in name]
        result = json.loads(cri.machine.run("cat", path.removeprefix("file ")))["result"]
        assert result["cniVersion"] == ("1.1.0" if cri.knows_current_cni else "1.0.0")


@contextlib.contextmanager
def full_range(cri):
    """All addresses of the network are in use."""
    pod = cri.run("only")
    yield
    assert page(cri.machine.network, pod.ips[0]) == PAGE, "running pods are not affected"
    cri.remove(pod)


@contextlib.contextmanager
def no_plugin(cri):
    """The file of host-local does not exist."""
    cri.machine.run("mv", str(BIN_DIR / "host-local"), "/opt")
    yield
    cri.machine.run("mv", "/opt/host-local", str(BIN_DIR))


@pytest.mark.parametrize(("condition", "reason"), [(full_range, NO_ADDRESS), (no_plugin, NO_PLUGIN)])
def test_status_reports_to_kubelet_why_no_pod_can_start(cri, condition, reason):
    """Containerd 2 runs STATUS of a network of 1.1.0: the network is not ready, with podwire's reason, and again ready.

    Containerd 1 runs no STATUS: the network is ready, and the pods fail.
    """
    if not cri.knows_current_cni:
        pytest.skip("containerd 1 does not run STATUS")
    cri.configure(CURRENT)
    with cri.no_leftovers(BRIDGE):
        assert becomes_not_ready(cri, "")
        with condition(cri):
            assert becomes_not_ready(cri, reason), cri.not_ready()
        assert becomes_not_ready(cri, ""), cri.not_ready()
