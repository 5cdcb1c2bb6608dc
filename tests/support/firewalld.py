"""A real firewalld on a temporary host, on a separate bus: Debian's package, unpacked by the Makefile, not installed.

It sees only the network namespace of the temporary host, its files are in one directory, and both daemons end with the
block that started them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import binaries
from tests.support.namespaces import Namespace

UNPACKED = binaries.ROOT / "build" / "firewalld"
_START_S = 30.0
_BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>{address}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow own="*"/><allow send_destination="*" eavesdrop="false"/><allow receive_sender="*"/>
  </policy>
</busconfig>
"""


def missing() -> str:
    """Returns why firewalld cannot be run, "" if it can."""
    return "" if (UNPACKED / "usr/sbin/firewalld").is_file() else f"no firewalld in {UNPACKED}: run `make needs-test`"


@contextlib.contextmanager
def bus() -> Iterator[Bus]:
    """Yields a bus without services."""
    with tempfile.TemporaryDirectory(prefix="pwt-") as directory:
        address = f"unix:path={directory}/bus"
        config = Path(directory, "bus.conf")
        config.write_text(_BUS.format(address=address))
        with _running("dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"):
            _await(lambda: Path(directory, "bus").exists())
            yield Bus(address)


@dataclass(frozen=True)
class Bus:
    """A message bus; a process with the variables `env` uses it as its system bus."""

    address: str

    @property
    def env(self) -> dict[str, str]:
        """The environment variable that has its address."""
        return {"DBUS_SYSTEM_BUS_ADDRESS": self.address}

    @contextlib.contextmanager
    def firewalld(self, host: Namespace, default_zone: str = "public") -> Iterator[Firewalld]:
        """Runs firewalld on `host` inside the block, with its nftables backend and default rules."""
        with tempfile.TemporaryDirectory(prefix="pwt-") as directory, host.entered():
            Path(directory, "firewalld.conf").write_text(
                f"DefaultZone={default_zone}\nFirewallBackend=nftables\nLogDenied=off\n"
            )
            program = [str(UNPACKED / "usr/sbin/firewalld"), "--nofork", "--nopid", "--log-target=console"]
            files = [f"--system-config={directory}", f"--default-config={UNPACKED / 'usr/lib/firewalld'}"]
            private = 'mount -t tmpfs podwire /run; exec /usr/bin/python3 -s "$@"'  # it writes to /run/firewalld
            with _running("unshare", "--mount", "sh", "-ec", private, "sh", *program, *files, env=self.env) as process:
                firewalld = Firewalld(self, process)
                _await(lambda: firewalld.command("--state") == "running")
                yield firewalld


@dataclass(frozen=True)
class Firewalld:
    """A running firewalld."""

    bus: Bus
    process: subprocess.Popen[bytes]

    def command(self, *argv: str) -> str:
        """Runs firewall-cmd; returns its stdout, "" if it fails."""
        program = ["/usr/bin/python3", "-s", str(UNPACKED / "usr/bin/firewall-cmd"), *argv]
        environment = {**os.environ, **self.bus.env}
        completed = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return completed.stdout.strip()

    def sources(self, zone: str = "trusted") -> list[str]:
        """Returns the sources of a zone, sorted."""
        return sorted(self.command(f"--zone={zone}", "--list-sources").split())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the process inside the block, so that it does not answer."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def _running(*argv: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program inside the block; prints its output if the block fails."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process
        except BaseException:
            log.seek(0)
            print(f"{argv[0]}: {log.read().decode(errors='replace')}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(ready: Callable[[], object]) -> None:
    """Waits until `ready` returns a true value; fails the test after 30 s."""
    deadline = time.monotonic() + _START_S
    while not ready():
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.02)
