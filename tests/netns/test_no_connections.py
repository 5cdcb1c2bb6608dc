"""No verb of a plugin opens a connection to another machine: it needs only the node's kernel and files."""

import re

import pytest

from tests.netns.test_conf import load, prepare, samples
from tests.support import binaries
from tests.support.invocation import run_plugin

__all__ = ["prepare"]

SCRIPT = """#!/bin/sh
exec strace -f -qq -e trace=socket,connect,sendto -o {log}.$$ {program} "$@"
"""
# Packet sockets (AF_PACKET, and SOCK_RAW of ICMPv6) announce and probe addresses on the pod's own link.
INTERNET = re.compile(r"socket\(AF_INET6?, SOCK_(STREAM|DGRAM)|sa_family=AF_INET")


@pytest.fixture
def traced(tmp_path, bin_dir):
    """A directory with a script for each plugin, which runs it under strace; and where the logs are."""
    directory = tmp_path / "traced"
    directory.mkdir()
    for name in binaries.names():
        (directory / name).write_text(SCRIPT.format(log=tmp_path / f"{name}.log", program=bin_dir / name))
        (directory / name).chmod(0o755)
    return directory


@samples()
def test_no_verb_opens_an_internet_socket(path, traced, bin_dir, tmp_path, host, sandbox, store, prepare):
    """ADD, CHECK, DEL, STATUS and GC of each sample open no TCP or UDP socket."""
    network = load(path, store)
    prepare(network)
    ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"

    def run(plugin, command, config):
        options = {"host": host, "netns": sandbox, "ifname": ifname, "container_id": sandbox.name}
        return run_plugin(plugin, command, config, bin_dir=traced, path=str(bin_dir), **options)

    result = network.add(run)
    network.check(run, result)
    for plugin in network.plugins:
        run(plugin["type"], "STATUS", {**network.collection(plugin, []), "cniVersion": "1.1.0"})
    network.delete(run, result)
    for plugin in network.plugins:
        run(plugin["type"], "GC", {**network.collection(plugin, []), "cniVersion": "1.1.0"})
    logs = sorted(tmp_path.glob("*.log.*"))
    assert {log.name.partition(".")[0] for log in logs} >= {plugin["type"] for plugin in network.plugins}
    lines = [line for log in logs for line in log.read_text().splitlines()]
    assert any("socket(AF_NETLINK" in line for line in lines), "strace recorded nothing"
    opened = [line for line in lines if INTERNET.search(line)]
    assert opened == []


def test_executable_has_no_tls():
    """The executable contains no OpenSSL: the random state of a dumped image would be that of every process."""
    content = (binaries.directory() / "podwire").read_bytes()
    assert [name for name in (b"OpenSSL", b"SSL_CTX", b"libssl", b"libcrypto") if name in content] == []
