"""`python -m bench.clients [--write]`: what clients of the Kubernetes API cost on each node of a cluster.

Each client is installed into a directory of its own and runs as a process: it imports, lists 5,000 Nodes of
10 kB from a double of the API server over TLS, and keeps names and podCIDRs. The table of docs/agent-clients.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support import certificates, cluster_nodes
from tests.support.binaries import ROOT
from tests.support.kubernetes_double import NODES, Fault, KubernetesDouble

PAGE = ROOT / "docs" / "agent-clients.md"
BEGIN, END = "<!-- begin: python -m bench.clients --write -->\n", "<!-- end -->\n"
COUNT, LIMIT = 5000, 100


class Candidate(NamedTuple):
    """A client: its name, the packages, the import, and the code that fills `nodes` from url, ca, token, config."""

    name: str
    packages: tuple[str, ...]
    imports: str
    code: str


_PAGES = """
position = ""
while True:
    query = f"/api/v1/nodes?limit={limit}" + (f"&continue={position}" if position else "")
    page = json.loads(fetch(query))
    nodes += [(one["metadata"]["name"], one["spec"]["podCIDRs"]) for one in page["items"]]
    position = page["metadata"].get("continue")
    if not position:
        break
"""
_STANDARD = """
context = ssl.create_default_context(cafile=ca)
connection = http.client.HTTPSConnection(url.removeprefix("https://"), context=context)
def fetch(path):
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    return connection.getresponse().read()
"""
_URLLIB3 = """
pool = urllib3.PoolManager(ca_certs=ca)
def fetch(path):
    return pool.request("GET", url + path, headers={"Authorization": f"Bearer {token}"}).data
"""
_HTTPX = """
client = httpx.Client(verify=ssl.create_default_context(cafile=ca), headers={"Authorization": f"Bearer {token}"})
def fetch(path):
    return client.get(url + path).content
"""
_LIGHTKUBE = """
client = lightkube.Client(config=lightkube.KubeConfig.from_file(config))
nodes += [(one.metadata.name, one.spec.podCIDRs) for one in client.list(Node, chunk_size=limit)]
"""
_KR8S = """
api = kr8s.api(kubeconfig=config)
nodes += [(one.name, one.raw["spec"]["podCIDRs"]) for one in api.get("nodes")]
"""
_OFFICIAL = """
kubernetes.config.load_kube_config(config)
api, position = kubernetes.client.CoreV1Api(), None
while True:
    page = api.list_node(limit=limit, _continue=position)
    nodes += [(one.metadata.name, one.spec.pod_cidrs) for one in page.items]
    position = page.metadata._continue
    if not position:
        break
"""
CANDIDATES = (
    Candidate("http.client (standard library)", (), "http.client, json, ssl", _STANDARD + _PAGES),
    Candidate("urllib3", ("urllib3",), "json, ssl, urllib3", _URLLIB3 + _PAGES),
    Candidate("urllib3 1.26.12 (Debian 12)", ("urllib3==1.26.12",), "json, ssl, urllib3", _URLLIB3 + _PAGES),
    Candidate("httpx", ("httpx",), "httpx, json, ssl", _HTTPX + _PAGES),
    Candidate("lightkube", ("lightkube",), "lightkube; from lightkube.resources.core_v1 import Node", _LIGHTKUBE),
    Candidate("kr8s", ("kr8s",), "kr8s", _KR8S),
    Candidate("kubernetes (official)", ("kubernetes",), "kubernetes", _OFFICIAL),
    Candidate("etcd3gw (etcd)", ("etcd3gw",), "etcd3gw", ""),
)
_PROGRAM = """
import sys, time
url, ca, token, config, limit = sys.argv[1:5] + [int(sys.argv[5])]
def memory(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
start = time.process_time()
import {imports}
imported_s, imported_kib, nodes = time.process_time() - start, memory("VmRSS"), []
start = time.process_time()
{code}
listed_s = time.process_time() - start
import json
print(json.dumps([imported_s, imported_kib, listed_s, memory("VmHWM"), len(nodes)]))
"""


def main(arguments: Sequence[str]) -> None:
    """Measures the clients and prints the table, or writes it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        table = _table(Path(directory))
    print(table)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{rest.split(END)[1]}")


def _table(directory: Path) -> str:
    double = KubernetesDouble(certificates.create(directory))
    for number in range(COUNT):
        document = cluster_nodes.node(number)
        double.store.put(f"{NODES}/{document['metadata']['name']}", document)
    double.store.compact()
    version = {"major": "1", "minor": "33", "gitVersion": "v1.33.1"}  # kr8s asks for it
    double.faults.append(Fault("GET /version", status=200, body=json.dumps(version).encode(), times=100))
    ca = directory / "ca.crt"
    config = directory / "config"
    config.write_text(json.dumps(_kubeconfig(double.url, ca)))
    columns = ("client", "import: CPU ms", "MiB", "list: peak MiB", "CPU s", "packages", "MB on disk")
    rows = [f"| {' | '.join(columns)} |", "|---|--:|--:|--:|--:|--:|--:|"]
    with double.running():
        rows += [_row(one, directory, (double.url, str(ca), "admin", str(config), str(LIMIT))) for one in CANDIDATES]
    return "".join(f"{row}\n" for row in rows)


def _row(candidate: Candidate, directory: Path, arguments: tuple[str, ...]) -> str:
    """Installs a client, runs its program and returns its row of the table."""
    print(candidate.name, file=sys.stderr)
    site = directory / f"packages-{CANDIDATES.index(candidate)}"
    site.mkdir()
    if candidate.packages:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site))
        subprocess.run([*pip, *candidate.packages], check=True)
    program = _PROGRAM.format(imports=candidate.imports, code=candidate.code)
    run = [sys.executable, "-S", "-c", program, *arguments]  # -S: without the packages of this environment
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "PYTHONPATH": str(site)}
    runs = [json.loads(subprocess.run(run, check=True, capture_output=True, env=env).stdout) for _ in range(4)][1:]
    imported_s, imported_kib, listed_s, peak_kib, count = min(runs)
    assert count in (COUNT, 0)
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and file.suffix != ".pyc")
    installed = len(list(site.glob("*.dist-info")))
    listed = [f"{peak_kib >> 10}", f"{listed_s:.1f}"] if count else ["", ""]
    cells = [candidate.name, f"{imported_s * 1000:.0f}", f"{imported_kib >> 10}", *listed, f"{installed}"]
    return f"| {' | '.join(cells)} | {size / 1e6:.1f} |"


def _kubeconfig(url: str, ca: Path) -> dict[str, object]:
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca.read_bytes()).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "x", "cluster": cluster}],
        "users": [{"name": "x", "user": {"token": "admin"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }


if __name__ == "__main__":
    main(sys.argv[1:])
