"""A real kube-apiserver with etcd, by default on loopback, from the directory that `make kubernetes` fills.

One rule: both are processes of this fixture, write below one directory, and end with it.
"""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from agent.api_errors import ApiError
from agent.api_server import Server
from agent.kubernetes import ApiClient
from tests.support import binaries
from tests.support.etcd import BUILT, Etcd, free_port, start_daemon
from tests.support.machine import eventually

_READY_S = 300
# Users of the token file: the administrator, the agent with the rights that a test creates, a user without any.
_TOKENS = "admin,admin,1,system:masters\nagent,agent,2,agents\nstranger,stranger,3\n"
# Of a server without controllers, which would create the tokens of pods.
_ALONE = ("--authorization-mode=RBAC", "--anonymous-auth=false", "--disable-admission-plugins=ServiceAccount")


class KubeApiServer:
    """The server and its etcd; a test without them is skipped. `certificates` has server.crt and server.key.

    `tokens` is the text of the token file, and has the user "admin".
    """

    def __init__(
        self,
        directory: Path,
        certificates: Path,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        tokens: str = _TOKENS,
        options: Sequence[str] = _ALONE,
    ) -> None:
        if not (BUILT / "kube-apiserver").is_file():
            binaries.skip_or_fail("no kube-apiserver in build/kubernetes: run `make kubernetes` (10 CPU minutes, once)")
        self.directory, self.certificates, self.address, self.options = directory, certificates, address, options
        self.etcd = Etcd(BUILT / "etcd", directory)
        self.port = port or free_port(address)
        self.url = f"https://{f'[{address}]' if ':' in address else address}:{self.port}"
        (directory / "tokens.csv").write_text(tokens)
        self._log = directory / "kube-apiserver.log"
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Runs both programs inside the block, ready when it begins."""
        with self.etcd.running():
            try:
                self.start()
                yield self
            finally:
                self.kill()

    def start(self) -> None:
        """Starts kube-apiserver and waits until it is ready and the namespace "default" exists."""
        certificate, key = self.certificates / "server.crt", self.certificates / "server.key"
        self._process = start_daemon(
            *(str(BUILT / "kube-apiserver"), f"--etcd-servers={self.etcd.urls[0]}", f"--cert-dir={self.directory}"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            *(f"--secure-port={self.port}", f"--bind-address={self.address}", f"--advertise-address={self.address}"),
            *("--service-account-issuer=https://podwire.example", f"--service-account-key-file={certificate}"),
            *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/16"),
            *(f"--token-auth-file={self.directory}/tokens.csv", "--allow-privileged", *self.options),
            log=self._log,
        )
        process = self._process
        assert eventually(lambda: self._is_ready() or process.poll() is not None, within_s=_READY_S), self._problem()
        assert process.poll() is None, self._problem()

    def _problem(self) -> str:
        return f"kube-apiserver is not ready: {self._log.read_text(errors='replace')[-3000:]}"

    def _is_ready(self) -> bool:
        try:
            self.client("admin").get("/api/v1/namespaces/default")
        except ApiError:
            return False
        return True

    def client(self, token: str) -> ApiClient:
        """Returns a client with a user's token."""
        path = self.directory / f"token-{token}"
        path.write_text(token)
        return ApiClient(Server(self.url, self.certificates / "ca.crt"), path)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to kube-apiserver: one that is stopped keeps its connections open."""
        assert self._process
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills kube-apiserver."""
        if self._process:
            self._process.kill()
            self._process.wait()
