"""The records of a cluster's DNS, for Services and pods, as Kubernetes' specification of DNS has them.

One rule: each look-up reads the API server's present objects. Of other names, only INTERNET_HOST exists.
https://github.com/kubernetes/dns/blob/master/docs/specification.md
"""

import contextlib
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple

from agent.api_errors import NotFound
from agent.kubernetes import ApiClient

DOMAIN = ("cluster", "local")
INTERNET_HOST = "google.com"  # upstream's tests read a page of it; the control plane's machine serves one
A, CNAME, PTR, AAAA, SRV = 1, 5, 12, 28, 33


class Record(NamedTuple):
    """A resource record; the value is an address, a name, or a port and a name."""

    kind: int
    value: Any
    name: str = ""  # "": the name of the question


class Names:
    """The names of a cluster; a look-up returns None for a name that does not exist."""

    def __init__(self, client: ApiClient, world: Sequence[str]) -> None:
        self._client, self._world = client, world

    def records(self, name: str) -> list[Record] | None:
        """Returns all records of a name in lower case."""
        labels = tuple(name.split("."))
        if name == INTERNET_HOST:
            return [_address(ip) for ip in self._world]
        if labels[-1:] == ("arpa",):
            return self._reverse(labels)
        if labels[-2:] != DOMAIN:
            return None
        match labels[:-2][::-1]:
            case ("svc", namespace, service, *rest):
                return self._service(namespace, service, rest[::-1])
            case ("pod", _, dashed):
                return _pod(dashed)
            case () | ("svc" | "pod",) | ("svc" | "pod", _):
                return []
        return None

    def _service(self, namespace: str, name: str, rest: list[str]) -> list[Record] | None:
        service = self._object(f"/api/v1/namespaces/{namespace}/services/{name}")
        if service is None:
            return None
        spec, host = service["spec"], f"{name}.{namespace}.svc.{'.'.join(DOMAIN)}"
        if spec["type"] == "ExternalName":
            return [Record(CNAME, spec["externalName"].rstrip("."))] if not rest else None
        is_headless = spec.get("clusterIP") == "None"
        endpoints = [*self._endpoints(namespace, name)] if is_headless else []
        if is_headless:
            targets = [(f"{label}.{host}", ip, ports) for label, ip, ports in endpoints]
        else:
            targets = [(host, ip, spec["ports"]) for ip in spec.get("clusterIPs", [spec["clusterIP"]])]
        if not rest:
            return [_address(ip) for _, ip, _ in targets]
        if len(rest) == 1:
            return [_address(ip) for label, ip, _ in endpoints if label == rest[0]] or None
        records = [
            [Record(SRV, (port["port"], target)), Record(_address(ip).kind, ip, target)]
            for target, ip, ports in targets
            for port in ports
            if [f"_{port.get('name', '')}", f"_{port['protocol'].lower()}"] == rest
        ]
        return [record for pair in records for record in pair] or None

    def _endpoints(self, namespace: str, name: str) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Yields label, address and ports of the ready endpoints of a Service."""
        document = self._object(f"/api/v1/namespaces/{namespace}/endpoints/{name}") or {}
        for subset in document.get("subsets") or ():
            for address in subset.get("addresses") or ():
                label = address.get("hostname") or address["ip"].replace(".", "-").replace(":", "-")
                yield label, address["ip"], subset.get("ports") or []

    def _reverse(self, labels: tuple[str, ...]) -> list[Record] | None:
        ip = _reversed_address(labels)
        for service in self._object("/api/v1/services")["items"]:
            if ip and ip in service["spec"].get("clusterIPs", ()):
                meta = service["metadata"]
                return [Record(PTR, f"{meta['name']}.{meta['namespace']}.svc.{'.'.join(DOMAIN)}")]
        for endpoints in self._object("/api/v1/endpoints")["items"]:
            meta = endpoints["metadata"]
            for subset in endpoints.get("subsets") or ():
                for address in subset.get("addresses") or ():
                    if ip == address["ip"] and address.get("hostname"):
                        host = f"{address['hostname']}.{meta['name']}.{meta['namespace']}"
                        return [Record(PTR, f"{host}.svc.{'.'.join(DOMAIN)}")]
        return None

    def _object(self, path: str) -> Any:
        try:
            return self._client.get(path)
        except NotFound:
            return None


def _address(ip: str) -> Record:
    return Record(AAAA if ":" in ip else A, ip)


def _pod(dashed: str) -> list[Record] | None:
    """Returns the address in the name of a pod: "10-244-1-5"."""
    for text in (dashed.replace("-", "."), dashed.replace("-", ":")):
        with contextlib.suppress(ValueError):
            return [_address(str(ip_address(text)))]
    return None


def _reversed_address(labels: tuple[str, ...]) -> str:
    digits = labels[:-2][::-1]
    text = (
        ".".join(digits) if labels[-2] == "in-addr" else ":".join(map("".join, zip(*[iter(digits)] * 4, strict=False)))
    )
    with contextlib.suppress(ValueError):
        return str(ip_address(text))
    return ""
