"""Debian's own kernels for the tests, on an emulated machine with all modules: Linux 5.10 of Debian 11 to sid's newest.

By hand: `make test-debian-kernel DISTRIBUTION=bullseye TESTS=tests/netns/test_vlan.py`.

One rule: the machine runs from the test root, which is the same on every computer, and has no network interface.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from tests.support import initrd, kernel_boot
from tests.support.binaries import ROOT
from tests.support.kernel_boot import Program

PROGRAM = "qemu-system-x86_64"
KERNELS = ROOT / "build" / "kernels"  # `make debian-kernel` unpacks them there, by release
TEST_ROOT = ROOT / "build" / "root"

_INIT = Path(__file__).with_suffix(".sh")
_MODULES = ("kernel/drivers/virtio", "kernel/net/9p", "kernel/fs/9p", "kernel/fs/netfs", "kernel/fs/fscache")
# One processor, without AVX, which is slow in emulation; a translation cache in which all programs of a test fit. With
# mitigations=off and rcu_expedited on the command line, the kernel works and waits less.
_MACHINE = ["-accel", "tcg,tb-size=1024", "-cpu", "Nehalem", "-smp", "1", "-m", "2048"]
_NO_DEVICES = ["-nodefaults", "-display", "none", "-nic", "none", "-no-reboot"]
_APPEND = "console=ttyS1 quiet loglevel=4 panic=-1 mitigations=off rcupdate.rcu_expedited=1"
_TIMEOUT = "--timeout=1200"  # of a test: emulation is some twenty times slower than this machine
# Golden states, packets, and the interfaces and rules that the running kernel and user-mode Linux lack. At 3.4 s for a
# test, as measured, that is some half an hour for a kernel on an idle machine; all of tests/netns would be four hours.
SAMPLE = (
    *("golden", "golden_bandwidth", "golden_chained", "golden_portmap", "private_kernel", "kernel_nft"),
    *("kernel_traffic", "kernel_tap", "firewall_iptables", "firewall_nftables", "masquerade_nftables"),
    *("portmap_traffic", "sbr", "bridge_mac_spoof", "bridge_vlan", "vlan", "vrf", "vrf_traffic"),
    *("first_commands", "dummy", "macvlan", "ipvlan", "tap"),
    *("host_device", "loopback", "dhcp"),
)
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig=KILL")


def missing(release: str) -> str:
    """Returns a message if the emulator, the test root or the kernel of a release is missing, "" otherwise."""
    if not shutil.which(PROGRAM):
        return f"no {PROGRAM}: install Debian's qemu-system-x86"
    if not (TEST_ROOT / "usr").is_dir():
        return f"no {TEST_ROOT}: run `make test-root`"
    if not (KERNELS / release / "files" / ".versions").is_file():
        return f"no kernel in {KERNELS / release}: run `make debian-kernel DISTRIBUTION={release}`"
    return ""


def boot(
    release: str,
    command: Sequence[str],
    shared: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
    timeout_s: float = 4 * 3600,
) -> int:
    """Boots the kernel of a release, runs `command` and returns its exit status: kernel_boot.boot."""
    prepare = partial(_prepare, KERNELS / release / "files", dict(env or {}).get("REFERENCE", ""))
    return kernel_boot.boot(prepare, command, shared, env=env, stdout=stdout, timeout_s=timeout_s)


def _prepare(files: Path, reference: str, shared: Path, output: int, messages: int) -> Program:
    """Returns the program of a boot: its stdout, the first serial port, has the command's output."""
    (modules,) = (files / "lib" / "modules").iterdir()
    kernel = next(path for path in files.rglob("vmlinuz*") if path.is_file())
    programs = {"init": _INIT.read_bytes(), "bin/busybox": (TEST_ROOT / "bin/busybox").read_bytes()}
    archive = shared / "initrd"
    archive.write_bytes(initrd.build({**programs, **initrd.read_modules(files, modules.name, _MODULES)}))
    directories = {"root": TEST_ROOT, "project": ROOT, "modules": modules.parent}
    if reference:
        directories["reference"] = Path(reference)
    for directory in (str(ROOT), reference):  # mount points, which the machine cannot create
        Path(f"{TEST_ROOT}/{directory}").mkdir(parents=True, exist_ok=True)
    line = [
        *(*_DIES_WITH_PARENT, PROGRAM, *_MACHINE, *_NO_DEVICES),
        *("-kernel", str(kernel), "-initrd", str(archive)),
        *("-append", f"{_APPEND} PODWIRE_PROJECT={ROOT} PODWIRE_REFERENCE={reference}"),
        *("-serial", "stdio", "-serial", f"file:/proc/self/fd/{messages}"),
        *("-virtfs", f"local,path={shared},mount_tag=shared,security_model=none"),
    ]
    for tag, path in directories.items():
        options = f"mount_tag={tag},security_model=passthrough,readonly=on,multidevs=remap"
        line += ["-virtfs", f"local,path={path.resolve()},{options}"]
    return Program(line, {}, prints_messages=False)


def main(arguments: list[str]) -> int:
    """Runs pytest with `arguments`, or SAMPLE, under the kernel of a Debian release; returns its exit status."""
    parser = kernel_boot.parser(main.__doc__)
    parser.add_argument("--release", required=True, help="a Debian release: bullseye, trixie, sid ...")
    known, others = parser.parse_known_args(arguments)
    if problem := missing(known.release):
        print(problem, file=sys.stderr)
        return 1

    def boot_command(command: Sequence[str], shared: Path, env: Mapping[str, str]) -> int:
        return boot(known.release, command, shared, env=env)

    sample = [*("-m", "not one_kernel"), *(f"tests/netns/test_{name}.py" for name in SAMPLE)]
    return kernel_boot.run_pytest(boot_command, known.report, [_TIMEOUT, "-rs", *(others or sample)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
