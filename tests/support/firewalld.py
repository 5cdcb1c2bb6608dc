"""A real firewalld on a throwaway host, on a bus of its own: Debian's package, unpacked (Makefile), never installed.

One rule: it sees the throwaway host's network namespace only, its files are in one directory, and both daemons end with
the block that started them.
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
    """Returns what to tell when there is no firewalld to run, "" when there is."""
    return "" if (UNPACKED / "usr/sbin/firewalld").is_file() else f"no firewalld in {UNPACKED}: run `make needs-test`"


@contextlib.contextmanager
def bus() -> Iterator[Bus]:
    """Yields a bus that nobody is on."""
    with tempfile.TemporaryDirectory(prefix="pwt-") as directory:
        address = f"unix:path={directory}/bus"
        config = Path(directory, "bus.conf")
        config.write_text(_BUS.format(address=address))
        with _running("dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"):
            own = Bus(address)
            _await(lambda: Path(directory, "bus").exists())
            yield own


@dataclass(frozen=True)
class Bus:
    """A message bus, which stands for the system's for who has `env`."""

    address: str

    @property
    def env(self) -> dict[str, str]:
        """The variable that names it."""
        return {"DBUS_SYSTEM_BUS_ADDRESS": self.address}

    @contextlib.contextmanager
    def firewalld(self, host: Namespace, default_zone: str = "public") -> Iterator[Firewalld]:
        """Runs firewalld on `host`, its nftables backend with its default rules, whose default zone is as given."""
        with tempfile.TemporaryDirectory(prefix="pwt-") as directory, host.entered():
            Path(directory, "firewalld.conf").write_text(
                f"DefaultZone={default_zone}\nFirewallBackend=nftables\nLogDenied=off\n"
            )
            program = [str(UNPACKED / "usr/sbin/firewalld"), "--nofork", "--nopid", "--log-target=console"]
            files = [f"--system-config={directory}", f"--default-config={UNPACKED / 'usr/lib/firewalld'}"]
            private = 'mount -t tmpfs podwire /run; exec /usr/bin/python3 -s "$@"'  # it writes to /run/firewalld
            with _running("unshare", "--mount", "sh", "-ec", private, "sh", *program, *files, env=self.env) as process:
                own = Firewalld(self, process)
                _await(lambda: own.command("--state") == "running")
                yield own


@dataclass(frozen=True)
class Firewalld:
    """A running firewalld."""

    bus: Bus
    process: subprocess.Popen[bytes]

    def command(self, *argv: str) -> str:
        """Runs firewall-cmd and returns what it says; one that fails says nothing."""
        program = ["/usr/bin/python3", "-s", str(UNPACKED / "usr/bin/firewall-cmd"), *argv]
        environment = {**os.environ, **self.bus.env}
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip()

    def sources(self, zone: str = "trusted") -> list[str]:
        """Returns the addresses in a zone, sorted."""
        return sorted(self.command(f"--zone={zone}", "--list-sources").split())

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Has it not answer inside the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def _running(*argv: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program as long as the block; what it says is told when the block fails."""
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
    """Waits until it is so; fails the test when it takes too long."""
    deadline = time.monotonic() + _START_S
    while not ready():
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.02)
