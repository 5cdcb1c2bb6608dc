"""The operator's tool on a machine with podman's containers alive: what it tells is so, and what a flush took it mends.

One rule: the tool runs with its defaults, as an operator types it.
"""

import json

from tests.clients.machine import ADDRESS, BIN_DIR, PEER_ADDRESS
from tests.clients.podman import serving
from tests.support import netstate
from tests.support.sockets import Reached, call

import pytest


@pytest.fixture
def tool(podman):
    """A function that runs the tool with `--json`, which must succeed, and returns its document."""
    return lambda *words: json.loads(podman.machine.run(str(BIN_DIR / "podwire"), *words, "--json"))


def test_among_the_living(podman, tool):
    with podman.network("auto", "--subnet=10.68.0.0/24") as auto:
        podman.start("web", "--publish=8080:80", "--publish=8053:53/udp")
        podman.start("two", f"--network={auto}")
        podman.start("three", network="")
        podman.start("alone", network="none")
        for words in (
            ["doctor"],
            ["show"],
            ["lint"],
            ["check"],
            ["ipam", "verify"],
            ["ipam", "list"],
            ["status"],
            ["repair", "--dry-run"],
            ["gc", "podwire", "--dry-run"],
        ):
            print("#", *words)
            done = podman.machine._done([str(BIN_DIR / "podwire"), *words], None, 60)
            print(done.returncode, done.stdout, done.stderr)
            done = podman.machine._done([str(BIN_DIR / "podwire"), *words, "--json"], None, 60)
            print(done.returncode, done.stdout, done.stderr)
    assert 0
