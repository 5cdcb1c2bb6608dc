"""Creates a certificate authority and its certificate for the loopback and other addresses, with openssl."""

from pathlib import Path

from tests.support.processes import output

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")

_CONF = """
[ca]
default_ca = cluster
[cluster]
certificate = ca.crt
private_key = ca.key
database = index.txt
rand_serial = yes
new_certs_dir = .
default_md = sha256
copy_extensions = copy
policy = names
[names]
commonName = supplied
"""


def create(directory: Path, *addresses: str) -> Path:
    """Creates ca.crt, server.crt (for `addresses`), server.key and server.pem (both); returns the directory."""
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
    _write_pem(directory)
    return directory


def reissue(directory: Path, first: str, last: str) -> None:
    """Replaces the server's certificate by one that is valid between two times (YYYYMMDDHHMMSSZ)."""
    conf, request = directory / "ca.conf", directory / "server.csr"
    conf.write_text(_CONF)
    (directory / "index.txt").write_text("")
    names = ("-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost")
    output("openssl", "req", "-new", "-key", str(directory / "server.key"), *names, "-out", str(request))
    line = ("openssl", "ca", "-batch", "-notext", "-config", "ca.conf", "-in", "server.csr")
    output("env", "-C", str(directory), *line, "-out", "server.crt", "-startdate", first, "-enddate", last)
    _write_pem(directory)


def _write_pem(directory: Path) -> None:
    pem = "".join((directory / name).read_text() for name in ("server.key", "server.crt"))
    (directory / "server.pem").write_text(pem)
