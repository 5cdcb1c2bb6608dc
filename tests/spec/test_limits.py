"""Limits of the input: a plugin rejects long, deep and endless input, in little time and memory."""

import contextlib
import json
import os
import resource
import subprocess
from typing import IO

import pytest

from tests.support import binaries
from tests.support.invocation import Outcome, finish, start_plugin

MAX_BYTES = 2 << 20
# The heap in the file, the file itself, and further allocations; half of it is never touched. (The peak of resident
# memory cannot be measured: the kernel also counts the tester's pages before the exec.)
ADDRESS_SPACE = 144 << 20
PORTABLE = "pyinstaller" in binaries.directory().parts  # needs as much memory as Python needs
_HEAD = b'{"cniVersion": "1.1.0", "name": "net", "x": '


def run_limited(
    plugin: str, command: str, stdin: bytes | IO[bytes], host, *, address_space: int = ADDRESS_SPACE
) -> Outcome:
    """Runs a plugin with limited address space; it may stop reading stdin early."""
    file = subprocess.PIPE if isinstance(stdin, bytes) else stdin
    process = start_plugin(plugin, command, netns="/no/such/netns", host=host, stdin=file)
    if not PORTABLE:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (address_space, address_space))
    if isinstance(stdin, bytes):
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdin = None
    return finish(process)


def filled(unit: bytes, size: int, end: bytes = b"1]}") -> bytes:
    """Returns a configuration of `size` bytes with a list that repeats `unit`."""
    room = size - len(_HEAD) - 1 - len(end)
    return (_HEAD + b"[" + unit * (room // len(unit)) + end).ljust(size)


TOO_MUCH = {
    "long": filled(b'"abc",', MAX_BYTES + 1),
    "100 MB": filled(b"{},", 100 << 20),
    "100 MB in one string": _HEAD + b'"' + b"x" * (100 << 20) + b'"}',
    "100 MB of spaces": b" " * (100 << 20),
    "nested lists": _HEAD + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested objects": _HEAD + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "nested and cut off": b"[" * 1_000_000,
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_too_much_input_is_rejected_with_the_limit(plugin, quiet_host, kind):
    """Input longer than 2 MiB, or nested too deeply, causes code 6 and a message that names the limit."""
    outcome = run_limited(plugin, "ADD", TOO_MUCH[kind], quiet_host)
    error = outcome.error()
    assert error["code"] == 6
    assert "the limit is " in error["msg"]


@pytest.mark.parametrize("source", ["/dev/zero", "yes"])
def test_endless_stdin_is_rejected(plugin, quiet_host, source, tmp_path):
    """A plugin reads no more of an endless stdin than the limit."""
    if source == "yes":
        endless = tmp_path / "endless"
        with endless.open("wb") as file:
            file.write(b"y\n")
            file.truncate(1 << 40)
        source = str(endless)
    with open(source, "rb") as stdin:
        outcome = run_limited(plugin, "DEL", stdin, quiet_host)
        assert outcome.error()["code"] == 6
        assert "the limit is 2 MiB" in outcome.error()["msg"]
        if stdin.seekable() and source != "/dev/zero":
            assert os.lseek(stdin.fileno(), 0, os.SEEK_CUR) <= MAX_BYTES + (256 << 10)


BROKEN = b'{"\\ud800":[]},'
UNITS = [b"[],", b'{"":0},', b'{"a":1.5},', b'"abc",', b'"\xf0\x9f\x98\x80",', b"999,", b"1e999,", BROKEN]


@pytest.mark.skipif(PORTABLE, reason="the portable variant has no heap of a known size")
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_memory_is_bounded_for_input_within_the_limit(plugin, quiet_host, unit):
    """Any 2 MiB of JSON are read within the address space, or twice the address space with invalid escapes."""
    space = 2 * ADDRESS_SPACE if unit == BROKEN else ADDRESS_SPACE
    error = run_limited(plugin, "ADD", filled(unit, MAX_BYTES), quiet_host, address_space=space).error()
    assert error["code"] not in (6, 999)


NUMBERS = {
    "1e999999999": b"1e999999999",
    "a million digits": b"9" * 1_000_000,
    "a million digits after the point": b"0." + b"9" * 1_000_000,
    "negative": b"-" + b"9" * 1_000_000,
}


@pytest.mark.parametrize("number", NUMBERS)
def test_huge_numbers_are_out_of_range(plugin, quiet_host, number):
    """A number of any size is read, and rejected as the value of a known key, without a defect and without delay."""
    key = {"portmap": "markMasqBit", "bandwidth": "ingressRate"}.get(plugin, "mtu")
    config = _HEAD + b'1, "' + key.encode() + b'": ' + NUMBERS[number] + b"}"
    error = run_limited(plugin, "ADD", config, quiet_host).error()
    assert "defect" not in error.get("details", "")
    assert len(json.dumps(error)) < 2000


def test_gc_of_a_large_node_is_within_the_limit(plugin, quiet_host, store):
    """The configuration of GC with 10,000 attachments is within the limit."""
    attachments = [{"containerID": f"{number:064x}", "ifname": "eth0"} for number in range(10_000)]
    config = {"cniVersion": "1.1.0", "name": "net", "type": plugin, "cni.dev/valid-attachments": attachments}
    assert len(json.dumps(config)) < MAX_BYTES
    ipam = {"ipam": {"type": "host-local", "dataDir": str(store)}}
    outcome = run_limited(plugin, "GC", json.dumps({**config, **ipam}).encode(), quiet_host)
    outcome.assert_silent()


@pytest.mark.skipif(PORTABLE, reason="the portable variant has no heap of a known size")
def test_lack_of_memory_is_an_error_object(plugin, quiet_host):
    """A plugin without enough address space for its input prints an error object."""
    error = run_limited(plugin, "ADD", filled(BROKEN, MAX_BYTES), quiet_host, address_space=104 << 20).error()
    assert (error["code"], error["msg"]) == (999, "out of memory")
