"""Connections to the API server or to etcd: TLS, and the class of an error of a connection.

One rule: each failure is an ApiError whose class shows whether the server may have executed the request. A request is
sent once: only the caller can decide to repeat it. Redirects are not followed, proxies of the environment not used.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError
from urllib3.util.ssl_match_hostname import CertificateError

from agent.api_errors import ApiError, NoCredentials, OutcomeUnknown, Unreachable, Untrusted
from agent.api_server import CurrentFile

_IS_URLLIB3_2 = hasattr(urllib3, "BaseHTTPResponse")  # Debian 12 has 1.26
# A watch may be silent for long. The kernel ends a connection to a machine that is gone or cut off within a minute.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
# The codes of OpenSSL's x509_vfy.h; Python has no names for them.
_NOT_YET_VALID, _EXPIRED, _HOSTNAME_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64


class ClientCertificate(NamedTuple):
    """A certificate by which a server knows the client, and its key: files in PEM."""

    certificate: Path
    key: Path


class _Files(NamedTuple):
    """The content of the files with which the connections were made."""

    authority: str
    certificate: str = ""
    key: str = ""


class Connections:
    """Connections that trust one certificate authority, a file or PEM text; several threads may use them.

    A file that another program replaces counts from the next request.
    """

    def __init__(
        self,
        authority: Path | str,
        client: ClientCertificate | None = None,
        *,
        servers: int = 1,
    ) -> None:
        self._authority = CurrentFile(authority) if isinstance(authority, Path) else authority
        self._client = client
        self._client_files = tuple(map(CurrentFile, client)) if client else ()
        self._servers = servers
        self._lock = threading.Lock()
        self._pool: tuple[_Files, urllib3.PoolManager] | None = None

    def send(
        self,
        described: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: urllib3.Timeout,
    ) -> urllib3.BaseHTTPResponse:
        """Sends a request and returns the answer, whatever its status, before its body is read."""
        pool = self._current_pool(described)
        try:
            return pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=timeout,
                redirect=False,
                retries=False,
                preload_content=False,
            )
        except (HTTPError, OSError) as error:
            raise self._error(described, url, error) from error

    def forget(self) -> None:
        """Opens new connections from now on: after a change of this node's addresses, answers may not arrive."""
        with self._lock:
            self._pool = None

    def _current_pool(self, described: str) -> urllib3.PoolManager:
        """Returns the connections made with the present files."""
        file: CurrentFile | None = None
        texts = []
        try:
            for source in (self._authority, *self._client_files):
                file = source if isinstance(source, CurrentFile) else None
                texts.append(file.text() if file else str(source))
            files = _Files(*texts)
            with self._lock:
                if self._pool is None or self._pool[0] != files:
                    self._pool = files, self._new_pool(files.authority)
                return self._pool[1]
        except (OSError, ValueError) as error:
            name = f"the file {file.path}" if file else "the kubeconfig's certificate authority"
            raise NoCredentials(described, f"{name} cannot be used: {error}") from error

    def _new_pool(self, authority: str) -> urllib3.PoolManager:
        """Returns a pool that trusts one certificate authority, not those of the system, which would take 10 MiB."""
        context = ssl.create_default_context(cadata=authority)
        # Python 3.13 refuses certificates without a key identifier, which many clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # urllib3 1.26 passes no IP address to OpenSSL as a server's name; without the flag it compares names itself.
        context.check_hostname = _IS_URLLIB3_2
        if self._client:
            context.load_cert_chain(*self._client, password="")  # an encrypted key fails instead of asking for it
        # Debian's urllib3 otherwise also trusts the authorities in /etc/ssl, and fails without that file.
        return urllib3.PoolManager(
            num_pools=self._servers,
            maxsize=2,
            ssl_context=context,
            ca_certs=None,
            socket_options=[*HTTPConnection.default_socket_options, *_KEEPALIVE],
        )

    def _error(self, described: str, target: str, error: Exception) -> ApiError:
        url = _server_of(target)
        certificate_errors = ssl.SSLCertVerificationError | CertificateError
        if isinstance(error, SSLError) and isinstance(error.args[0], certificate_errors):
            fix = self._certificate_fix(error.args[0])
            return Untrusted(described, f"the certificate of {url} is not trusted: {error.args[0]}", fix)
        if isinstance(error, ConnectTimeoutError | NewConnectionError):
            fix = "check that the server runs, and the address and port"
            # urllib3's text has the address of an object in memory, so that each attempt would be another problem.
            return Unreachable(described, f"no connection to {url}: {error.__cause__ or error.__context__}", fix)
        if isinstance(error, ReadTimeoutError):
            return OutcomeUnknown(described, f"{url} has sent no answer in time")
        return OutcomeUnknown(described, f"the connection to {url} was cut before an answer: {error}")

    def _certificate_fix(self, error: ssl.SSLCertVerificationError | CertificateError) -> str:
        """Returns the fix for a certificate by the reason of its refusal."""
        code = getattr(error, "verify_code", _HOSTNAME_MISMATCH)  # CertificateError is about the name only
        if code == _EXPIRED:
            return "renew the server's certificate, or that of its authority, and check this machine's clock"
        if code == _NOT_YET_VALID:
            return "check the clocks of this machine and of the one that issued the certificate"
        if code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
            return "use a name or an address that the server's certificate has, or issue one that has this address"
        return f"use the certificate authority of the cluster, not that of {self._authority_name()}"

    def _authority_name(self) -> str:
        return str(self._authority.path) if isinstance(self._authority, CurrentFile) else "the kubeconfig"


def _server_of(url: str) -> str:
    """Returns the scheme, host and port of a URL."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
