"""Reasons for which a node can have no VXLAN device; each problem names the fix."""

from __future__ import annotations

import socket

from kernel import vxlan
from tests.support.agent_routes import DEVICE, started


def test_a_port_that_a_program_has(distant):
    """A UDP port that a program has is a problem with the option that sets another; no device stays behind."""
    host = distant.nodes[0].host
    with host.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as program:
        program.bind(("0.0.0.0", 4789))
        with started(distant) as routes:
            (text,) = (problem.text for problem in routes.problems if not problem.node)
            assert "a program (`ss -lunp sport = 4789`) has UDP port 4789: remove it, or set --vxlan-port to" in text
            assert f"{DEVICE}:" not in host.ip("link")


def test_a_kernel_without_vxlan(distant, monkeypatch):
    """A kernel that does not know the kind of the device is a problem with the command that loads the module."""
    monkeypatch.setattr(vxlan, "KIND", "vxlanx")
    with started(distant) as routes:
        (text,) = (problem.text for problem in routes.problems if not problem.node)
        assert "the kernel has no VXLAN devices: run `modprobe vxlan`, or set --routes to direct" in text
