"""A real kube-apiserver with etcd, by default on loopback, from the directory that `make kubernetes` fills.

One rule: both are processes of this fixture, write below one directory, and end with it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.api_errors import ApiError
from agent.api_server import Server
from agent.kubernetes import Client
from tests.support.binaries import ROOT

DIRECTORY = ROOT / "build" / "kubernetes"
_READY_S = 60
_POLL_S = 0.1
# Users of the token file: the administrator, the agent with the rights that a test creates, a user without any.
_TOKENS = "admin,admin,1,system:masters\nagent,agent,2,agents\nstranger,stranger,3\n"


def is_built() -> bool:
    """Returns whether the programs are there."""
    return (DIRECTORY / "kube-apiserver").is_file()


def free_port(address: str = "127.0.0.1") -> int:
    """Returns a free TCP port of an address."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port


class KubeApiServer:
    """The two processes; `certificates` has server.crt and server.key."""

    def __init__(self, directory: Path, certificates: Path, address: str = "127.0.0.1") -> None:
        self.directory, self.certificates, self.address = directory, certificates, address
        self.etcd_url = f"http://127.0.0.1:{free_port()}"
        self.port = free_port(address)
        self.url = f"https://{address}:{self.port}"
        for name, text in (("tokens.csv", _TOKENS), ("admin", "admin")):
            (directory / name).write_text(text)
        self._peer_url = f"http://127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[KubeApiServer]:
        """Runs both programs inside the block, ready when it begins."""
        try:
            self.start_etcd()
            self.start()
            yield self
        finally:
            self.kill("kube-apiserver")
            self.kill("etcd")

    def start_etcd(self) -> None:
        """Starts etcd with the data of the directory; does not wait."""
        member = f"default={self._peer_url}"
        self._start(
            *("etcd", "--unsafe-no-fsync", f"--data-dir={self.directory}/etcd"),
            *(f"--listen-client-urls={self.etcd_url}", f"--advertise-client-urls={self.etcd_url}"),
            *(f"--listen-peer-urls={self._peer_url}", f"--initial-advertise-peer-urls={self._peer_url}"),
            f"--initial-cluster={member}",
        )

    def start(self) -> None:
        """Starts kube-apiserver and waits until it is ready and the namespace "default" exists."""
        certificate, key = self.certificates / "server.crt", self.certificates / "server.key"
        self._start(
            *("kube-apiserver", f"--etcd-servers={self.etcd_url}", f"--cert-dir={self.directory}"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            *(f"--secure-port={self.port}", f"--bind-address={self.address}", f"--advertise-address={self.address}"),
            *(f"--token-auth-file={self.directory}/tokens.csv", "--authorization-mode=RBAC", "--anonymous-auth=false"),
            *("--service-account-issuer=https://podwire.example", f"--service-account-key-file={certificate}"),
            *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/16"),
            *("--disable-admission-plugins=ServiceAccount", "--allow-privileged"),
        )
        process, end = self._processes["kube-apiserver"], time.monotonic() + _READY_S
        while not self._is_ready():
            assert process.poll() is None, f"kube-apiserver ended: {self.log('kube-apiserver')}"
            assert time.monotonic() < end, f"kube-apiserver is not ready: {self.log('kube-apiserver')}"
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            self.client("admin").get("/api/v1/namespaces/default")
        except ApiError:
            return False
        return True

    def client(self, token: str) -> Client:
        """Returns a client with a user's token."""
        path = self.directory / f"token-{token}"
        path.write_text(token)
        return Client(Server(self.url, self.certificates / "ca.crt"), path)

    def compact(self) -> None:
        """Removes the history from the store, as the API server does every five minutes."""
        key = base64.b64encode(b"x").decode()
        revision = self._etcd("range", {"key": key})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})

    def pause(self, name: str) -> None:
        """Stops a program until resume(): its connections stay open."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Continues a program."""
        self._processes[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Kills a program, if it runs."""
        if process := self._processes.pop(name, None):
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        """Returns the end of a program's log."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-3000:]

    def _etcd(self, method: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.etcd_url}/v3/kv/{method}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def _start(self, name: str, *options: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ("setpriv", "--pdeathsig=KILL", str(DIRECTORY / name), *options),
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
