"""kernel.system: one object for the calls that the warm-up and the fuzzers replace, and nothing else is replaced."""

import ast
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import link, system
from kernel.codec import LinkMessage
from kernel.netfilter import iptables_program
from kernel.rtnl import NLM_F_ACK, Request
from kernel.system import System
from pack.fake_kernel import FakeKernel
from tests.fuzz.replay import Replay
from tests.support.binaries import ROOT

DELETION = Request("", LinkMessage, link.RTM_DELLINK, NLM_F_ACK, {"index": 3}).encode(1)
# Attributes that are set nevertheless, and the reason.
ALLOWED = {
    "tests/fuzz/world.py: skel.as_cni_error": "the traceback of a defect, which a plugin's answer does not contain"
}


class Zeros(System):
    """A system whose random bytes are zeros."""

    def random_bytes(self, size: int) -> bytes:
        """Returns zeros."""
        return bytes(size)


def test_a_replaced_system_answers_until_the_end_of_the_context():
    """The replaced system answers inside the context only, also when an inner one ends with an exception."""
    running, outer = system.current, Zeros()
    with system.replaced(outer):
        with contextlib.suppress(ValueError), system.replaced(System()):
            raise ValueError
        assert system.current is outer
        assert link.random_mac() == b"\2\0\0\0\0\0"
    assert system.current is running
    assert link.random_mac() != link.random_mac()


def test_the_running_system_opens_the_path_of_the_kernel():
    """The running system does not change a path, and calls the kernel."""
    assert System().path("/proc/sys/net/ipv4/ip_forward") == "/proc/sys/net/ipv4/ip_forward"
    with System().open_socket(1, 2) as opened, pytest.raises(OSError, match="Inappropriate ioctl"):
        System().ioctl(opened.fileno(), 0x400454CB, 1)
    with open(os.devnull) as no_namespace, pytest.raises(OSError, match="Invalid argument"):
        System().enter_netns(no_namespace.fileno())


def methods(owner: type) -> set[str]:
    """Returns the public methods that a class itself defines."""
    return {name for name, value in vars(owner).items() if callable(value) and not name.startswith("_")}


def test_the_interface_has_no_method_that_is_never_replaced():
    """The warm-up's fake kernel or the fuzzers' replay replaces each method of System."""
    assert methods(System) - methods(FakeKernel) - methods(Replay) == set()


def patched_names(tree: ast.AST) -> Iterator[str]:
    """Yields the attributes of imported modules and classes that a module sets, and its calls of setattr."""
    nodes = list(ast.walk(tree))
    imports = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    imported = {(alias.asname or alias.name).partition(".")[0] for alias in imports} - {"sys"}
    yield from (ast.unparse(node) for node in nodes if is_set(node, imported) or is_call_of_setattr(node))


def is_set(node: ast.AST, imported: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and root(node) in imported


def is_call_of_setattr(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("setattr", "delattr")


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def sources() -> Iterator[Path]:
    for directory in ("pack", "pack/release", "tests/fuzz"):
        yield from sorted((ROOT / directory).glob("*.py"))


def test_the_image_and_the_fuzzers_set_no_names_of_other_modules():
    """The modules of pack/ and tests/fuzz/ replace the kernel by system.replaced(), and set no other module's names."""
    patches = {
        f"{path.relative_to(ROOT)}: {patch}"
        for path in sources()
        for patch in patched_names(ast.parse(path.read_bytes()))
    }
    assert patches == set(ALLOWED)


class Recorder(System):
    """A system that records the names of the methods that are called."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    def __getattribute__(self, name: str) -> object:
        """Returns the attribute, and records its name."""
        if name in methods(System):
            self.called.add(name)
        return super().__getattribute__(name)


def test_the_fake_kernel_calls_the_methods_that_it_replaces(tmp_path):
    """The fake kernel calls the methods that it replaces, so that the image has their objects on the verbs' pages."""
    recorder = Recorder()
    with system.replaced(recorder):
        fake = FakeKernel(str(tmp_path))
    for family, protocol in ((socket.AF_NETLINK, socket.NETLINK_ROUTE), (socket.AF_UNIX, 0)):
        fake.open_socket(family, socket.SOCK_RAW, protocol).close()
    fake.enter_netns(0)
    assert fake.send_in_background(0, DELETION, 0) == 0
    assert fake.close_in_background(0, 0, 0) == 0
    assert Path(fake.path("/proc/sys/net/ipv4/ip_forward")).read_text() == "1"
    fake.state_path("/run/podwire")
    fake.ioctl(0, 0, 0)
    assert iptables_program.is_nft(fake.find_program("iptables-restore", ()))
    assert len(fake.random_bytes(6)) == 6
    assert recorder.called == methods(FakeKernel) - {"run_programs"}
