"""An API server with the nodes of a cluster, on the emulated machine: the image's Python runs it, beside the agent.

One rule: it imports the standard library and the double only, which are on that machine.

    python3 -m tests.support.arm64_api_server DIRECTORY      which has the certificate, and gets the file `url`
"""

import sys
import threading
from pathlib import Path

from tests.support.kubernetes_double import NODES, KubernetesDouble

ADDRESSES = {1: "192.0.2.10", 2: "192.0.2.11", 3: "198.51.100.3"}  # this node, one on its link, a remote one
FILES = ("__init__", "arm64_api_server", "kubernetes_double", "kubernetes_store")


def main() -> None:
    """Serves until the machine is switched off."""
    directory = Path(sys.argv[1])
    server = KubernetesDouble(directory)
    for number, address in ADDRESSES.items():
        pod_cidrs = [f"10.244.{number}.0/24", f"fd00:10:244:{number}::/64"]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"worker-{number}"},
            "spec": {"podCIDR": pod_cidrs[0], "podCIDRs": pod_cidrs},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }
        server.store.put(f"{NODES}/worker-{number}", node)
    with server.running():
        (directory / "url").write_text(server.url)
        threading.Event().wait()


if __name__ == "__main__":
    main()
