"""The API server's address and certificate authority: an option, the environment, a kubelet's kubeconfig."""

import base64
import json
import os
from pathlib import Path

import pytest

from agent.api_server import CurrentFile, Server, server_from_environment, server_from_kubeconfig, server_from_url

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM.encode()).decode()
CA = Path("/ca.crt")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://192.0.2.1:6443", "https://192.0.2.1:6443"),
        ("https://[fd00::1]:6443/", "https://[fd00::1]:6443"),
        ("https://api.example", "https://api.example:443"),
    ],
)
def test_the_address_of_an_option(text, url):
    """An option has a host, a port or 443, and brackets around an IPv6 address."""
    assert server_from_url(text, CA) == Server(url, CA)


@pytest.mark.parametrize(
    "text",
    [
        *("", "192.0.2.1:6443", "http://192.0.2.1:6443", "https://", "https://x:port", "https://x:99999"),
        *("https://u:p@x", "https://x/path", "https://x?y", "https://[fd00::1", "https://fd00::1:6443"),
    ],
)
def test_another_address_is_refused(text):
    """An option that is no https://HOST:PORT is refused, and the error shows it."""
    with pytest.raises(ValueError, match="write https://HOST:PORT"):
        server_from_url(text, CA)


def test_the_address_of_the_environment():
    """The variables of a container give the Service's address; an IPv6 host gets brackets."""
    host = "KUBERNETES_SERVICE_HOST"
    assert server_from_environment({}, CA) is None
    assert server_from_environment({host: "10.96.0.1"}, CA) == Server("https://10.96.0.1:443", CA)
    ports = {"KUBERNETES_SERVICE_PORT": "6443", "KUBERNETES_SERVICE_PORT_HTTPS": "443"}
    assert server_from_environment({host: "fd00::1", **ports}, CA) == Server("https://[fd00::1]:443", CA)


KUBEADM = f"""apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {DATA}
    server: https://192.0.2.1:6443
  name: kubernetes
contexts:
- context: {{cluster: kubernetes, user: default-auth}}
  name: default-auth
current-context: default-auth
kind: Config
users:
- name: default-auth
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
"""
EKS = """kind: Config
clusters:
  - cluster:
      server: "https://[fd00::1]:6443"   # quoted
      certificate-authority: pki/ca.crt
    name: kubernetes
"""


def test_kubeconfigs(tmp_path):
    """A kubeconfig in YAML or JSON gives address and certificate authority, as text or as a file beside it."""
    path = tmp_path / "kubelet.conf"
    path.write_text(KUBEADM)
    assert server_from_kubeconfig(path) == Server("https://192.0.2.1:6443", None, PEM)
    path.write_text(EKS)
    assert server_from_kubeconfig(path) == Server("https://[fd00::1]:6443", tmp_path / "pki" / "ca.crt")
    cluster = {"server": "https://192.0.2.1:6443", "certificate-authority-data": DATA}
    path.write_text(json.dumps({"kind": "Config", "clusters": [{"cluster": cluster, "name": "x"}]}))
    assert server_from_kubeconfig(path) == Server("https://192.0.2.1:6443", None, PEM)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no server"),
        (EKS + EKS, "several clusters"),
        (EKS.replace("https", "http"), "is not the address"),
        (EKS.replace("certificate-authority", "x"), "it has no certificate authority"),
        (KUBEADM.replace(DATA, "%%"), "it is damaged"),
        (KUBEADM.replace(DATA, "/////w=="), "it is damaged"),
        ("{", "Expecting"),
        ("x" * (2 << 20), "more than 1024 KiB"),
    ],
)
def test_a_wrong_kubeconfig_is_refused(tmp_path, text, message):
    """A kubeconfig without one address and one certificate authority is refused with its name."""
    path = tmp_path / "kubelet.conf"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        server_from_kubeconfig(path)
    assert str(caught.value).startswith(f"kubeconfig {path}: ")


def test_a_file_is_read_again_when_it_changes_and_after_a_minute(tmp_path):
    """A replaced token counts at once; one that was changed without a trace, after a minute."""
    path, now = tmp_path / "token", [0.0]
    path.write_text("one\n")
    file = CurrentFile(path, lambda: now[0])
    assert file.text() == "one"
    (tmp_path / "new").write_text("two")
    os.replace(tmp_path / "new", path)
    assert file.text() == "two"
    status = path.stat()
    path.write_text("six")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    now[0] = 59.0
    assert file.text() == "two"
    now[0] = 61.0
    assert file.text() == "six"
    path.write_text("ten")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    file.forget()
    assert file.text() == "ten"
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.text()
