"""The executable for 64-bit ARM, in qemu's user-mode emulation on this machine's kernel.

One rule: output and files must equal those of this machine's executable. qemu supports only a part of netlink, so
test_machine.py attaches pods, on an emulated machine.
"""

import re
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.binaries import ROOT
from tests.support.invocation import Outcome, run_plugin

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
