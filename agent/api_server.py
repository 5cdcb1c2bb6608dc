"""The Kubernetes API server's address, certificate authority and token: where the agent finds them.

One rule: of a kubelet's kubeconfig only the address and the certificate authority are used. The token is the agent's
service account's.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cni.address import Address, parse_ip
from process.files import read

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_BYTES = 1 << 20
# kubelet renews the file of a bound token at 80 % of its life; its modification time shows that. A file system that
# shows no change (an overlay, a copy within the clock's tick) costs no more than this.
_READ_AGAIN_S = 60
_KEY = re.compile(
    r"^\s*(?:- )?\s*(server|certificate-authority-data|certificate-authority):\s*(.*?)\s*(?: #.*)?$", re.M
)


class Server(NamedTuple):
    """The server's URL, such as "https://[fd00::1]:6443", and its certificate authority: a file, or PEM text."""

    url: str
    ca_file: Path | None = None
    ca_text: str = ""


def server_from_url(url: str, ca_file: Path) -> Server:
    """Returns the server of an option; raises ValueError for a URL that is not https://HOST[:PORT]."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme == "https" and parts.hostname and parts.path in ("", "/") and not parts.query
        port = parts.port or 443
    except ValueError:
        valid, port = False, 0
    if not valid or "@" in url:
        raise ValueError(f"{url!r} is not the address of a Kubernetes API server; write https://HOST:PORT")
    return Server(_url(str(parts.hostname), str(port)), ca_file)


def server_from_environment(environ: Mapping[str, str], ca_file: Path = SERVICE_ACCOUNT / "ca.crt") -> Server | None:
    """Returns the server of the variables that kubelet sets in a container; None without them.

    Its address is that of the Service "kubernetes": kube-proxy must run.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST")
    port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    return Server(_url(host, port), ca_file) if host else None


def server_from_kubeconfig(path: Path) -> Server:
    """Returns the server of a kubelet's kubeconfig, YAML or JSON; raises OSError, ValueError with the file's name.

    A file with several clusters is refused: which one is the node's?
    """
    try:
        values = _kubeconfig_values(read(str(path), _MAX_BYTES).decode())
        url = server_from_url(values["server"], path).url
        if data := values.get("certificate-authority-data"):
            return Server(url, None, base64.b64decode(data, validate=True).decode("ascii"))
        if name := values.get("certificate-authority"):
            return Server(url, path.parent / name)
        raise ValueError("it has no certificate authority")
    except KeyError as error:
        raise ValueError(f"kubeconfig {path}: it has no {error.args[0]}") from error
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"kubeconfig {path}: it is damaged: {error}") from error
    except ValueError as error:
        raise ValueError(f"kubeconfig {path}: {error}") from error


def _kubeconfig_values(text: str) -> dict[str, str]:
    """Returns the keys of the only cluster. Only these lines are read: the agent needs no YAML library for them."""
    if text.lstrip().startswith("{"):
        text = json.dumps(json.loads(text), indent=1).replace('"', "").replace(",\n", "\n")
    values: dict[str, str] = {}
    for key, value in _KEY.findall(text):
        if key in values:
            raise ValueError("it has several clusters; set the address of the API server instead")
        values[key] = value.strip("\"'")
    return values


def addresses_of(server: Server) -> list[Address]:
    """Returns the addresses of the server, none while its name cannot be resolved."""
    try:
        answers = socket.getaddrinfo(urlsplit(server.url).hostname, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [parse_ip(str(where[0]).partition("%")[0]) for *_, where in answers]


def _url(host: str, port: str) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class CurrentFile:
    """A small file that another program replaces, such as a token: read again when it changes, or after a minute."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._signature: tuple[int, int, int] | None = None
        self._read_at = 0.0
        self._text = ""
        self._lock = threading.Lock()

    def text(self) -> str:
        """Returns the content without surrounding blanks; raises OSError, ValueError for an empty or binary file."""
        with self._lock:
            status = os.stat(self.path)
            signature = (status.st_mtime_ns, status.st_ino, status.st_size)
            now = self._monotonic()
            if signature != self._signature or now - self._read_at >= _READ_AGAIN_S:
                text = read(str(self.path), _MAX_BYTES).decode("ascii").strip()
                if not text:
                    raise ValueError("it is empty")
                self._text, self._signature, self._read_at = text, signature, now
            return self._text

    def forget(self) -> None:
        """Drops the content, so that the next call reads the file."""
        self._signature = None
