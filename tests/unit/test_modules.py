"""Why a kernel module is missing: what the files of the kernel and of modprobe show."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import modules, system
from tests.support.binaries import ROOT

PAGE = ROOT / "docs/hardware.md"
RELEASE = os.uname().release
LIBRARY = f"lib/modules/{RELEASE}"
KERNEL = {"proc/version": "Linux", "proc/modules": "veth 1 0 - Live 0x0\n", "proc/sys/kernel/modules_disabled": "0\n"}
WITH_VXLAN = {**KERNEL, f"{LIBRARY}/modules.dep": "kernel/drivers/net/vxlan/vxlan.ko.zst: kernel/net/udp_tunnel.ko\n"}
LOAD = "load the module: modprobe vxlan"


class Files(system.System):
    """A system whose files are below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, path: str) -> str:
        """Returns the path below the directory."""
        return str(self.root / path.removeprefix("/"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Yields the directory that has the files which the code reads."""
    with system.replaced(Files(tmp_path)):
        yield tmp_path


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({}, LOAD),
        (KERNEL, LOAD),
        (WITH_VXLAN, LOAD),
        ({**KERNEL, f"{LIBRARY}/modules.builtin": "kernel/drivers/net/vxlan/vxlan.ko\n"}, LOAD),
        ({"proc/version": "Linux"}, f"use a kernel with CONFIG_VXLAN: this one, {RELEASE}, has no loadable modules"),
        (
            {**KERNEL, "lib/modules/0.1/modules.dep": ""},
            f"reboot: /lib/modules has the modules of another kernel than the running one, {RELEASE}",
        ),
        (
            {**KERNEL, f"{LIBRARY}/modules.dep": "kernel/net/8021q/8021q.ko:\n"},
            f"/{LIBRARY} has no vxlan: install a package such as linux-modules-extra-{RELEASE} (Ubuntu) or "
            "kernel-modules-extra (Fedora, RHEL)",
        ),
        (
            {**WITH_VXLAN, "etc/modprobe.d/cis.conf": "# tunnels\ninstall vxlan /bin/false\n"},
            'vxlan must be loaded, and "install vxlan /bin/false" in /etc/modprobe.d/cis.conf forbids that: '
            "decide which applies",
        ),
        ({**WITH_VXLAN, "etc/modprobe.d/cis.conf": "install vxlan2 /bin/false\noptions vxlan a=1\n"}, LOAD),
        (
            {**WITH_VXLAN, "proc/sys/kernel/modules_disabled": "1\n"},
            "list vxlan in a file of /etc/modules-load.d and reboot: kernel.modules_disabled is 1",
        ),
    ],
)
def test_the_cause_decides_the_fix(root: Path, contents: dict[str, str], expected: str):
    """Only a module that can be loaded has a command; a prohibition, a reboot or a package is named instead."""
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert modules.explain_missing("vxlan") == expected


def test_several_modules_have_one_command(root: Path):
    """Several missing modules are loaded by one command."""
    assert modules.explain_missing("ifb", "sch_tbf") == "load the modules: modprobe -a ifb sch_tbf"


def test_a_device_without_a_file_is_recognized(root: Path):
    """The kernel's list of devices shows whether it has one, also if the device's file is missing."""
    assert not modules.has_device("tun")
    (root / "proc").mkdir()
    (root / "proc/misc").write_text(" 10 udmabuf\n200 tun\n")
    assert [modules.has_device(name) for name in ("tun", "un")] == [True, False]


def test_the_page_lists_every_module_and_setting():
    """The page's tables name each module with a known cause, and only settings that the code names."""
    section = PAGE.read_text().split("## Modules and settings")[1].split("\n## ")[0]
    names = set(re.findall(r"`([^`]+)`", section))
    assert set(modules.OPTIONS) - names == set()
    sources = "".join(
        path.read_text()
        for room in ("attachment", "kernel", "plugins", "podwire")
        for path in Path(ROOT, room).rglob("*.py")
    )
    settings = [name.removeprefix("net.") for name in names if name.startswith("net.")]
    parts = [re.split(r"\.[A-Z]+\.", name)[-1].replace(".", "/") for name in settings]
    assert len(parts) == 7
    assert [part for part in parts if part not in sources] == []
