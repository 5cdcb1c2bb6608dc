"""Node objects as large as those of a real cluster: 10 kB of images, conditions and heartbeats."""

from typing import Any

_REGISTRY = "registry.example/team"
_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_IMAGES = 42
_INFO = {
    "machineID": "7c1c6a0fd1b24d1c9a36a3c5f2a7ba5e",
    "bootID": "0b0e3b8e-6f6c-4a38-8d3f-0a56f4a4b2f1",
    "kernelVersion": "6.1.0-18-amd64",
    "osImage": "Debian GNU/Linux 12 (bookworm)",
    "containerRuntimeVersion": "containerd://1.7.27",
    "kubeletVersion": "v1.33.1",
    "kubeProxyVersion": "v1.33.1",
    "operatingSystem": "linux",
    "architecture": "amd64",
}


def node(number: int, beat: int = 0) -> dict[str, Any]:
    """Returns a Node: its podCIDRs and addresses depend on the number, the times of its status on the heartbeat."""
    name, subnet = f"node-{number:05}", f"{number >> 8}.{number & 255}"
    labels = {f"topology.example/level-{level}": f"value-{number % 7}" for level in range(12)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"5f0c0000-0000-4000-8000-{number:012}", "labels": labels},
        "spec": {
            "podCIDR": f"10.{subnet}.0/24",
            "podCIDRs": [f"10.{subnet}.0/24", f"fd00:10:{number:x}::/64"],
            "providerID": f"cloud:///zone-a/{name}",
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": f"172.16.{subnet}"},
                {"type": "InternalIP", "address": f"fd00:16::{number:x}"},
                {"type": "Hostname", "address": name},
            ],
            "capacity": {"cpu": "64", "memory": "263856012Ki", "pods": "250", "ephemeral-storage": "480588496Ki"},
            "conditions": [_condition(kind, beat) for kind in _CONDITIONS],
            "images": [_image(number, image) for image in range(_IMAGES)],
            "nodeInfo": _INFO | {"systemUUID": name},
        },
    }


def _condition(kind: str, beat: int) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True" if kind == "Ready" else "False",
        "lastHeartbeatTime": f"2026-11-23T{beat // 3600 % 24:02}:{beat // 60 % 60:02}:{beat % 60:02}Z",
        "lastTransitionTime": "2026-11-01T00:00:00Z",
        "reason": f"KubeletHas{kind}",
        "message": f"kubelet has reported the condition {kind}",
    }


def _image(number: int, image: int) -> dict[str, Any]:
    digest = f"{number * 1000 + image:064x}"
    names = [
        f"{_REGISTRY}/component-{image}@sha256:{digest}",
        f"{_REGISTRY}/component-{image}:v1.{number % 50}.{image}",
    ]
    return {"names": names, "sizeBytes": 100_000_000 + image}
