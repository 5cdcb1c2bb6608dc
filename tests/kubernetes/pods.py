"""Objects of the tests: a pod with a server on each node, and Services for them; their state and answers."""

import urllib.request
from typing import Any

from tests.kubernetes import images

Object = dict[str, Any]
PORT, UDP_PORT, HOST_PORT = 8080, 8081, 30080


def daemon_set(name: str, *, host_port: int = 0) -> Object:
    """Returns a DaemonSet whose pods answer HTTP requests on PORT (/hostname, /clientip) and UDP ones on UDP_PORT."""
    return _workload("DaemonSet", name, host_port)


def deployment(name: str, replicas: int) -> Object:
    """Returns a Deployment of pods with the same server."""
    body = _workload("Deployment", name)
    return {**body, "spec": {**body["spec"], "replicas": replicas}}


def is_ready(one: Object) -> bool:
    """Returns whether a pod or node is ready."""
    conditions = one["status"].get("conditions", ())
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def url(host: str, port: int, path: str) -> str:
    """Returns a URL of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{path}"


def get(address: str) -> str:
    """Returns what a URL answers; OSError if it does not."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        body: bytes = answer.read()
        return body.decode()


def _workload(kind: str, name: str, host_port: int = 0) -> Object:
    port = {"containerPort": PORT, **({"hostPort": host_port} if host_port else {})}
    container = {
        "name": "server",
        "image": images.AGNHOST,
        "args": ["netexec", f"--http-port={PORT}", f"--udp-port={UDP_PORT}"],
        "ports": [port],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
    }
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


def service(name: str, **spec: Any) -> Object:
    """Returns a Service for the pods of the DaemonSet of this name."""
    body = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


def idle_deployment(name: str, group: str, node: str | None, annotations: dict[str, str]) -> Object:
    """Returns a Deployment of idle pods, still without any; `node` is the only node for them, None for all."""
    labels = {"app": name, "group": group}
    spec = {
        "containers": [{"name": "pause", "image": images.PAUSE}],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
    }
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    body = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": body}
