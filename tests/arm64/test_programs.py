"""The executable for 64-bit ARM, in qemu's user-mode emulation on this machine's kernel.

One rule: output and state must equal those of this machine's executable. qemu supports only a part of netlink;
test_machine.py tests the rest on an emulated machine.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import namespaces
from tests.support.binaries import ROOT
from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace
from tests.support.netstate import state

ARM64 = ROOT / "dist" / "arm64" / "bin"
# A processor and a size of memory pages. The first processor is the oldest; the others have atomic instructions.
MACHINES = [("cortex-a53", 4096), ("cortex-a53", 65536), ("neoverse-n1", 16384), ("max", 4096), ("max", 65536)]
LARGEST_PAGE = 65536

_LEASES = {"cniVersion": "1.1.0", "name": "net", "type": "host-local"}
_RANGES = [[{"subnet": "10.1.2.0/29"}], [{"subnet": "fd00:1:2::/64"}]]
REQUESTS = {
    "no command": ("bridge", None, b"", {}),
    "an unknown command": ("bridge", "ATTACH", b"{}", {}),
    "no variables": ("ptp", "ADD", b"{}", {"CNI_CONTAINERID": None, "CNI_NETNS": None}),
    "no JSON": ("loopback", "ADD", b"{", {}),
    "no UTF-8": ("tuning", "ADD", b'{"name": "\xff"}', {}),
    "deeply nested": ("firewall", "ADD", b"[" * 100_000, {}),
    "an unknown version": ("portmap", "ADD", b'{"cniVersion": "9.0.0", "name": "net", "type": "portmap"}', {}),
    "a wrong subnet": ("host-local", "ADD", b'{"name": "net", "ipam": {"ranges": [[{"subnet": "10.1.2.3"}]]}}', {}),
    "a number out of range": ("bandwidth", "ADD", b'{"name": "net", "ingressRate": 1e400}', {}),
    "no namespace": ("bridge", "ADD", b'{"cniVersion": "1.0.0", "name": "net", "type": "bridge"}', {}),
    "static addresses": (
        "static",
        "ADD",
        b'{"cniVersion": "1.0.0", "name": "net", "ipam": {"addresses": [{"address": "10.1.2.3/24"}]}}',
        {},
    ),
}


class Header(NamedTuple):
    """A program header, elf.h's Elf64_Phdr."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> Path:
    """A directory of scripts with the plugins' names that run the executable for 64-bit ARM."""
    if not (ARM64 / "podwire").is_file():
        pytest.fail(f"no executables in {ARM64}: run `make arm64`", pytrace=False)
    directory: Path = tmp_path_factory.mktemp("arm64")
    for program in ARM64.iterdir():
        script = directory / program.name
        script.write_text(f'#!/bin/sh\nexec qemu-aarch64 {program} "$@"\n')
        script.chmod(0o755)
    return directory


@pytest.fixture
def new_host(root: None) -> Iterator[Callable[[], Namespace]]:
    """A function that creates a new namespace for a host at each call."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(namespaces.temporary_host())


def headers(program: Path) -> tuple[int, list[Header]]:
    """Returns the machine and the program headers of an ELF file."""
    elf = program.read_bytes()
    (machine,) = struct.unpack_from("<H", elf, 18)
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    return machine, [Header(*struct.unpack_from("<IIQQQQQQ", elf, table + size * i)) for i in range(count)]


def test_the_file_is_static_for_arm64(emulated):
    """The executable is an AArch64 file without a loader, and every name is a link to it."""
    machine, program_headers = headers(ARM64 / "podwire")
    assert machine == 183
    assert [header for header in program_headers if header.kind in (2, 3)] == []  # PT_DYNAMIC, PT_INTERP
    assert len({path.stat().st_ino for path in ARM64.iterdir()}) == 1


def test_the_file_suits_the_largest_pages(emulated):
    """Segments are aligned for pages of 64 KiB, and no page has two kinds of access."""
    _, program_headers = headers(ARM64 / "podwire")
    loaded = [header for header in program_headers if header.kind == 1]
    assert [header.alignment for header in loaded] == [LARGEST_PAGE] * 2
    assert [(header.offset - header.address) % LARGEST_PAGE for header in loaded] == [0, 0]
    code, data = loaded
    assert (code.address + code.memory_size) // LARGEST_PAGE < data.address // LARGEST_PAGE
    (read_only,) = (header for header in program_headers if header.kind == 0x6474E552)  # PT_GNU_RELRO
    assert (read_only.address + read_only.memory_size) % LARGEST_PAGE == 0


def test_version_under_every_name(bin_dir, emulated, plugin):
    """Every plugin answers VERSION like the machine's executable."""
    outcome = run_plugin(plugin, "VERSION", bin_dir=emulated)
    assert outcome.json["supportedVersions"]
    assert outcome == run_plugin(plugin, "VERSION", bin_dir=bin_dir)


@pytest.mark.parametrize("case", REQUESTS)
def test_answers_are_the_same(bin_dir, emulated, case):
    """A request that needs no netlink has the same answer as from the machine's executable, to the byte."""
    plugin, command, config, env = REQUESTS[case]

    def answer(directory: Path) -> Outcome:
        return run_plugin(
            plugin, command, config, netns="/no/netns", env={"CNI_PATH": "/no/path", **env}, bin_dir=directory
        )

    assert answer(emulated) == answer(bin_dir)


@pytest.mark.parametrize(("cpu", "page"), MACHINES)
def test_leases_are_the_same(bin_dir, emulated, cpu, page, tmp_path):
    """A sequence of verbs of host-local has the same answers and files, on any processor and page size."""
    outcomes, files = run_leases(emulated, tmp_path / "emulated", {"QEMU_CPU": cpu, "QEMU_PAGESIZE": str(page)})
    assert [status for status, _, _ in outcomes] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert "net/10.1.2.2" in files[1]
    assert (outcomes, files) == run_leases(bin_dir, tmp_path / "native", {})


def run_leases(bin_dir: Path, store: Path, machine: dict[str, str]) -> tuple[list[Outcome], list[dict[str, bytes]]]:
    """Allocates, checks, refuses and releases leases; returns the outcome of each verb, and the files after it."""
    request = {**_LEASES, "ipam": {"type": "host-local", "ranges": _RANGES, "dataDir": str(store)}}
    added = {"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.2/29"}, {"address": "fd00:1:2::2/64"}]}}
    kept = {"cni.dev/valid-attachments": [{"containerID": "two", "ifname": "eth0"}]}
    outcomes, files = [], []
    for command, container, keys in (
        ("STATUS", None, {}),
        ("ADD", "one", {}),
        ("CHECK", "one", added),
        ("ADD", "one", {}),
        ("ADD", "two", {}),
        ("DEL", "one", added),
        ("ADD", "three", {}),
        ("GC", None, kept),
        ("DEL", "one", added),
        ("CHECK", "three", added),
    ):
        how = {"netns": "/no/netns", "container_id": container, "env": machine, "bin_dir": bin_dir}
        outcome = run_plugin("host-local", command, {**request, **keys}, **how)
        stdout = re.sub(rb"for \d+ seconds", b"for a while", outcome.stdout.replace(str(store).encode(), b"STORE"))
        outcomes.append(outcome._replace(stdout=stdout))
        files.append({str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()})
    return outcomes, files


def test_the_tool_is_the_same(bin_dir, emulated):
    """The operator's tool prints the same version, plugins and results of `lint` as the machine's executable."""
    examples = sorted(map(str, (ROOT / "conf").glob("*.conflist")))
    for arguments in (["--version"], ["list"], ["lint", *examples], ["lint", "/no/such/file"], ["no-such-verb"]):
        command = ["podwire", *arguments]
        assert tool(emulated, *arguments) == tool(bin_dir, *arguments), command


def tool(directory: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [directory / "podwire", *arguments], env={}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("page", [4096, LARGEST_PAGE])
@pytest.mark.parametrize("plugin_type", ["bridge", "ptp"])
def test_a_pod_is_attached_in_the_same_way(bin_dir, emulated, new_host, new_sandbox, tmp_path, plugin_type, page):
    """ADD creates the same links, addresses and routes on host and pod, and prints the same result."""
    states = []
    for directory, machine in ((emulated, {"QEMU_PAGESIZE": str(page)}), (bin_dir, {})):
        host, pod = new_host(), new_sandbox()
        store = tmp_path / directory.name
        ipam = {"type": "host-local", "ranges": _RANGES, "dataDir": str(store), "routes": [{"dst": "0.0.0.0/0"}]}
        config = {"cniVersion": "1.1.0", "name": "net", "type": plugin_type, "isGateway": True, "ipam": ipam}
        outcome = run_plugin(plugin_type, "ADD", config, netns=pod, host=host, env=machine, bin_dir=directory)
        output = outcome.result(), outcome.stderr
        states.append(anonymous({"output": output, "host": state(host), "pod": state(pod)}, pod))
    assert states[0] == states[1]
    assert "10.1.2.2" in states[0]
    assert "fd00:1:2::2" in states[0]


def anonymous(states: object, pod: Namespace) -> str:
    """Returns states as text, in which random names and addresses are numbered."""
    text = json.dumps(states, indent=1, sort_keys=True).replace(pod.path, "POD")
    for pattern in (r"\bveth[0-9a-f]{8}\b", r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b"):
        for number, random in enumerate(dict.fromkeys(re.findall(pattern, text))):
            text = text.replace(random, f"RANDOM-{number}")
    return text


def test_verbs_of_loopback_are_the_same(bin_dir, emulated, new_sandbox):
    """ADD, CHECK and DEL of loopback have the same output and leave the same state."""
    states = []
    for directory in (emulated, bin_dir):
        pod = new_sandbox()
        config: dict[str, Any] = {"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}
        outcomes: list[object] = []
        for command in ("ADD", "CHECK", "DEL"):
            outcome = run_plugin("loopback", command, config, netns=pod, ifname="lo", bin_dir=directory)
            if command == "ADD":
                config["prevResult"] = outcome.result()
            outcomes.append((outcome.status, outcome.stdout.decode(), outcome.stderr, state(pod)))
        states.append(anonymous(outcomes, pod))
    assert states[0] == states[1]
    assert "127.0.0.1/8" in states[0]
