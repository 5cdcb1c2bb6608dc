"""The machine on which the self-test ran, as far as it decides what works: kernel, processor, distribution, drivers.

One rule: nothing that identifies the machine or its owner is read: no host name, address, serial number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from podwire.node.programs import find_program
from process import files

_MAX_BYTES = 1 << 20  # of a file below /proc, /sys or /etc
_PROGRAMS = ("iptables-restore", "ip6tables-restore", "nft", "ip", "firewall-cmd")
# Lines of /proc/cpuinfo that name the processor: of x86, of ARM with a name, and of ARM with numbers only.
_CPU_LINES = ("model name", "Hardware", "CPU implementer", "CPU part")


def read_facts() -> dict[str, object]:
    """Returns the facts, in the order in which they are printed."""
    system = os.uname()
    return {
        "kernel": f"{system.sysname} {system.release}",
        "machine": system.machine,
        "cpu": _cpu_name(read_text("/proc/cpuinfo")),
        "cpus": len(os.sched_getaffinity(0)),
        "memoryMiB": _memory_mib(read_text("/proc/meminfo")),
        "pageBytes": os.sysconf("SC_PAGE_SIZE"),
        "distribution": _distribution(read_text("/etc/os-release")),
        "product": " ".join(filter(None, (read_text(f"/sys/class/dmi/id/{name}").strip() for name in _PRODUCT))),
        "networkDrivers": sorted(set(_drivers())),
        "programs": [name for name in _PROGRAMS if find_program(name)],
    }


_PRODUCT = ("sys_vendor", "product_name")


def read_text(path: str) -> str:
    """Returns a file's text, "" if it cannot be read."""
    try:
        return files.read(path, _MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def list_modules() -> set[str]:
    """Returns the names of the loaded kernel modules."""
    return {line.split()[0] for line in read_text("/proc/modules").splitlines() if line}


def _cpu_name(text: str) -> str:
    values = dict(re.findall(r"^([\w ]+?)\s*: (.+)$", text, re.MULTILINE))
    for name in _CPU_LINES[:2]:
        if name in values:
            return str(values[name]).strip()
    return ", ".join(f"{name} {values[name]}" for name in _CPU_LINES[2:] if name in values)


def _memory_mib(text: str) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) >> 10 if match else 0


def _distribution(text: str) -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
    return match[1] if match else ""


def _drivers() -> Iterable[str]:
    """Yields the drivers of the machine's network devices; veth, bridge and the like have none."""
    try:
        names = os.listdir("/sys/class/net")
    except OSError:
        return
    for name in names:
        try:
            yield os.path.basename(os.readlink(f"/sys/class/net/{name}/device/driver"))
        except OSError:
            continue
