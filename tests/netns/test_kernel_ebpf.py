"""Which eBPF programs are attached (kernel.ebpf): to interfaces, namespaces, cgroups and hooks of netfilter."""

import os
import struct
from array import array
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import if_nametoindex

import pytest
from _podwire import bpf

from kernel import ebpf
from kernel.ebpf import NetfilterProgram

pytestmark = pytest.mark.one_kernel

_LOAD, _ATTACH, _LINK = 5, 8, 28  # BPF_PROG_LOAD, BPF_PROG_ATTACH, BPF_LINK_CREATE
_RETURN_1 = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 1, 0x95, 0, 0, 0)  # r0 = 1; exit
_CGROUP_SKB, _CGROUP_ADDRESS, _SK_LOOKUP, _NETFILTER, _FILTER = 8, 18, 30, 32, 3  # BPF_PROG_TYPE_*


def command(number, form, *values):
    return bpf(number, bytearray(struct.pack(form, *values).ljust(256, b"\0")))


class Programs:
    """Loads and attaches programs that accept everything."""

    def __init__(self, stack):
        self._stack = stack

    def load(self, kind, attach_type):
        code, license_ = array("B", _RETURN_1), array("B", b"GPL\0")
        addresses = code.buffer_info()[0], license_.buffer_info()[0]
        program = command(_LOAD, "=IIQQIIQII16sII", kind, 2, *addresses, 0, 0, 0, 0, 0, b"", 0, attach_type)
        self._stack.callback(os.close, program)
        return program

    def link(self, kind, expected, target, attach_type, *more):
        program = self.load(kind, expected)
        number = command(_LINK, f"=IIII{len(more)}i", program, target, attach_type, 0, *more)
        self._stack.callback(os.close, number)


@pytest.fixture
def programs():
    """Programs that are detached after the test."""
    with ExitStack() as stack:
        yield Programs(stack)


@pytest.fixture
def cgroup():
    """A new cgroup of version 2."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = [line.split()[1] for line in lines if line.split()[2] == "cgroup2"]
    directory = Path(mounts[0]) / f"podwire-test-{os.getpid()}"
    directory.mkdir()
    yield directory
    with suppress(OSError):
        directory.rmdir()


def test_nothing_is_attached(host):
    """Without programs none is listed, also for an interface and a cgroup that do not exist."""
    with host.entered():
        assert (ebpf.has_socket_lookup(), ebpf.list_tcx_directions(99)) == (False, [])
    assert ebpf.list_cgroup_programs("/missing") == []


def test_program_of_a_namespace(host, sandbox, programs):
    """A program that chooses the sockets of one namespace is not listed in another one."""
    with host.entered():
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    programs.link(_SK_LOOKUP, 36, namespace, 36)
    os.close(namespace)
    with host.entered():
        assert ebpf.has_socket_lookup()
    with sandbox.entered():
        assert not ebpf.has_socket_lookup()


def test_programs_of_a_cgroup(cgroup, programs):
    """The programs of a cgroup are listed by the names of bpftool, in the order of this module."""
    target = os.open(cgroup, os.O_RDONLY)
    for kind, attach_type in ((_CGROUP_ADDRESS, 10), (_CGROUP_SKB, 1)):
        command(_ATTACH, "=IIII", target, programs.load(kind, attach_type), attach_type, 0)
    os.close(target)
    assert ebpf.list_cgroup_programs(str(cgroup)) == ["cgroup_skb egress", "connect4"]


def test_program_at_a_hook_of_netfilter(host, programs):
    """A program of netfilter is listed with its hook and its priority, until its link is closed."""
    known = list(ebpf.list_netfilter_programs())
    with host.entered():
        programs.link(_NETFILTER, 45, 0, 45, 2, 2, -5, 0)
    added = list(ebpf.list_netfilter_programs())
    assert [one for one in added if one not in known] == [NetfilterProgram(2, 2, -5)]


def test_directions_of_tcx(host, programs):
    """A program of tcx is listed with its direction."""
    host.ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    with host.entered():
        index = if_nametoindex("veth0")
        programs.link(_FILTER, 0, index, 47)
        assert ebpf.list_tcx_directions(index) == ["sends"]
