"""The subnets that a cluster has given to a node: its Node object, as `kubectl get node NAME -o json` prints it.

One rule: what is no such object, or has no subnets yet, is told with what to do; nothing is guessed.
"""

from __future__ import annotations

from cni import gojson
from cni.errors import CniError, Code
from cni.fields import Fields
from podwire.installing import filesystem_error
from podwire.lint import positions
from process import files

_PRINT = "kubectl get node NAME -o json prints what is wanted"
_ALLOCATE = (
    "kube-controller-manager gives each node its own, run with --allocate-node-cidrs and --cluster-cidr "
    "(kubeadm: podSubnet); where it does not, say it: --subnet"
)


def read(path: str) -> tuple[str, ...]:
    """Returns the node's subnets, one of each IP version at most; raises CniError(5), CniError(6), CniError(7)."""
    try:
        body = positions.loads(files.read(path, gojson.MAX_BYTES))
    except OSError as error:
        raise filesystem_error(f"read {path}", error) from error
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"{path} is not JSON: {error}", _PRINT) from error
    if not isinstance(body, dict) or body.get("kind") != "Node":
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"{path} is no Node object{_instead(body)}", _PRINT)
    node = Fields(body, context=path)
    spec = node.section("spec")
    # podCIDR is the first of podCIDRs, and alone before Kubernetes 1.16.
    found = spec.strings("podCIDRs") or tuple(filter(None, [spec.string("podCIDR")]))
    if not found:
        name = node.section("metadata").string("name")
        raise CniError(Code.INVALID_NETWORK_CONFIG, f"node {name} has no podCIDR", _ALLOCATE)
    return found


def _instead(body: object) -> str:
    """Returns what else it is: a list, or an API server's refusal, which says why."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return ""
    said = body.get("message") if body["kind"] == "Status" else None
    return f", but a {body['kind']}: {said}" if said else f", but a {body['kind']}"
