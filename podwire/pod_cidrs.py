"""Reads the subnets that a cluster assigned to a node from its Node object (`kubectl get node NAME -o json`).

For any other object, or one without subnets, the error has the fix; nothing is guessed.
"""

from __future__ import annotations

from cni import gojson
from cni.errors import CniError, Code, invalid_conf
from cni.fields import Fields
from podwire.installing import filesystem_error
from podwire.lint import positions
from process import files

_PRINT = "create the file with: kubectl get node NAME -o json"
_ALLOCATE = (
    "kube-controller-manager assigns one if it runs with --allocate-node-cidrs and --cluster-cidr "
    "(kubeadm: podSubnet); without that, use --subnet"
)


def read(path: str) -> tuple[str, ...]:
    """Returns the node's subnets, at most one per IP version; raises CniError(5), CniError(6), CniError(7)."""
    try:
        body = positions.loads(files.read(path, gojson.MAX_BYTES))
    except OSError as error:
        raise filesystem_error(f"read {path}", error) from error
    except ValueError as error:
        raise CniError(Code.DECODING_FAILURE, f"{path} is not JSON: {error}", _PRINT) from error
    if not isinstance(body, dict) or body.get("kind") != "Node":
        raise invalid_conf(f"{path} is not a Node object{_instead(body)}", _PRINT)
    node = Fields(body, context=path)
    spec = node.section("spec")
    # podCIDR is the first of podCIDRs, and alone before Kubernetes 1.16.
    subnets = spec.strings("podCIDRs") or tuple(filter(None, [spec.string("podCIDR")]))
    if not subnets:
        name = node.section("metadata").string("name")
        raise invalid_conf(f"node {name} has no podCIDR", _ALLOCATE)
    return subnets


def _instead(body: object) -> str:
    """Returns the kind of another object, with the API server's message if it is a Status."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return ""
    message = body.get("message") if body["kind"] == "Status" else None
    return f", but a {body['kind']}: {message}" if message else f", but a {body['kind']}"
