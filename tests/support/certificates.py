"""Creates a certificate authority and its certificate for the loopback and other addresses, with openssl."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import output

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def create(directory: Path, *addresses: str) -> Path:
    """Creates ca.crt, server.crt, server.key and server.pem (both) in a directory; returns the directory.

    The certificate is also for `addresses`.
    """
    paths = {name: str(directory / name) for name in ("ca.key", "ca.crt", "server.key", "server.crt")}
    authority = ("-subj", "/CN=cluster", "-keyout", paths["ca.key"], "-out", paths["ca.crt"])
    output("openssl", "req", "-x509", *_KEY, *authority)
    others = "".join(f",IP:{address}" for address in addresses)
    names = ("-subj", "/CN=kubernetes", "-addext", f"subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost{others}")
    signed_by = ("-CA", paths["ca.crt"], "-CAkey", paths["ca.key"])
    output(
        *("openssl", "req", "-x509", *_KEY, *names, *signed_by),
        *("-keyout", paths["server.key"], "-out", paths["server.crt"]),
    )
    pem = "".join((directory / name).read_text() for name in ("server.key", "server.crt"))
    (directory / "server.pem").write_text(pem)
    return directory
